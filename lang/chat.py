"""The text around roles, found by rendering growing conversations with the model's own chat template (LANGUAGE R1).

The executor asks for the piece that opens or closes a role; contents are held out of the rendering by marks, so that
what users write is never read as the template's own text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from branchpoint.lang.backends.base import Backend
from branchpoint.lang.errors import ProgramMistake
from branchpoint.runtime.messages import Segment, Text

__all__ = ["ChatText", "RoleText", "Turn"]


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


def _mark(index: int) -> str:
    return f"turn{index}mark7f3a"


class ChatText:
    """Finds the template's text for one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def begin(self, turns: Sequence[Turn], role: str) -> RoleText:
        """What comes between the last of `turns` (all closed) and the content of a new turn of `role`."""
        before = await self._render(turns, False) if any(turn.role for turn in turns) else ""
        if role == "assistant":
            after = await self._render(turns, True)
        else:
            after, _, _ = (await self._render([*turns, Turn(role)], False)).partition(_mark(len(turns)))
        if after.startswith(before):
            return RoleText(after[len(before) :])
        return RoleText(after, _compose(after, turns))

    async def end(self, turns: Sequence[Turn]) -> RoleText:
        """What closes the last of `turns`."""
        _, found, tail = (await self._render(turns, False)).partition(_mark(len(turns) - 1))
        if not found:
            raise ProgramMistake(f"The chat template leaves out a message of the role {turns[-1].role!r}.")
        return RoleText(tail)

    async def _render(self, turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        messages: list[Mapping[str, object]] = [
            {"role": turn.role, "content": _mark(index)} for index, turn in enumerate(turns) if turn.role is not None
        ]
        return await self._backend.render(messages, add_generation_prompt=add_generation_prompt)


def _compose(text: str, turns: Sequence[Turn]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for index, turn in enumerate(turns):
        if turn.role is None:
            segments.extend(turn.content)
            continue
        head, _, text = text.partition(_mark(index))
        segments.extend((Text(head, special=True), *turn.content))
    return (*segments, Text(text, special=True))
