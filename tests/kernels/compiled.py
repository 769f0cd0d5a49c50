"""Compiles Triton kernels for sm_90 on a machine without a GPU, and reads from the machine code what they take.

`record` says in which forms a launcher would launch its kernel, `compile_kernels` compiles them, in a process of its own, since
the tests' process has Triton's interpreter on. Needs the ptxas and cuobjdump that Triton's wheel carries for NVIDIA;
`needs_compiler` skips a test where they aren't there.
"""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

__all__ = ["Compiled", "Specialisation", "compile_kernels", "needs_compiler", "record"]


@dataclass(frozen=True)
class Specialisation:
    """One form of a kernel: `signature` gives each argument that is no constant its type ("*bf16", "i64", "fp32").

    `aligned` are the arguments known to be divisible by 16, as the launcher sees them of pointers and of most strides.
    """

    module: str
    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """What one form takes: registers a thread, bytes of stack a thread (spills, mostly), bytes of shared memory a program.

    `instructions` counts machine instructions by their first word ("HGMMA", "HMMA", "LDGSTS", "LDL", "STL"), `spilling` those of
    them that are in a loop and move a thread's registers to memory or back.
    """

    registers: int
    stack: int
    shared: int
    instructions: Mapping[str, int]
    spilling: int


KINDS = {
    "float32": "*fp32",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float8_e4m3fn": "*fp8e4nv",
    "int64": "*i64",
    "int32": "*i32",
    "uint8": "*u8",
    "bool": "*i1",
}


class _Recorder:
    """Stands in for a kernel, and keeps how it was launched."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.launches: list[Specialisation] = []
        self._module, self._name = module, name
        self._kernel = getattr(module, name)

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._launched

    def _launched(self, *values: object, **named: object) -> None:
        given = {**dict(zip(self._kernel.arg_names, values, strict=False)), **named}
        options = {name: given.pop(name) for name in list(given) if name not in self._kernel.arg_names}
        annotations = self._kernel.fn.__annotations__
        constants = {
            name for name in given if getattr(annotations.get(name), "__name__", "") == "constexpr" or given[name] is None
        }
        constants |= {name for name, value in given.items() if type(value) is int and value == 1}  # Triton makes these constants
        arguments = {name: value for name, value in given.items() if name not in constants}
        self.launches.append(
            Specialisation(
                self._module.__name__,
                self._name,
                {name: _kind(value) for name, value in arguments.items()},
                {name: given[name] for name in constants},
                [name for name, value in arguments.items() if _is_aligned(value)],
                options,
            )
        )


def record(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Specialisation]:
    """The list that from now on gets each launch of the kernel `name` of `module`; nothing is computed any more."""
    recorder = _Recorder(module, name)
    monkeypatch.setattr(module, name, recorder)
    return recorder.launches


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else KINDS[str(getattr(value, "dtype", None)).removeprefix("torch.")]


def _is_aligned(value: object) -> bool:
    """As the launcher sees it: numbers and addresses that 16 divides."""
    at = getattr(value, "data_ptr", None)
    return at() % 16 == 0 if at is not None else type(value) is int and value % 16 == 0


def _nvidia_tools() -> Path | None:
    found = importlib.util.find_spec("triton")
    tools = Path(found.origin).parent / "backends/nvidia/bin" if found is not None and found.origin else None
    return tools if tools is not None and (tools / "ptxas").exists() and (tools / "cuobjdump").exists() else None


needs_compiler = pytest.mark.skipif(_nvidia_tools() is None, reason="Triton isn't installed with its NVIDIA compiler")


def compile_kernels(wanted: Sequence[Specialisation], *, timeout: float = 600) -> list[Compiled]:
    """Compile each form; raises RuntimeError with the compiler's words where one doesn't compile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([asdict(each) for each in wanted]),
        env={**environment, "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return [Compiled(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _compile(wanted: Specialisation, tools: Path) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(wanted.module), wanted.kernel)
    signature = {name: wanted.signature.get(name, "constexpr") for name in kernel.arg_names}
    missing = [name for name, kind in signature.items() if kind == "constexpr" and name not in wanted.constants]
    assert not missing, f"{wanted.kernel}: arguments without a type or a value: {missing}"
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in wanted.aligned}
    source = ASTSource(kernel, signature=signature, constexprs=dict(wanted.constants), attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(wanted.options))
    file = Path(os.environ["COMPILED_FILE"])
    file.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run([tools / "cuobjdump", "-res-usage", file], capture_output=True, text=True, check=True).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    code = subprocess.run([tools / "cuobjdump", "-sass", file], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)([^;]*);", code)
    return Compiled(
        numbers["REG"],
        numbers["STACK"] + numbers["LOCAL"],
        compiled.metadata.shared,
        dict(Counter(word for _, word, _ in found)),
        _spilling([(int(at, 16), word, rest) for at, word, rest in found]),
    )


def _spilling(code: Sequence[tuple[int, str, str]]) -> int:
    """How many loads and stores of spilled registers lie between a branch back and its target."""
    loops = [(int(to[1], 16), at) for at, word, rest in code if word == "BRA" and (to := re.search(r"0x([0-9a-f]+)", rest))]
    return sum(word in ("LDL", "STL") and any(begin <= at <= end for begin, end in loops) for at, word, _ in code)


def _main() -> None:
    import tempfile

    tools = _nvidia_tools()
    assert tools is not None, "callers are skipped without the tools"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COMPILED_FILE"] = str(Path(folder) / "kernel.cubin")
        found = [asdict(_compile(Specialisation(**each), tools)) for each in json.load(sys.stdin)]
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
