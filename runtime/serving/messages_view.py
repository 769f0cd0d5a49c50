"""How /v1/messages answers: a message of blocks (thinking, text, tool_use), whole, or in Anthropic's events.

The view of `messages_route`, fed by `answer`. One machine makes both.
"""

import json

from branchpoint.runtime.messages import Call
from branchpoint.runtime.serving.framing import NAMED
from branchpoint.runtime.serving.replies import Reply
from branchpoint.runtime.serving.reply import Arguments, CallStart, Content, Part
from branchpoint.runtime.serving.reply_view import ReplyView
from branchpoint.runtime.serving.tools import ToolUse
from branchpoint.runtime.serving.wire import Json

__all__ = ["MessagesView"]


class MessagesView(ReplyView):
    """See the module. `most` bounds the uses of tools."""

    framing = NAMED

    def __init__(self, call: Call, use: ToolUse, model: str, *, stream: bool, most: int | None) -> None:
        super().__init__(call, Reply(use, most=most), stream=stream)
        self._head: Json = {"id": call.id, "type": "message", "role": "assistant", "model": model}
        self._blocks = list[Json]()
        self._texts = list[list[str]]()

    def _begin(self) -> list[object]:
        message = self._head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [{"type": "message_start", "message": message}]

    def tail(self) -> list[object]:
        """Why it ended, what it cost, and the end."""
        ended = {"type": "message_delta", "delta": self._ending(), "usage": self._usage()} | self._sample.told()
        return [ended, {"type": "message_stop"}]

    def whole(self) -> object:
        """The message."""
        return (
            self._head
            | {"content": [self._block(place) for place in range(len(self._blocks))]}
            | self._ending()
            | {"usage": self._usage()}
            | self._sample.told()
        )

    def _block(self, place: int) -> Json:
        block, text = self._blocks[place], "".join(self._texts[place])
        if block["type"] == "tool_use":
            return block | {"input": _object(text)}
        return block | {"thinking" if block["type"] == "thinking" else "text": text}

    def _ending(self) -> Json:
        sample = self._sample
        if sample.reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._reply.calls and self._reply.calls[-1].complete:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(sample.stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": sample.stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _usage(self) -> Json:
        """Anthropic counts what was cached apart from the rest of the input."""
        call = self._collected.calls[0]
        usage = self._collected.usages[0]
        cached = usage.cached_tokens if usage else 0
        output = usage.completion_tokens if usage else len(self._sample.tokens)
        counts: Json = {"input_tokens": len(call.prompt) - cached, "output_tokens": output}
        return counts | {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}

    def _part(self, part: Part) -> list[object]:
        if isinstance(part, CallStart):
            call = self._reply.calls[-1]
            return self._start("tool_use", {"type": "tool_use", "id": call.id, "name": part.name, "input": {}})
        if isinstance(part, Arguments):
            self._texts[-1].append(part.text)
            told = self._delta({"type": "input_json_delta", "partial_json": part.text})
            return [told, *self._close()] if part.complete else [told]
        kind = name = "text" if isinstance(part, Content) else "thinking"
        if kind == "text" and self._open != "text" and self._reply.calls and not part.text.strip():
            return []  # whitespace around calls is no block
        ready = list[object]()
        if self._open != kind:
            block: Json = {"type": kind, name: ""}
            ready += self._start(kind, block | ({"signature": ""} if kind == "thinking" else {}))
        self._texts[-1].append(part.text)
        return [*ready, self._delta({"type": f"{kind}_delta", name: part.text})]

    def _start(self, kind: str, block: Json) -> list[object]:
        ready = self._close()
        self._open = kind
        self._blocks.append(block)
        self._texts.append([])
        return [*ready, {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[object]:
        if not self._open:
            return []
        self._open = ""
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]


def _object(text: str) -> object:
    """A call's arguments as the object that they are; as they stand where they were cut."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"_cut": text}
