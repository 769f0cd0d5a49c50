"""What one API key may use: requests and tokens a minute, and requests at once. Asked by `auth` and by the gateway.

Buckets fill steadily, so that a minute's allowance can't be had twice around the turn of a minute.
"""

import math
import time
from collections.abc import Callable

import msgspec

from branchpoint.runtime.serving.errors import ApiError

__all__ = ["KeyLimits", "Quota"]

MINUTE = 60.0


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key; None: none. Tokens are those of prompts (cached ones too) and outputs."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class _Bucket:
    """Holds at most `size`, and is full again after a minute. What costs more than there is leaves a debt."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._size = size
        self._clock = clock
        self._level = float(size)
        self._seen = clock()

    def wait(self) -> float:
        """Seconds until there is at least one."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._seen) * self._size / MINUTE)
        self._seen = now
        return max(0.0, (1 - self._level) * MINUTE / self._size)

    def take(self, amount: int) -> None:
        self._level -= amount


class Quota:
    """How far one key has used up its limits. Belongs to one event loop. `clock` gives seconds."""

    def __init__(self, limits: KeyLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._requests = _Bucket(limits.requests_per_minute, clock) if limits.requests_per_minute else None
        self._tokens = _Bucket(limits.tokens_per_minute, clock) if limits.tokens_per_minute else None
        self._open = 0

    def count_request(self) -> None:
        """Take one request. Raises ApiError 429 where the key has none left."""
        if self._requests is not None:
            _check(self._requests, f"{self._limits.requests_per_minute} requests a minute")
            self._requests.take(1)

    def enter(self, prompt_tokens: int) -> None:
        """Start a request that computes. Raises ApiError 429 where the key has too many, or no tokens left."""
        most = self._limits.concurrency
        if most is not None and self._open >= most:
            raise _over(f"{most} requests at once", 1)
        if self._tokens is not None:
            _check(self._tokens, f"{self._limits.tokens_per_minute} tokens a minute")
            self._tokens.take(prompt_tokens)
        self._open += 1

    def leave(self, output_tokens: int) -> None:
        """A request that was started has ended, after so many tokens of output."""
        self._open -= 1
        if self._tokens is not None:
            self._tokens.take(output_tokens)


def _check(bucket: _Bucket, what: str) -> None:
    seconds = bucket.wait()
    if seconds > 0:
        raise _over(what, math.ceil(seconds))


def _over(what: str, seconds: int) -> ApiError:
    return ApiError(429, f"This API key may use {what}; try again in {seconds} s.", retry_after=seconds)
