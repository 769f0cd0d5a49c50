"""What all models of one server have in common: options, counts of HTTP requests, kept responses, traces, threads that tokenise.

Made by `Models`; each model's `Gateway` has it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from branchpoint.runtime.metric_board import MetricFamilies
from branchpoint.runtime.serving.http_metrics import HttpMetrics
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.response_store import ResponseStore
from branchpoint.runtime.serving.traces import Traces

__all__ = ["Shared"]

T = TypeVar("T")


class Shared:
    """One per API process. `traces` are told of each request."""

    def __init__(self, settings: ServerOptions, traces: Traces | None = None) -> None:
        self.settings = settings
        self.http = HttpMetrics()
        self.families = MetricFamilies()
        self.responses = ResponseStore(settings.max_stored_responses)
        self.traces = traces or Traces()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work`, which would hold up the event loop, on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Give back the threads; what is still to be told of requests goes out."""
        self.traces.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
