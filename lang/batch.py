"""Runs many jobs on one backend: user code in a bounded pool of threads, all calls through one executor.

Each job runs exactly once. What fails takes its own place and nothing else's.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, Literal

from branchpoint.lang.backends.base import Backend
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.executor import Executor
from branchpoint.lang.run import Run
from branchpoint.lang.runner import Job, run_here

__all__ = ["AUTO_THREADS", "as_completed", "collect"]

AUTO_THREADS = 64
"""Programs whose code runs at once where `num_threads` is "auto"."""


def collect(
    jobs: Sequence[Job],
    backend: Backend,
    *,
    num_threads: int | Literal["auto"],
    on_error: Literal["raise", "return"],
    progress_bar: bool,
) -> list[Any]:
    """The runs in order; failed ones are exceptions, or the first of them is raised after all are done."""
    if on_error not in ("raise", "return"):
        raise ProgramMistake(f"on_error must be 'raise' or 'return', got {on_error!r}.")
    results: dict[int, Run[Any] | Exception] = dict(
        as_completed(jobs, backend, num_threads=num_threads, progress_bar=progress_bar)
    )
    ordered = [results[index] for index in range(len(jobs))]
    failed = [index for index, result in enumerate(ordered) if isinstance(result, Exception)]
    if failed and on_error == "raise":
        error = results[failed[0]]
        if isinstance(error, Exception):
            error.add_note(f"Failed in a batch: {len(failed)} of {len(jobs)} programs, at {failed[:20]}; this is the first.")
            raise error
    return ordered


def as_completed(
    jobs: Sequence[Job], backend: Backend, *, num_threads: int | Literal["auto"], progress_bar: bool
) -> Iterator[tuple[int, Run[Any] | Exception]]:
    """`(index, run or exception)` as each is done."""
    threads = AUTO_THREADS if num_threads == "auto" else num_threads
    if not isinstance(threads, int) or threads < 1:
        raise ProgramMistake(f"num_threads must be 'auto' or at least 1, got {num_threads!r}.")
    return _as_completed(jobs, backend, min(threads, len(jobs)), progress_bar=progress_bar)


def _as_completed(
    jobs: Sequence[Job], backend: Backend, threads: int, *, progress_bar: bool
) -> Iterator[tuple[int, Run[Any] | Exception]]:
    if not jobs:
        return
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(_progress(len(jobs))) if progress_bar else None
        executor = stack.enter_context(Executor(backend, max_concurrency=jobs[0].config.max_concurrency))
        pool = stack.enter_context(futures.ThreadPoolExecutor(threads, thread_name_prefix="branchpoint-batch"))
        stack.callback(_stop, executor, pool)
        running = {pool.submit(_one, job, backend, executor): index for index, job in enumerate(jobs)}
        for future in futures.as_completed(running):
            if advance is not None:
                advance()
            yield running[future], future.result()


def _one(job: Job, backend: Backend, executor: Executor) -> Run[Any] | Exception:
    try:
        return run_here(job, backend, executor)
    except Exception as error:  # noqa: BLE001  # the program's boundary: what it raises is its own result
        return error


def _stop(executor: Executor, pool: futures.ThreadPoolExecutor) -> None:
    """What is still to come never starts, what runs is aborted; after the last result neither is left."""
    pool.shutdown(wait=False, cancel_futures=True)
    executor.cancel()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), auto_refresh=False) as progress:
        task = progress.add_task("programs", total=total)

        def advance() -> None:
            progress.advance(task)
            progress.refresh()

        yield advance
