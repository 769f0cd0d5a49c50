"""For servers that know chat only: a program's state as messages, and what such a server can't continue, said before sending.

`ChatApi` is what their backends inherit: roles open and close with marks of our own, which never leave this process.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from branchpoint.lang.backends.base import GenerateRequest, Message
from branchpoint.lang.chat import RoleText, Turn
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import NotSupported
from branchpoint.runtime.messages import Segment, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["ChatApi", "Conversation", "conversation_of", "refuse_options"]

_MARK = re.compile(r"<\|im_start\|>([^\n]*)\n|<\|im_end\|>\n")
_NAMES = {"prompt_logprobs": "logprob_start_len", "prompt_logprobs_start": "logprob_start_len"}


class ChatApi(Dispatched):
    """A backend of messages. The text of its states shows roles in ChatML, whatever the model behind it is given."""

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return RoleText(f"<|im_start|>{role}\n")

    async def end(self, turns: Sequence[Turn], prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return RoleText("<|im_end|>\n")

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """There is no template to be seen."""
        raise NotSupported("This backend takes messages and has no chat template to render.")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The whole messages, and `prefix`: how the answer that is asked for begins already."""

    messages: tuple[Message, ...]
    prefix: str = ""


def conversation_of(request: GenerateRequest, *, prefill: bool) -> Conversation:
    """The conversation that a request goes on with. Raises NotSupported where it isn't one.

    `prefill`: whether the server can go on from the beginning of an answer.
    """
    messages, outside, role, said = list[Message](), "", None, ""
    told = request.messages or ()
    for text, special in ((segment.text, isinstance(segment, Text) and segment.special) for segment in request.segments):
        if not special:
            outside, said = (outside + text, said) if role is None else (outside, said + text)
            continue
        for mark in _MARK.finditer(text):
            if mark[1] is not None:
                role, said = mark[1], ""
            elif role is not None:
                known = told[len(messages)] if len(messages) < len(told) else {}
                messages.append({**known, "role": role, "content": said})
                role = None
    if outside.strip():
        raise NotSupported(f"A chat API takes messages only; {outside.strip()[:60]!r} stands outside of roles. Put it into one.")
    if role != "assistant":
        where = "outside of roles" if role is None else f"inside the role {role!r}"
        raise NotSupported(f"A chat API answers as the assistant only; this call is {where}. Write assistant(gen(...)).")
    if not messages:
        raise NotSupported("A chat API needs a message to answer; add user(...) before assistant(gen(...)).")
    if said and not prefill:
        raise NotSupported(
            f"This API begins an answer itself; the assistant's message can't begin with {said[:60]!r}. Ask for it in user(...)."
        )
    return Conversation(tuple(messages), said)


def refuse_options(sampling: SamplingParams, known: Collection[str], who: str) -> None:
    """Raise NotSupported, naming the option, where one is given that a server doesn't have. A derived seed is no option."""
    neutral: Mapping[str, object] = msgspec.structs.asdict(SamplingParams())
    for name, value in msgspec.structs.asdict(sampling).items():
        if name not in known and name != "seed" and value != neutral[name]:
            shown = _NAMES.get(name, name)
            raise NotSupported(f"{who} has no option {shown}; it knows {', '.join(sorted(known))}. Leave {shown}={value!r} out.")
