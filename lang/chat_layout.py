"""Where the contents of messages lie in the text that a chat template makes of them.

Used by `chat.py`. The template is rendered twice: with marks for contents (what is left is its own text) and with the contents
themselves (some templates trim them, quote them, or drop earlier thinking); here the two are laid over one another.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Marked", "Piece", "Said", "lay_out", "mark_contents"]

_MARK = re.compile(r"part(\d+)mark7f3a", re.IGNORECASE)
_TAGS = re.compile(r"(</?think>)")


@dataclass(frozen=True, slots=True)
class Said:
    """Characters `start` to `end` of the content of message `turn`, written as `text` (the same, unless it was quoted)."""

    turn: int
    start: int
    end: int
    text: str


Piece = str | Said
"""The template's own text, or something said in a message."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Contents with marks in place of what was said. White space alone stays: templates ask whether a message is empty."""

    contents: tuple[str, ...]
    parts: tuple[Said, ...]


def mark_contents(roles: Sequence[str], contents: Sequence[str]) -> Marked:
    """Put marks in contents. In the assistant's, thinking and answer are marked apart, the tags around thinking stay."""
    marked: list[str] = []
    parts: list[Said] = []
    for turn, (role, content) in enumerate(zip(roles, contents, strict=True)):
        pieces = _TAGS.split(content) if role == "assistant" else [content]
        at = 0
        shown = ""
        for number, piece in enumerate(pieces):
            if number % 2 or not piece.strip():
                shown += piece
            else:
                shown += f"part{len(parts)}mark7f3a"
                parts.append(Said(turn, at, at + len(piece), piece))
            at += len(piece)
        marked.append(shown)
    return Marked(tuple(marked), tuple(parts))


def lay_out(skeleton: str, rendered: str | None, contents: Sequence[str], parts: Sequence[Said]) -> list[Piece] | None:
    """The pieces that `rendered` consists of, by the marks of `skeleton`; None where the two don't fit together.

    Without `rendered` every content is taken to stand as it is.
    """
    split = _MARK.split(skeleton)
    texts, marked = split[::2], [parts[int(number)] for number in split[1::2]]
    said = marked if rendered is None else _match(texts, marked, rendered)
    if said is None:
        return None
    pieces: list[Piece] = [texts[0]]
    for part, text in zip(said, texts[1:], strict=True):
        _add(pieces, part, contents[part.turn])
        pieces.append(text)
    return _absorb_ends(pieces, contents)


def _match(texts: Sequence[str], marked: Sequence[Said], rendered: str) -> list[Said] | None:
    """What each mark stands for, so that everything together is `rendered`."""
    if not rendered.startswith(texts[0]) or (not marked and rendered != texts[0]):
        return None
    found: list[Said] = []
    ends = [len(texts[0])]
    tries = [_variants(marked[0])] if marked else []
    dead: set[tuple[int, int]] = set()  # a place and a position in `rendered` from which nothing fits
    while len(found) < len(marked):
        place, at = len(found), ends[-1]
        fitting = next((said for said in tries[-1] if _fits(said, texts[place + 1], rendered, at)), None)
        if fitting is None or (place, at) in dead:
            dead.add((place, at))
            tries.pop()
            ends.pop()
            if not found:
                return None
            found.pop()
            continue
        end = at + len(fitting.text) + len(texts[place + 1])
        if place + 1 == len(marked) and end != len(rendered):
            continue
        found.append(fitting)
        ends.append(end)
        if len(found) < len(marked):
            tries.append(_variants(marked[len(found)]))
    return found


def _fits(said: Said, following: str, rendered: str, at: int) -> bool:
    return rendered.startswith(said.text, at) and rendered.startswith(following, at + len(said.text))


def _variants(part: Said) -> Iterator[Said]:
    """What templates make of a content: nothing, mostly; or they trim it, or quote it as JSON."""
    text = part.text
    yield part
    seen = {text}
    for characters in (None, "\n"):
        for short in (text.strip(characters), text.lstrip(characters), text.rstrip(characters)):
            if short not in seen:
                seen.add(short)
                start = part.start + (len(text) - len(text.lstrip(characters)) if not text.startswith(short) else 0)
                yield Said(part.turn, start, start + len(short), short)
    for quoted in (json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]):
        if quoted not in seen:
            seen.add(quoted)
            yield Said(part.turn, part.start, part.end, quoted)


def _add(pieces: list[Piece], part: Said, content: str) -> None:
    """Append, joined with what was said before in the same message where the text between is the message's own."""
    between = pieces[-1]
    before = pieces[-2] if len(pieces) > 1 else None
    if (
        isinstance(before, Said)
        and before.turn == part.turn
        and content[before.start : part.end] == f"{before.text}{between}{part.text}"
    ):
        pieces[-2:] = [Said(part.turn, before.start, part.end, content[before.start : part.end])]
    else:
        pieces.append(part)


def _absorb_ends(pieces: list[Piece], contents: Sequence[str]) -> list[Piece]:
    """Take tags at the edges of a message, which the template left where they were, as part of what was said."""
    for place in range(1, len(pieces), 2):
        said, before, after = pieces[place], pieces[place - 1], pieces[place + 1]
        assert isinstance(said, Said) and isinstance(before, str) and isinstance(after, str), "texts and contents alternate"
        content = contents[said.turn]
        if said.text != content[said.start : said.end]:
            continue
        head, tail = content[: said.start], content[said.end :]
        if head.strip() and before.endswith(head):
            pieces[place - 1], said = before[: len(before) - len(head)], Said(said.turn, 0, said.end, head + said.text)
        if tail.strip() and after.startswith(tail):
            pieces[place + 1], said = after[len(tail) :], Said(said.turn, said.start, len(content), said.text + tail)
        pieces[place] = said
    return pieces
