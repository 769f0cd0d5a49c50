"""Compiles Triton kernels for sm_90 on a machine without a GPU, and reads from the machine code what they take.

A function that launches them runs in a process of its own (this one has Triton's interpreter on), where Triton believes that it
sees such a device: its own launcher decides which form each launch needs, and the form is compiled in place of being run. Needs
the ptxas and cuobjdump that Triton's wheel carries for NVIDIA; `needs_compiler` skips a test where they aren't there.
"""

import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Compiled", "compile_launches", "needs_compiler", "see_hopper"]


@dataclass(frozen=True)
class Compiled:
    """A form of a kernel, told apart by its `key`, and its `constants`.

    What it takes: registers a thread, bytes of stack a thread (spills, mostly), bytes of shared memory a program, warps.
    `instructions` counts machine instructions by their first word ("HGMMA", "HMMA", "LDGSTS", "LDL", "STL"), `spilling` those of
    them that are in a loop and move a thread's registers to memory or back.
    """

    kernel: str
    key: str
    constants: Mapping[str, Any]
    registers: int = 0
    stack: int = 0
    shared: int = 0
    warps: int = 0
    instructions: Mapping[str, int] | None = None
    spilling: int = 0

    def count(self, word: str) -> int:
        """Instructions that begin with `word`."""
        assert self.instructions is not None, "the form was told, not compiled"
        return self.instructions.get(word, 0)


def _nvidia_tools() -> Path | None:
    found = importlib.util.find_spec("triton")
    tools = Path(found.origin).parent / "backends/nvidia/bin" if found is not None and found.origin else None
    return tools if tools is not None and (tools / "ptxas").exists() and (tools / "cuobjdump").exists() else None


needs_compiler = pytest.mark.skipif(_nvidia_tools() is None, reason="Triton isn't installed with its NVIDIA compiler")


def compile_launches(launching: str, *arguments: object, only_tell: bool = False, timeout: float = 600) -> list[Compiled]:
    """Every form of a kernel that the function `launching` ("module:name") launches, in the order of first launches.

    With `only_tell` none is compiled. Raises RuntimeError with the compiler's words where one doesn't compile.
    """
    return [Compiled(**each) for each in _elsewhere([launching, arguments, only_tell], timeout)]


def see_hopper(function: str, *arguments: object, timeout: float = 600) -> Any:
    """What `function` ("module:name") returns, as JSON has it, where kernels may be compiled but not run."""
    return _elsewhere([function, arguments, None], timeout)


def _elsewhere(wanted: list[object], timeout: float) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(wanted),
        env={**environment, "TRITON_DEFAULT_FP_FUSION": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


class _Hopper:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _never_launch() -> None:
    """From now on launches only compile, for Hopper."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_Hopper())
    launch = JITFunction.run

    def run(self: Any, *values: object, grid: object, warmup: bool, **named: object) -> None:
        launch(self, *values, grid=grid, warmup=True, **named)

    JITFunction.run = run


def _collect(found: dict[str, Compiled], only_tell: bool) -> None:
    """From now on the forms that are compiled are put into `found`."""
    from triton.runtime.jit import JITFunction

    compile_form = JITFunction._do_compile

    def do_compile(self: Any, key: str, signature: object, device: int, constants: Mapping[Any, Any], *rest: object) -> object:
        named = {self.arg_names[path[0]]: value for path, value in constants.items() if isinstance(value, int | float | str)}
        form = Compiled(self.__name__, f"{self.__name__} {key}", named)
        if only_tell:
            found[form.key] = form
            return None
        compiled = compile_form(self, key, signature, device, constants, *rest)
        found[form.key] = _measured(form, compiled)
        return compiled

    JITFunction._do_compile = do_compile


def _measured(form: Compiled, compiled: Any) -> Compiled:
    tools = _nvidia_tools()
    assert tools is not None, "callers are skipped without the tools"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
        usage = told([tools / "cuobjdump", "-res-usage", file.name]).stdout
        code = told([tools / "cuobjdump", "-sass", file.name]).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)([^;]*);", code)
    return Compiled(
        form.kernel,
        form.key,
        form.constants,
        numbers["REG"],
        numbers["STACK"] + numbers["LOCAL"],
        compiled.metadata.shared,
        compiled.metadata.num_warps,
        dict(Counter(word for _, word, _ in lines)),
        _spilling([(int(at, 16), word, rest) for at, word, rest in lines]),
    )


def _spilling(code: Sequence[tuple[int, str, str]]) -> int:
    """How many loads and stores of spilled registers lie between a branch back and its target."""
    loops = [(int(to[1], 16), at) for at, word, rest in code if word == "BRA" and (to := re.search(r"0x([0-9a-f]+)", rest))]
    return sum(word in ("LDL", "STL") and any(begin <= at <= end for begin, end in loops) for at, word, _ in code)


def _main() -> None:
    function, arguments, only_tell = json.load(sys.stdin)
    sys.path.insert(0, str(Path.cwd()))
    module, name = function.split(":")
    _never_launch()
    found: dict[str, Compiled] = {}
    if only_tell is not None:
        _collect(found, only_tell)
    told = getattr(importlib.import_module(module), name)(*arguments)
    print(json.dumps(told if only_tell is None else [asdict(each) for each in found.values()]))


if __name__ == "__main__":
    _main()
