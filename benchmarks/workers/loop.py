"""The line protocol that every worker speaks."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["serve"]

Work = dict[str, Any]


def serve(run: Callable[[Work], int]) -> None:
    """Answer work orders from standard input until it ends; `run` returns how many tokens it generated."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        start = time.perf_counter()
        tokens = run(work)
        print(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens}), flush=True)
