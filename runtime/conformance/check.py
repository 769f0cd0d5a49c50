"""One thing that clients expect of a server, and how a check says that it isn't so.

Checks are made by the modules of each client, listed by `catalogue`, run by `report`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from branchpoint.errors import BranchpointError
from branchpoint.runtime.conformance.server import Server

__all__ = ["Check", "Mismatch", "checks", "equal", "expect", "refused"]

_LONGEST = 200


class Mismatch(BranchpointError, AssertionError):
    """The server's answer isn't what its clients expect: what was expected, and what came."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, under the name of the client it asks through. Raises whatever keeps it from holding."""

    client: str
    run: Callable[[Server], None]

    @property
    def name(self) -> str:
        """`client:function`."""
        return f"{self.client}:{self.run.__name__.lstrip('_')}"

    @property
    def holds(self) -> str:
        """What it holds, in a sentence."""
        return (self.run.__doc__ or "").strip()


def checks(client: str, *functions: Callable[[Server], None]) -> tuple[Check, ...]:
    """Functions as checks through `client`."""
    return tuple(Check(client, function) for function in functions)


def expect(true: object, what: str) -> None:
    """Raises Mismatch unless it is true; `what` says what was expected, and what came."""
    if not true:
        raise Mismatch(_clip(what))


def equal(came: object, wanted: object, what: str) -> None:
    """Raises Mismatch unless both are equal; `what` names what they are."""
    if came != wanted:
        raise Mismatch(f"{what}: expected {_clip(repr(wanted))}, came {_clip(repr(came))}")


def refused(error: type[Exception], what: str, ask: Callable[..., object], /, *args: object, **fields: object) -> Exception:
    """The `error` that asking raises. Raises Mismatch where the server answers instead; other errors go through."""
    try:
        answer = ask(*args, **fields)
    except error as came:
        return came
    raise Mismatch(f"{what}: expected {error.__name__}, came an answer: {_clip(repr(answer))}")


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
