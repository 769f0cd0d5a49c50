"""What the language raises. Every failure of a run reaches the caller as one of these, with its cause chained.

BranchpointError
├── ProgramError (RuntimeError)      a call of a program failed: which variable, which line, the backend's status
├── BackendError (RuntimeError)      what a backend answered instead of tokens: status and body
├── Incomplete (ValueError)          a typed or constrained value that was cut
│   └── OutOfBudget (ProgramError)   a call that the run's budget of tokens or of time cut, or never let begin
├── UnknownVariable (KeyError)       a name that the program has not set
├── ProgramMistake (TypeError)       the program itself can't be run as written
└── NotSupported (RuntimeError)      a known name or option that this version or this backend can't serve
"""

import asyncio

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.messages import Usage

__all__ = [
    "BackendError",
    "CallCancelled",
    "Incomplete",
    "NotSupported",
    "Origin",
    "OutOfBudget",
    "ProgramError",
    "ProgramMistake",
    "UnknownVariable",
    "said_by",
]


class Origin(msgspec.Struct, frozen=True):
    """The line of the user's program that added a node."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}" if self.file else "an unknown line"


def said_by(error: BaseException) -> str:
    """What an error says; its type where it says nothing, or its own `__str__` fails."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # the boundary to errors of others: they must be told of, not fail themselves
        said = ""
    return said or type(error).__name__


class BackendError(BranchpointError, RuntimeError):
    """A backend answered with an error: `status` is its HTTP status (None without HTTP), `body` what it sent."""

    def __init__(self, message: str, *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class ProgramError(BranchpointError, RuntimeError):
    """A call of a program failed, or something was asked that comes after such a call.

    `variable` is the name of the call that failed (None where it has none), `origin` its line, `branch` the way of forks to its
    state, `status` and `body` the backend's answer. The cause is chained.
    """

    def __init__(
        self,
        message: str,
        *,
        variable: str | None = None,
        program: str = "",
        origin: Origin | None = None,
        branch: tuple[int, ...] = (),
        status: int | None = None,
        body: str = "",
    ) -> None:
        super().__init__(message)
        self.variable = variable
        self.program = program
        self.origin = origin
        self.branch = branch
        self.status = status
        self.body = body


class Incomplete(BranchpointError, ValueError):
    """A typed or constrained value was cut before it was whole; `partial` is the text that there is."""

    def __init__(self, message: str, *, variable: str | None, partial: str) -> None:
        super().__init__(message)
        self.variable = variable
        self.partial = partial


class OutOfBudget(ProgramError, Incomplete):
    """The run's budget (`RunConfig(max_total_tokens=, deadline=)`) cut a call; `partial` is the text that came before that."""

    def __init__(
        self,
        message: str,
        *,
        variable: str | None = None,
        program: str = "",
        origin: Origin | None = None,
        branch: tuple[int, ...] = (),
        partial: str = "",
        usage: Usage | None = None,
    ) -> None:
        BranchpointError.__init__(self, message)
        self.variable = variable
        self.program = program
        self.origin = origin
        self.branch = branch
        self.status = None
        self.body = ""
        self.partial = partial
        self.usage = usage


class CallCancelled(asyncio.CancelledError):
    """What a backend raises in place of CancelledError, where it knows what the cancelled call has cost."""

    def __init__(self, usage: Usage) -> None:
        super().__init__()
        self.usage = usage


class UnknownVariable(BranchpointError, KeyError):
    """A variable was read that no line before it sets."""

    def __str__(self) -> str:
        return str(self.args[0])


class ProgramMistake(BranchpointError, TypeError):
    """The program can't be run as written: a wrong argument, a role that isn't open, an expression of the wrong type."""


class NotSupported(BranchpointError, RuntimeError):
    """A known name or option that this version, or this backend, can't serve."""
