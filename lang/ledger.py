"""The ledger of a state: a chain of entries, each knowing the one before it, so that a fork copies nothing.

`State` appends entries, the executor settles the pending ones, and `chain.py` reads what they amount to.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from branchpoint.lang.chat import Turn
from branchpoint.lang.errors import BackendError, Origin, OutOfBudget, ProgramError, said_by
from branchpoint.lang.latch import Latch
from branchpoint.lang.stream import Replay
from branchpoint.runtime.messages import Segment, Text

if TYPE_CHECKING:
    import asyncio

    from branchpoint.lang.context import RunContext

__all__ = ["Entry", "Failure", "Pending", "Place", "RoleEntry", "Splice", "TextEntry"]


class Place:
    """Where in a run a state stands. `path` alternates fork number and branch number, `branch` has the branch numbers only.

    `last_call` is the index of the last call that the state will make, where that is known beforehand; `latest` that of the last
    one so far, None where branches go on from there. A branch that was `joined` is not expected to be added to.
    """

    __slots__ = ("branch", "context", "dropped", "joined", "last_call", "latest", "parent", "path", "siblings", "tolerant")

    def __init__(
        self,
        context: "RunContext",
        parent: "Place | None" = None,
        path: tuple[int, ...] = (),
        branch: tuple[int, ...] = (),
        siblings: int = 1,
    ) -> None:
        self.context = context
        self.parent = parent
        self.path = path
        self.branch = branch
        self.siblings = siblings
        self.tolerant = False
        self.dropped: str | None = None
        self.last_call: int | None = None
        self.latest: int | None = None
        self.joined = False

    def child(self, fork: int, number: int, siblings: int) -> "Place":
        """The place of branch `number` of the state's fork `fork`."""
        return Place(self.context, self, (*self.path, fork, number), (*self.branch, number), siblings)

    def _upwards(self) -> "Iterator[Place]":
        """This place and those that it came out of: a tree may be deeper than Python's stack."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    @property
    def tolerated(self) -> bool:
        """Whether the program said that this branch may fail."""
        return any(place.tolerant for place in self._upwards())

    @property
    def ended(self) -> str | None:
        """Why the program gave this branch up, None where it goes on."""
        return next((place.dropped for place in self._upwards() if place.dropped), None)

    def goes_on_after(self, call: int) -> bool:
        """Whether something is to be expected behind the call of this index, as far as is known now."""
        last = self.latest if self.joined or self.context.written else self.last_call
        return last is None or call < last

    def within(self, other: "Place") -> bool:
        """Whether this is `other`, or came out of it."""
        return self.path[: len(other.path)] == other.path


class Failure:
    """What a call failed with. `observed` once the program was told of it."""

    def __init__(self, entry: "Pending", cause: BaseException) -> None:
        self.entry = entry
        self.cause = cause
        self.observed = False

    @property
    def unseen(self) -> bool:
        """Whether the program neither saw this, nor said that it may happen, nor took the call back."""
        return not (self.observed or self.entry.dropped or self.entry.place.tolerated)

    def error(self) -> ProgramError:
        """A new error to raise, the cause chained."""
        entry, cause = self.entry, self.cause
        place = entry.place
        where = f"{entry.origin}" + (f", branch {'.'.join(map(str, place.branch))}" if place.branch else "")
        if isinstance(cause, OutOfBudget):
            return OutOfBudget(
                f"{entry.label} of program {place.context.program!r} was cut ({where}): {cause} So far: {cause.partial[:200]!r}",
                variable=entry.name,
                program=place.context.program,
                origin=entry.origin,
                branch=place.branch,
                partial=cause.partial,
            )
        backend = cause if isinstance(cause, BackendError) else None
        status = f"status {backend.status}: " if backend is not None and backend.status is not None else ""
        error = ProgramError(
            f"{entry.label} of program {place.context.program!r} failed ({where}): {status}{said_by(cause)}",
            variable=entry.name,
            program=place.context.program,
            origin=entry.origin,
            branch=place.branch,
            status=backend.status if backend is not None else None,
            body=backend.body if backend is not None else "",
        )
        error.__cause__ = cause
        return error


class Entry:
    """One thing in a ledger, after `previous`. `in_chat`: whether a role has been opened up to here."""

    __slots__ = ("in_chat", "origin", "previous")

    def __init__(self, previous: "Entry | None", origin: Origin) -> None:
        self.previous = previous
        self.origin = origin
        self.in_chat: bool = previous is not None and previous.in_chat

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What it adds to the prompt, once it is settled."""
        return ()


class TextEntry(Entry):
    """Constant text."""

    __slots__ = ("text",)

    def __init__(self, previous: Entry | None, origin: Origin, text: str) -> None:
        super().__init__(previous, origin)
        self.text = text

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The text, in which no special token is looked for."""
        return (Text(self.text),)


class Pending(Entry):
    """An entry that the executor settles, after `gate`, the nearest pending entry before it. `pieces` is its text as it comes.

    `dropped` says why the program took it back, None where it didn't; `unwanted`: the only reader of the call has gone.
    """

    __slots__ = (
        "_settled",
        "done",
        "dropped",
        "failure",
        "gate",
        "pieces",
        "place",
        "prompt",
        "rebase",
        "result",
        "task",
        "unwanted",
    )

    def __init__(self, previous: Entry | None, origin: Origin, place: Place, gate: "Pending | None") -> None:
        super().__init__(previous, origin)
        self.place = place
        self.gate = gate
        lock = place.context.lock
        self.done = Latch(lock)
        self.pieces: Replay[str] = Replay(lock)
        self.failure: Failure | None = None
        self.dropped: str | None = None
        self.rebase: tuple[Segment, ...] | None = None
        self.prompt: tuple[Segment, ...] | None = None
        self.result: tuple[Segment, ...] = ()
        self.task: asyncio.Task[None] | None = None
        self.unwanted = False
        self._settled = False

    @property
    def name(self) -> str | None:
        """The variable that it sets."""
        return None

    @property
    def label(self) -> str:
        """How errors call it."""
        return "a node"

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What came out."""
        return self.result

    def streams(self) -> Iterable[Replay[str]]:
        """What its readers read; all end when it is settled."""
        return (self.pieces,)

    def settle(self, failure: Failure | None) -> bool:
        """Mark as done; False where it was already. Called with the run's lock held."""
        if self._settled:
            return False
        self._settled = True
        self.failure = failure
        rolled_back = self.dropped is not None and self.place.ended is None  # a reader goes on with what comes in its place
        for stream in self.streams():
            stream.end(failure.error if failure is not None and not rolled_back else None)
        self.gate = None
        return True

    def wait(self) -> None:
        """Wait until it is settled. Raises ProgramError where it, or something before it, failed."""
        if not self.done.is_set:
            self.place.context.check_caller()
        self.done.wait()
        self.check()

    def check(self) -> None:
        """Raise ProgramError where it is known to have failed; the program has seen it then."""
        if self.failure is not None:
            self.failure.observed = True
            raise self.failure.error()


class RoleEntry(Pending):
    """Opens or closes a role; its text is the chat template's."""

    __slots__ = ("opens", "role", "turns")

    def __init__(
        self, previous: Entry | None, origin: Origin, place: Place, gate: Pending | None, *, role: str, opens: bool
    ) -> None:
        super().__init__(previous, origin, place, gate)
        self.role = role
        self.opens = opens
        self.in_chat = True
        self.turns: tuple[Turn, ...] | None = None

    @property
    def label(self) -> str:
        """How errors call it."""
        return f"The {'beginning' if self.opens else 'end'} of role {self.role!r}"


class Splice(Pending):
    """What the branches of a fork wrote, one after another; `tails` are their last entries, `base` the one they began from."""

    __slots__ = ("base", "gates", "tails")

    def __init__(
        self,
        previous: Entry | None,
        origin: Origin,
        place: Place,
        gate: Pending | None,
        *,
        base: Entry | None,
        tails: tuple[Entry | None, ...],
        gates: tuple[Pending, ...],
    ) -> None:
        super().__init__(previous, origin, place, gate)
        self.base = base
        self.tails = tails
        self.gates = gates
        self.in_chat = self.in_chat or any(tail is not None and tail.in_chat for tail in tails)
