"""The text of a state as it comes: its ledger's entries one after another, each with its own stream.

`State.text_iter` reads it in threads, `text_async_iter` in event loops, the executor for the stream of all branches.
"""

from collections.abc import AsyncIterator, Callable, Iterator

from branchpoint.lang.errors import UnknownVariable
from branchpoint.lang.ledger import Entry, Pending, walk
from branchpoint.lang.stream import Reader, Replay
from branchpoint.lang.variables import CallEntry

__all__ = ["Log", "follow", "pieces", "read_text", "read_variable"]

Log = Replay[Entry]
"""The entries that a state itself added, in order."""


def _of(entry: Entry) -> Replay[str] | list[str]:
    return entry.pieces if isinstance(entry, Pending) else [segment.text for segment in entry.segments]


def pieces(log: Log, base: Entry | None = None) -> Iterator[str]:
    """The text before the log (up to `base`), then that of the log, piece by piece. Raises what the state failed with."""
    for entry in walk(base):
        yield from _of(entry)
    for entry in log:
        yield from _of(entry)


async def follow(log: Log, base: Entry | None = None) -> AsyncIterator[str]:
    """As `pieces`, in an event loop."""
    for entry in walk(base):
        async for piece in _asynchronous(_of(entry)):
            yield piece
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


def read_text(log: Log, base: Entry | None, on_last_close: Callable[[], None] | None) -> Reader[str]:
    """A reader of the whole text. `on_last_close` is called when the only reader goes before the end."""
    log.enter()

    def close() -> None:
        if log.leave() and on_last_close is not None:
            on_last_close()

    return Reader(pieces(log, base), follow(log, base), close)


def read_variable(log: Log, base: Entry | None, name: str, cancel: Callable[[CallEntry], None] | None) -> Reader[str]:
    """A reader of the first call named `name`, which may come later; raises UnknownVariable if it doesn't."""
    found: list[CallEntry] = []

    def keep(entry: Entry) -> bool:
        if isinstance(entry, CallEntry) and entry.name == name and not found:
            found.append(entry)
            entry.pieces.enter()
        return bool(found)

    def synchronous() -> Iterator[str]:
        if any(map(keep, walk(base))) or any(map(keep, log)):
            yield from found[0].pieces
        else:
            raise _unknown(name)

    async def asynchronous() -> AsyncIterator[str]:
        if not any(map(keep, walk(base))):
            async for entry in log:
                if keep(entry):
                    break
            else:
                raise _unknown(name)
        async for piece in found[0].pieces:
            yield piece

    def close() -> None:
        for entry in found:
            if entry.pieces.leave() and cancel is not None:
                cancel(entry)

    return Reader(synchronous(), asynchronous(), close)


def _unknown(name: str) -> UnknownVariable:
    return UnknownVariable(f"No gen or select of the state is named {name!r}; its run is over.")
