"""The text around roles, found by rendering growing conversations with the model's own chat template (LANGUAGE R1).

The executor asks for what opens or closes a role; `chat_layout.py` tells the template's own text, in which special tokens are
special, from what is said in messages, in which nothing is. A rendering with marks for contents serves all programs of a shape.
"""

import asyncio
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from branchpoint.lang.backends.base import Backend, is_writing
from branchpoint.lang.chat_layout import Marked, Piece, Said, lay_out, mark_contents
from branchpoint.lang.errors import ProgramMistake
from branchpoint.runtime.messages import Ids, Segment, Text

__all__ = ["ChatText", "ChatWarning", "RoleText", "Turn"]

_KEPT = 256  # renderings that are remembered: each is asked for again one edge of a role later, or by the next program
_FRESH = 60.0  # seconds for which they are: a template may tell the date
_OPEN = "open"


class ChatWarning(UserWarning):
    """The model's chat template costs something that it needn't: reuse of the cache, or exactness."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, or (role None) text that stands outside roles."""

    role: str | None
    content: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleText:
    """`text` comes next. Where the template rewrote earlier turns, `rebase` is the whole prompt, `text` included."""

    text: str
    rebase: tuple[Segment, ...] | None = None


class ChatText:
    """Finds the template's text for one backend. Not thread-safe; a backend may keep one for all its programs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rendered: OrderedDict[_Asked, tuple[float, str]] = OrderedDict()  # when, and what

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """What comes between the last of `turns` (all closed) and the content of a new turn of `role`.

        `prompt` is what there is so far. Raises ProgramMistake where the template leaves out a message, and what `render` raises.
        """
        if role == "assistant" and any(turn.role for turn in turns):
            pieces = await self._pieces(turns, add_generation_prompt=True)
            _check_complete(pieces, turns)
            if await self._loses_reuse(pieces, turns):
                message = "The chat template rewrites what the model said in earlier turns; the cache is of no use from there on."
                warnings.warn(message, ChatWarning, stacklevel=2)
        else:
            opened = [*turns, Turn(role, (Text(_OPEN),))]  # something is going to be said, so the template can't know better
            pieces = _until(await self._pieces(opened, add_generation_prompt=False), len(_spoken(turns)))
            if not pieces:
                return RoleText("")  # it says this message later, together with another
        return _role_text(prompt, pieces, turns)

    async def end(self, turns: Sequence[Turn], prompt: Sequence[Segment] = ()) -> RoleText:
        """What closes the last of `turns`. `prompt` is what there is so far."""
        pieces = await self._pieces(turns, add_generation_prompt=False)
        last = len(_spoken(turns)) - 1
        said_something = any(segment.text.strip() for segment in turns[-1].content)
        if said_something and not any(isinstance(piece, Said) and piece.turn == last for piece in pieces):
            return RoleText("")
        return _role_text(prompt, pieces, turns)

    async def _pieces(self, turns: Sequence[Turn], *, add_generation_prompt: bool) -> list["_Placed"]:
        """The whole conversation; text outside roles is where the program put it."""
        spoken = _spoken(turns)
        placed: list[_Placed] = [*await self._layout(spoken, add_generation_prompt=add_generation_prompt)]
        before = len(spoken)
        for turn in reversed(turns):
            if turn.role is not None:
                before -= 1
            elif before == 0:
                placed.insert(0, turn)
            else:
                closed = await self._layout(spoken[:before], add_generation_prompt=False)
                _insert(placed, turn, before - 1, closed)
        return placed

    async def _layout(self, spoken: Sequence[Turn], *, add_generation_prompt: bool) -> list[Piece]:
        roles = [turn.role or "" for turn in spoken]
        contents = [_text_of(turn.content) for turn in spoken]
        marked = mark_contents(roles, contents)
        if is_writing(self._backend) and self._backend.writes_whole(contents):
            return _as_written(await self._render(roles, marked.contents, add_generation_prompt), contents, marked)
        skeleton, rendered = await self._both(roles, marked.contents, contents, add_generation_prompt)
        pieces = lay_out(skeleton, rendered, contents, marked.parts)
        if pieces is None:  # perhaps a template's date has changed between the two
            skeleton, rendered = await self._both(roles, marked.contents, contents, add_generation_prompt, anew=True)
            pieces = lay_out(skeleton, rendered, contents, marked.parts)
        if pieces is None:
            message = (
                "The chat template changes what messages say in a way that can't be followed; they stand as they were written."
            )
            warnings.warn(message, ChatWarning, stacklevel=2)
            pieces = _as_written(skeleton, contents, marked)
        return pieces

    async def _both(
        self, roles: Sequence[str], marks: Sequence[str], contents: Sequence[str], more: bool, *, anew: bool = False
    ) -> tuple[str, str]:
        renderings = [asyncio.create_task(self._render(roles, texts, more, anew=anew)) for texts in (marks, contents)]
        try:
            skeleton, rendered = await asyncio.gather(*renderings)
        except BaseException:  # whatever it is, it goes on up; the other must not be left running in a loop that ends
            for rendering in renderings:
                rendering.cancel()
            await asyncio.gather(*renderings, return_exceptions=True)
            raise
        return skeleton, rendered

    async def _render(
        self, roles: Sequence[str], contents: Sequence[str], add_generation_prompt: bool, *, anew: bool = False
    ) -> str:
        said = tuple(zip(roles, contents, strict=True))
        key = (add_generation_prompt, said)
        now = time.monotonic()
        since, text = self._rendered.get(key, (now - _FRESH, ""))
        if anew or now - since >= _FRESH:
            messages: list[Mapping[str, object]] = [{"role": role, "content": content} for role, content in said]
            since, text = now, await self._backend.render(messages, add_generation_prompt=add_generation_prompt)
        self._rendered[key] = since, text
        self._rendered.move_to_end(key)
        if len(self._rendered) > _KEPT:
            self._rendered.popitem(last=False)
        return text

    async def _loses_reuse(self, pieces: Sequence["_Placed"], turns: Sequence[Turn]) -> bool:
        """Whether the last answer that was generated isn't in the prompt as it was when it was generated."""
        answers = [
            place
            for place, turn in enumerate(turns)
            if turn.role == "assistant" and any(isinstance(segment, Ids) for segment in turn.content)
        ]
        if not answers or not _spoken(turns[: answers[-1]]):
            return False
        before = turns[: answers[-1]]
        asked = _compose(await self._pieces(before, add_generation_prompt=True), before)
        return _after([*asked, *turns[answers[-1]].content], _compose(pieces, turns)) is None


_Asked = tuple[bool, tuple[tuple[str, str], ...]]
"""With the model's turn opened or not; roles and contents."""

_Placed = Piece | Turn
"""The template's own text, something said in a message, or text outside of messages."""


def _spoken(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.role is not None]


def _text_of(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def _as_written(skeleton: str, contents: Sequence[str], marked: Marked) -> list[Piece]:
    pieces = lay_out(skeleton, None, contents, marked.parts)
    assert pieces is not None, "without a rendering there is nothing that could not fit"
    return pieces


def _until(pieces: Sequence[_Placed], turn: int) -> list[_Placed]:
    """The pieces before what is said in message `turn`; none where nothing is."""
    place = next((place for place, piece in enumerate(pieces) if isinstance(piece, Said) and piece.turn == turn), 0)
    return list(pieces[:place])


def _insert(pieces: list[_Placed], outside: Turn, last: int, closed: Sequence[Piece]) -> None:
    """Put `outside` behind message `last`: after the text that closes it, as `closed` (the conversation up to it) ends."""
    said = [place for place, piece in enumerate(pieces) if isinstance(piece, Said) and piece.turn <= last]
    place = said[-1] + 1 if said else 0
    between, closing = pieces[place], closed[-1]
    if isinstance(between, str) and isinstance(closing, str):
        cut = _common(between, closing)
        pieces[place : place + 1] = [between[:cut], outside, between[cut:]]
    else:
        pieces.insert(place, outside)


def _check_complete(pieces: Sequence[_Placed], turns: Sequence[Turn]) -> None:
    """Raise ProgramMistake where a message that says something isn't there; dropping an assistant's thinking is fine."""
    there = {piece.turn for piece in pieces if isinstance(piece, Said)}
    for place, turn in enumerate(_spoken(turns)):
        if place not in there and turn.role != "assistant" and _text_of(turn.content).strip():
            raise ProgramMistake(f"The chat template leaves out a message of the role {turn.role!r}.")


def _compose(pieces: Sequence[_Placed], turns: Sequence[Turn]) -> list[Segment]:
    spoken = _spoken(turns)
    segments: list[Segment] = []
    for piece in pieces:
        match piece:
            case str():
                segments.append(Text(piece, special=True))
            case Turn():
                segments.extend(piece.content)
            case Said():
                segments.extend(_said(piece, spoken[piece.turn].content))
    return segments


def _said(said: Said, content: Sequence[Segment]) -> Iterator[Segment]:
    """What is left of a message's content. Ids stay ids where they are whole, and so is what stands right before them."""
    if said.text != _text_of(content)[said.start : said.end]:
        yield Text(said.text)
        return
    if said.end - said.start == sum(len(segment.text) for segment in content):
        yield from content
        return
    at, whole = 0, True
    for segment in content:
        start, end = max(said.start, at), min(said.end, at + len(segment.text))
        kept = (start, end) == (at, at + len(segment.text))
        if kept and whole:
            yield segment
        elif start < end:
            yield Text(segment.text[start - at : end - at])
        at += len(segment.text)
        whole = kept


def _role_text(prompt: Sequence[Segment], pieces: Sequence[_Placed], turns: Sequence[Turn]) -> RoleText:
    wanted = _compose(pieces, turns)
    rest = _after(prompt, wanted)
    if rest is not None and all(isinstance(segment, Text) and segment.special for segment in rest):
        return RoleText(_text_of(rest))
    last = pieces[-1] if pieces else ""
    return RoleText(last if isinstance(last, str) else "", _joined(wanted))


def _after(prompt: Sequence[Segment], wanted: Sequence[Segment]) -> tuple[Segment, ...] | None:
    """What `wanted` has after `prompt`; None where it doesn't begin with it."""
    there, whole = _joined(prompt), _joined(wanted)
    shared = _common(there, whole)
    left, right = there[shared:], whole[shared:]
    if not left:
        return right
    if len(left) > 1 or not right:
        return None
    (begun,), (first, *more) = left, right
    if not (isinstance(begun, Text) and isinstance(first, Text) and begun.special and first.special):
        return None
    return (Text(first.text[len(begun.text) :], special=True), *more) if first.text.startswith(begun.text) else None


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def _joined(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Without empty texts, neighbouring texts of a kind as one."""
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if isinstance(segment, Text) and not segment.text:
            continue
        if isinstance(segment, Text) and isinstance(last, Text) and segment.special == last.special:
            joined[-1] = Text(last.text + segment.text, segment.special)
        else:
            joined.append(segment)
    return tuple(joined)
