"""What each sample of a chat says, put together from its parts: content, reasoning, calls of tools. Kept by the views.

`reply` reads the text; here it becomes what the wire formats of chat, responses and messages are made of.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from branchpoint.runtime.serving.reply import Arguments, CallStart, Content, Part, Reasoning, ReplyParser
from branchpoint.runtime.serving.tools import ToolUse

__all__ = ["Reply", "ToolCall"]


@dataclass(slots=True)
class ToolCall:
    """A call of a tool; `complete` once its arguments are whole."""

    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")
    texts: list[str] = field(default_factory=list)
    complete: bool = False

    @property
    def arguments(self) -> str:
        """The JSON text of its arguments."""
        return "".join(self.texts)


class Reply:
    """One sample, part by part. At most `most` calls are kept; what the model writes of others is dropped."""

    def __init__(self, use: ToolUse, *, most: int | None = None, show_reasoning: bool = True) -> None:
        self._use = use
        self._parser = ReplyParser(use.form)
        self._most = most
        self._show_reasoning = show_reasoning
        self._dropping = False
        self.calls = list[ToolCall]()
        self.contents = list[str]()
        self.reasonings = list[str]()
        self.reasoning_tokens = 0

    @property
    def content(self) -> str | None:
        """The text for the reader; None where there are calls and nothing else."""
        text = "".join(self.contents)
        if self.calls:
            text = text.strip()
        return text if text or not self.calls else None

    @property
    def reasoning(self) -> str | None:
        """The model's thinking, where it was told apart."""
        return "".join(self.reasonings) or None

    def feed(self, text: str, tokens: int = 0) -> list[Part]:
        """Take more output, of so many tokens; the parts to tell of."""
        thinking = self._parser.is_thinking
        parts = self._parser.feed(text)
        if thinking:
            self.reasoning_tokens += tokens
        return self._kept(parts)

    def end(self) -> list[Part]:
        """The output has ended."""
        return self._kept(self._parser.end())

    def finish(self, reason: str | None) -> str | None:
        """The finish reason to tell: calls end a reply only where the last is complete and the model ended by itself."""
        if reason == "stop" and self.calls and self.calls[-1].complete:
            return self._use.finish
        return reason

    def _kept(self, parts: Sequence[Part]) -> list[Part]:
        return [part for part in parts if self._keep(part)]

    def _keep(self, part: Part) -> bool:
        if isinstance(part, Content):
            self.contents.append(part.text)
        elif isinstance(part, Reasoning):
            if not self._show_reasoning:
                return False
            self.reasonings.append(part.text)
        elif isinstance(part, CallStart):
            self._dropping = self._most is not None and len(self.calls) >= self._most
            if not self._dropping:
                self.calls.append(ToolCall(part.name))
        if isinstance(part, Arguments) and not self._dropping:
            self.calls[-1].texts.append(part.text)
            self.calls[-1].complete = part.complete
        return not (self._dropping and isinstance(part, CallStart | Arguments))
