"""The text of a state as it comes: its ledger's entries one after another, each with its own stream.

A state's readers end at what it holds so far, a run's when the run does; the executor copies the streams of all branches.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from branchpoint.lang.chain import walk
from branchpoint.lang.errors import ProgramError, ProgramMistake, UnknownVariable
from branchpoint.lang.ledger import Entry, Pending
from branchpoint.lang.stream import Reader, Replay
from branchpoint.lang.variables import CallEntry, Thoughts, Variable

__all__ = ["Cancel", "Log", "follow", "pieces", "read_coming", "read_so_far", "read_to_end", "read_variable"]

Log = Replay[Entry]
"""The entries that a state itself added, in order."""

Cancel = Callable[[CallEntry], None]
"""Aborts a call that nobody reads any more."""


def _of(entry: Entry) -> Replay[str] | list[str]:
    return entry.pieces if isinstance(entry, Pending) else [segment.text for segment in entry.segments]


def pieces(entries: Iterable[Entry]) -> Iterator[str]:
    """The text of these entries, piece by piece. Raises what one of them failed with."""
    for entry in entries:
        yield from _of(entry)


def _seen(entries: Iterable[Entry], stream: Replay[str] | None = None) -> Iterator[str]:
    """As `pieces`, for a program that reads its own state: what fails has been seen by it."""
    for entry in entries:
        try:
            yield from _of(entry) if stream is None else stream
        except ProgramError:
            if isinstance(entry, Pending):
                entry.check()
            raise


async def follow(log: Log) -> AsyncIterator[str]:
    """The text of a log to its end, in an event loop."""
    async for entry in log:
        async for piece in _asynchronous(_of(entry)):
            yield piece


async def _asynchronous(source: Replay[str] | list[str]) -> AsyncIterator[str]:
    if isinstance(source, Replay):
        async for piece in source:
            yield piece
    else:
        for piece in source:
            yield piece


async def _follow(sources: Iterable[Replay[str] | list[str]]) -> AsyncIterator[str]:
    for source in sources:
        async for piece in _asynchronous(source):
            yield piece


def read_so_far(tail: Entry | None, cancel: Cancel | None) -> Reader[str]:
    """A reader of the text up to `tail`; it ends there. `cancel` is called for each call whose only reader goes."""
    entries = list(walk(tail))
    return Reader(_seen(entries), _follow(map(_of, entries)), _counted(_calls(entries), cancel))


def read_variable(name: str, variable: Variable, cancel: Cancel | None) -> Reader[str]:
    """A reader of the text of `variable`, which `name` stands for. Raises ProgramMistake where no call makes it."""
    entry = variable.entry if isinstance(variable, Thoughts) else variable
    stream = entry.stream_of(name) if isinstance(entry, CallEntry) else None
    if stream is None or not isinstance(entry, CallEntry):
        raise ProgramMistake(f"Variable {name!r} was not made by gen or select, so there is no stream of it.")
    return Reader(_seen([entry], stream), _asynchronous(stream), _counted([entry], cancel))


def read_to_end(log: Log, on_last_close: Callable[[], None] | None) -> Reader[str]:
    """A reader of a log's text until the run is over. `on_last_close` is called when the only reader goes before that."""
    log.enter()

    def close() -> None:
        if log.leave() and on_last_close is not None:
            on_last_close()

    return Reader(pieces(log), follow(log), close)


def read_coming(log: Log, name: str, cancel: Cancel | None) -> Reader[str]:
    """A reader of the first call named `name`, which may come later; raises UnknownVariable if it doesn't."""
    found: list[CallEntry] = []
    streams: list[Replay[str]] = []

    def keep(entry: Entry) -> bool:
        if isinstance(entry, CallEntry) and (stream := entry.stream_of(name)) is not None:
            found.append(entry)
            streams.append(stream)
            entry.pieces.enter()
        return bool(found)

    def synchronous() -> Iterator[str]:
        if not any(map(keep, log)):
            raise _unknown(name)
        yield from streams[0]

    async def asynchronous() -> AsyncIterator[str]:
        async for entry in log:
            if keep(entry):
                break
        else:
            raise _unknown(name)
        async for piece in streams[0]:
            yield piece

    return Reader(synchronous(), asynchronous(), lambda: _leave(found, cancel))


def _calls(entries: Iterable[Entry]) -> list[CallEntry]:
    return [entry for entry in entries if isinstance(entry, CallEntry)]


def _counted(calls: list[CallEntry], cancel: Cancel | None) -> Callable[[], None]:
    for entry in calls:
        entry.pieces.enter()
    return lambda: _leave(calls, cancel)


def _leave(calls: list[CallEntry], cancel: Cancel | None) -> None:
    for entry in calls:
        if entry.pieces.leave() and cancel is not None:
            cancel(entry)


def _unknown(name: str) -> UnknownVariable:
    return UnknownVariable(f"No gen or select of the state is named {name!r}; its run is over.")
