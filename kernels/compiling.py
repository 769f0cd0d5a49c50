"""Compiles every kernel that some work launches, all at once: Triton by itself compiles each where it is launched first.

`runtime.loading` has a model's kernels compiled so before it needs the first of them, `benchmarks.gpu` those that it checks.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

__all__ = ["collect_launches", "compile_launches"]

Forms = dict[tuple[str, str], tuple[Any, str]]
"""Triton's function and how it is specialised, by the function's name and the key of the specialisation."""


class _Launches:
    """Triton's hook before it compiles: notes what this thread launches, which then is neither compiled nor launched."""

    def __init__(self, before: Callable[..., bool | None] | None) -> None:
        self.before = before
        self.forms: Forms = {}
        self._thread: int | None = threading.get_ident()

    def __call__(self, *, key: str, fn: Any, compile: dict[str, Any], **rest: object) -> bool | None:
        if threading.get_ident() == self._thread:
            self.forms.setdefault((f"{fn.module}.{fn.name}", key), (fn.jit_function, compile["specialization_data"]))
            return True
        return None if self.before is None else self.before(key=key, fn=fn, compile=compile, **rest)

    def close(self) -> None:
        """Note nothing more, whoever still calls."""
        self._thread = None


def collect_launches(work: Callable[[], object]) -> Forms:
    """The forms of kernels that `work` launches and that haven't been compiled in this process.

    `work` runs in this thread, without these kernels: what they would have written holds anything. Older Tritons (before 3.4)
    can't tell what would be compiled: `work` doesn't run, and there are none.
    """
    if not hasattr(triton, "knobs"):
        return {}
    runtime = triton.knobs.runtime
    launches = _Launches(runtime.jit_cache_hook)
    runtime.jit_cache_hook = launches
    try:
        work()
    finally:
        launches.close()
        runtime.jit_cache_hook = launches.before
    return launches.forms


def compile_launches(work: Callable[[], object], device: torch.device, threads: int) -> int:
    """Compile what `collect_launches` finds, in so many threads, and load it; how many forms that were.

    Raises what Triton raises where one doesn't compile.
    """

    def ready(form: tuple[Any, str]) -> None:
        function, specialization = form
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():  # each thread has its own
            compiled = function.preload(specialization)
            if device.type == "cuda":
                _ = compiled.run  # builds its launcher, for which a C compiler takes its time, and loads it

    forms = collect_launches(work)
    with ThreadPoolExecutor(threads, thread_name_prefix="branchpoint-compile") as pool:
        list(pool.map(ready, forms.values()))
    return len(forms)
