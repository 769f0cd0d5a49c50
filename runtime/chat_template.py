"""A model's chat template: from messages to the text of a prompt. Used by `tokenizer.py`.

What stands inside messages comes from users: `render_segments` keeps it from ever turning into special tokens.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from jinja2 import TemplateError

from branchpoint.runtime.chat_contents import content_use
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Text

__all__ = ["ChatTemplate", "Message"]

Message = Mapping[str, object]
"""A chat message: `role`, `content`, and whatever else the template reads."""

_PRIVATE = range(0xE000, 0xF8FF)


class ChatTemplate:
    """Renders `source` (Jinja). `names` are the template's named tokens (`bos_token` and the like).

    `special` are the texts of special tokens; `tags` those of tokens that a model writes in its own answers (`<think>`): they are
    kept as they are in messages of the assistant.
    """

    def __init__(self, source: str, names: Mapping[str, str], special: Iterable[str], tags: Iterable[str]) -> None:
        self._source = source
        self._names = dict(names)
        own = sorted(special, key=len, reverse=True)
        self._texts = sorted({*own, *tags}, key=len, reverse=True)
        self._own = _any_of(own)
        self._any = _any_of(self._texts)
        self._use = functools.cache(lambda: content_use(source))

    def writes_whole(self, contents: Sequence[str]) -> bool:
        """Whether these contents stand in the text as they are, and all other text depends at most on which of them are blank.

        False also where that can't be told from the template's source.
        """
        return self._use().writes_whole(contents)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final_message: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The text of the conversation. `options` are the template's own variables. Raises InvalidRequest where it refuses."""
        from transformers.utils.chat_template_utils import render_jinja_template

        options = options or {}
        taken = {"messages", "tools", "documents", "conversations", "chat_template", "return_assistant_tokens_mask", *self._names}
        if not taken.isdisjoint(options):
            name = min(taken.intersection(options))
            raise InvalidRequest(f"A chat template's option can't be named {name!r}; leave it out.", param="chat_template_kwargs")
        try:
            rendered, _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=self._source,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **self._names,
                **options,
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            reason = str(error)[:300] or type(error).__name__
            raise InvalidRequest(f"The model's chat template refused the messages: {reason}", param="messages") from error
        return str(rendered[0])

    def render_segments(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final_message: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> tuple[Text, ...]:
        """As `render`, in segments: the template's text, and, as plain text, whatever in messages looks like a special token."""
        said = [*messages, *(tools or ())]
        mark = _unused_character(said) if any(self._any.search(text) for text in _strings(said)) else ""
        if mark:
            messages = [self._escaped(message, mark, own=message.get("role") == "assistant") for message in messages]
            tools = None if tools is None else [self._escaped(tool, mark) for tool in tools]
        text = self.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            options=options,
        )
        if not mark:
            return (Text(text, special=True),)
        parts = re.split(f"{mark}(\\d+){mark}", text)
        plain = (Text(self._texts[int(part)]) if place % 2 else Text(part, special=True) for place, part in enumerate(parts))
        return tuple(part for part in plain if part.text)

    def _escaped(self, value: Mapping[str, object], mark: str, *, own: bool = False) -> dict[str, object]:
        """`value` with special tokens' texts as numbers between marks; with `own`, tags stay."""
        pattern = self._own if own else self._any
        places = {text: place for place, text in enumerate(self._texts)}

        def escape_text(text: str) -> str:
            return pattern.sub(lambda found: f"{mark}{places[found.group()]}{mark}", text)

        def escape(value: object) -> object:
            if isinstance(value, str):
                return escape_text(value)
            if isinstance(value, Mapping):
                return {escape(key): escape(entry) for key, entry in value.items()}
            if isinstance(value, list | tuple):
                return [escape(entry) for entry in value]
            return value

        return {escape_text(key): escape(entry) for key, entry in value.items()}


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)


def _unused_character(value: object) -> str:
    """A private-use character that occurs nowhere in `value`."""
    used = set().union(*map(set, _strings(value)))
    free = next((chr(code) for code in _PRIVATE if chr(code) not in used), None)
    if free is None:
        raise InvalidRequest("The messages use every private-use character of Unicode; leave one out.", param="messages")
    return free
