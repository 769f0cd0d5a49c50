"""When a request that was answered with an error is sent again. Rules for `connection.py`.

A request that may be running isn't repeated by any of them: only an answer, which says that it isn't, leads to another try.
"""

import random
from collections.abc import Callable
from http import HTTPStatus

import httpx

__all__ = ["Retry", "when_safe", "when_told"]

Retry = Callable[[httpx.Response, str, float], float | None]
"""From an answer that isn't 200, its body, and the pause that would be next: the seconds to wait, or None not to try again."""

_LONGEST_TOLD = 60.0  # who asks for more gets it from the user, not from a program that seems to hang
_LONGEST_LOCAL = 5.0
_OVERLOADED = 529  # Anthropic's
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, _OVERLOADED})
_FINAL = ("insufficient_quota", "billing_hard_limit_reached", "credit balance is too low")


def when_told(response: httpx.Response, body: str, pause: float) -> float | None:
    """Only where the server was full and says when to come again."""
    told = response.headers.get("Retry-After", "")
    full = response.status_code == HTTPStatus.SERVICE_UNAVAILABLE and told.isdecimal()
    return min(float(told), _LONGEST_LOCAL) if full else None


def when_safe(response: httpx.Response, body: str, pause: float) -> float | None:
    """Rate limits and passing failures of a service: generating changes nothing there, so asking again does no harm.

    Waits as long as the service says, else about `pause`. Not where it says that it is no use: an empty account, a long wait.
    """
    if response.status_code not in _PASSING or response.headers.get("x-should-retry") == "false":
        return None
    if any(reason in body for reason in _FINAL):
        return None
    told = _seconds(response)
    if told is None:
        return pause * random.uniform(0.75, 1.25)  # it keeps many clients from coming back at once
    return told if told <= _LONGEST_TOLD else None


def _seconds(response: httpx.Response) -> float | None:
    for header, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(header, "")) * unit
        except ValueError:
            continue
        if seconds >= 0:
            return seconds
    return None
