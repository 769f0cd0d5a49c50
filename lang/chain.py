"""What a chain of settled ledger entries amounts to: a prompt, a text, a conversation.

Called by the executor before each call, and by reads. Now and then an entry keeps what was found up to it, so that a long
ledger isn't read from its start for every call.
"""

import itertools
from collections.abc import Iterable, Iterator

from branchpoint.lang.chat import Turn
from branchpoint.lang.ledger import Entry, Pending, RoleEntry, Splice
from branchpoint.runtime.messages import Segment, Text

__all__ = ["prompt_of", "text_of", "turns_of", "walk"]

_KEEP_EVERY = 64  # entries


def _links(tail: Entry | None, base: Entry | None) -> list[Entry]:
    chain: list[Entry] = []
    while tail is not None and tail is not base:
        chain.append(tail)
        tail = tail.previous
    chain.reverse()
    return chain


def _flat(entry: Entry) -> Iterable[Entry]:
    if isinstance(entry, Splice):
        return itertools.chain.from_iterable(walk(branch, entry.base) for branch in entry.tails)
    return (entry,)


def walk(tail: Entry | None, base: Entry | None = None) -> Iterator[Entry]:
    """The entries after `base` up to `tail`, in order; a splice gives those of its branches."""
    for entry in _links(tail, base):
        yield from _flat(entry)


def prompt_of(tail: Entry | None) -> tuple[Segment, ...]:
    """The segments of a settled chain; neighbouring constant texts of a kind are one."""
    links: list[Entry] = []
    segments: list[Segment] = []
    entry = tail
    while entry is not None:
        if isinstance(entry, Pending) and entry.prompt is not None:
            segments = list(entry.prompt)
            break
        links.append(entry)
        entry = entry.previous
    keeper = next((link for link in links if isinstance(link, Pending)), None) if len(links) > _KEEP_EVERY else None
    for link in reversed(links):
        for entry in _flat(link):
            if isinstance(entry, Pending) and entry.rebase is not None:
                segments = list(entry.rebase)
            else:
                _join(segments, entry.segments)
        if keeper is not None and link is keeper:
            keeper.prompt = tuple(segments)
    return tuple(segments)


def _join(segments: list[Segment], more: Iterable[Segment]) -> None:
    for segment in more:
        last = segments[-1] if segments else None
        if isinstance(segment, Text) and isinstance(last, Text) and segment.special == last.special:
            segments[-1] = Text(last.text + segment.text, segment.special)
        else:
            segments.append(segment)


def text_of(tail: Entry | None, base: Entry | None = None) -> str:
    """The text that a settled chain adds after `base`."""
    if base is None:
        return "".join(segment.text for segment in prompt_of(tail))
    return "".join(segment.text for entry in walk(tail, base) for segment in entry.segments)


def turns_of(tail: Entry | None) -> tuple[Turn, ...]:
    """The conversation of a settled chain; text outside roles is a turn without one. The last turn may still be open."""
    start = tail
    while start is not None and not (isinstance(start, RoleEntry) and start.turns is not None):
        start = start.previous
    turns = list(start.turns or ()) if isinstance(start, RoleEntry) else []
    links = _links(tail, start)
    role: str | None = None
    content: list[Segment] = []
    for number, link in enumerate(links):
        for entry in _flat(link):
            if not isinstance(entry, RoleEntry):
                content.extend(entry.segments)
                continue
            if content or not entry.opens:
                turns.append(Turn(role, tuple(content)))
                content.clear()
            role = entry.role if entry.opens else None
        if isinstance(link, RoleEntry) and not link.opens and number >= _KEEP_EVERY:
            link.turns = tuple(turns)
    if content or role is not None:
        turns.append(Turn(role, tuple(content)))
    return tuple(turns)
