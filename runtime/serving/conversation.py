"""A conversation on its way to the model: messages, tools and the template's own options become a prompt.

Used by chat, and by the routes that ask the same in other words (responses, messages, tokenize).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from branchpoint.runtime.messages import Text
from branchpoint.runtime.serving.chat_messages import template_messages, with_tools
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.reply import CLOSE, OPEN, THINK, THOUGHT
from branchpoint.runtime.serving.tools import NO_TOOLS, ToolUse, held_calls
from branchpoint.runtime.serving.wire import Json
from branchpoint.runtime.tokenizer import Prompt

__all__ = ["Conversation", "Rendered", "render_conversation"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` as OpenAI's chat has them.

    `separate`: reasoning is told apart from content; `free`: no format holds the output.
    """

    messages: Sequence[Json]
    use: ToolUse = NO_TOOLS
    options: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    separate: bool = True
    free: bool = True
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt, and how what the model makes of it is to be read."""

    prompt: Prompt
    use: ToolUse


async def render_conversation(gateway: Gateway, asked: Conversation) -> Rendered:
    """The prompt of a conversation. Raises InvalidRequest and CapacityError."""
    tokenizer = gateway.loaded.tokenizer
    source = tokenizer.chat_template or ""
    known = "tools" in source
    messages = with_tools(template_messages(asked.messages, asked.param), asked.use, known=known)
    shown = list(asked.use.shown) if known and asked.use.shown else None

    def render() -> tuple[Text, ...]:
        return tokenizer.render_segments(
            messages,
            add_generation_prompt=asked.add_generation_prompt,
            tools=shown,
            continue_final_message=asked.continue_final_message,
            **asked.options,
        )

    segments = await gateway.aside(render)
    reasons = asked.separate and asked.free and asked.use.constraint is None and (THINK in source or THOUGHT in source)
    thinking = reasons and bool(segments) and segments[-1].text.rstrip().endswith(THINK)
    if asked.use.prefix:
        segments = (*segments, Text(asked.use.prefix))
    prompt = await gateway.prepare(segments, heal=False, param=asked.param)
    use = replace(asked.use, form=replace(asked.use.form, reasons=reasons, thinking=thinking))
    marks = (OPEN, CLOSE, THINK, THOUGHT) if reasons else (OPEN, CLOSE)
    if asked.free and use.tags and all(map(tokenizer.writes_as_text, marks)):
        use = replace(use, constraint=held_calls(use, reasons=reasons, thinking=thinking))
    return Rendered(prompt, use)
