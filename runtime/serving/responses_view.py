"""How /v1/responses answers: a response of items (reasoning, message, calls of functions), whole, or event by event.

The view of `responses`, fed by `answer`. One machine makes both, so that the last event holds what the whole answer would be.
"""

import time
import uuid
from collections.abc import Callable

from branchpoint.runtime.messages import Call
from branchpoint.runtime.serving.framing import RESPONSES
from branchpoint.runtime.serving.replies import Reply
from branchpoint.runtime.serving.reply import Arguments, CallStart, Content, Part
from branchpoint.runtime.serving.reply_view import ReplyView
from branchpoint.runtime.serving.tools import ToolUse
from branchpoint.runtime.serving.wire import Json

__all__ = ["ResponsesView"]


class ResponsesView(ReplyView):
    """`head` are the response's fields that the request decides; `done` is told the whole response, once."""

    framing = RESPONSES

    def __init__(self, call: Call, use: ToolUse, head: Json, done: Callable[[Json, Reply], None], *, stream: bool) -> None:
        super().__init__(call, Reply(use, most=1 if head["parallel_tool_calls"] is False else None), stream=stream)
        self._done = done
        self._head: Json = {"id": call.id, "object": "response", "created_at": int(time.time())} | head
        self._items = list[Json]()
        self._number = 0

    def _begin(self) -> list[object]:
        return [self._event(f"response.{name}", response=self._response("in_progress")) for name in ("created", "in_progress")]

    def tail(self) -> list[object]:
        """The last event, with the whole response."""
        response = self._finished()
        return [self._event(f"response.{response['status']}", response=response)]

    def whole(self) -> object:
        """The response."""
        return self._finished()

    def _finished(self) -> Json:
        response = self._response("incomplete" if self._sample.reason == "length" else "completed") | self._sample.told()
        self._done(response, self._reply)
        return response

    def _response(self, status: str) -> Json:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = None if status == "in_progress" else self._usage()
        return self._head | {"status": status, "incomplete_details": cut, "output": list(self._items), "usage": usage}

    def _usage(self) -> Json:
        usage = self._collected.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reply.reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }

    def _part(self, part: Part) -> list[object]:
        if isinstance(part, CallStart):
            call = self._reply.calls[-1]
            item: Json = {"type": "function_call", "call_id": call.id, "name": part.name, "arguments": ""}
            return [*self._close(), *self._start("function_call", "fc", item)]
        if isinstance(part, Arguments):
            return self._arguments(part)
        if isinstance(part, Content):
            return self._text(part.text, "message")
        return self._text(part.text, "reasoning")

    def _text(self, text: str, kind: str) -> list[object]:
        """More of a message, or of reasoning; opens it where it isn't open."""
        ready = list[object]()
        told = "output_text" if kind == "message" else "reasoning_text"
        if self._open != kind:
            ready += self._close()
            more: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            ready += self._start(kind, "msg" if kind == "message" else "rs", {"type": kind, "content": []} | more)
            piece = _piece(told, "")
            self._content().append(piece)
            ready.append(self._event("response.content_part.added", **self._place(), content_index=0, part=dict(piece)))
        piece = self._content()[0]
        piece["text"] = str(piece["text"]) + text
        more = {"logprobs": []} if kind == "message" else {}
        ready.append(self._event(f"response.{told}.delta", **self._place(), content_index=0, delta=text, **more))
        return ready

    def _arguments(self, part: Arguments) -> list[object]:
        item = self._items[-1]
        item["arguments"] = str(item["arguments"]) + part.text
        ready = list[object]()
        if part.text:
            ready.append(self._event("response.function_call_arguments.delta", **self._place(), delta=part.text))
        return [*ready, *self._close()] if part.complete else ready

    def _start(self, kind: str, prefix: str, item: Json) -> list[object]:
        self._open = kind
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"} | item
        self._items.append(item)
        shown = {**item, "content": []} if "content" in item else dict(item)
        return [self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)]

    def _close(self) -> list[object]:
        """End the item that is open."""
        if not self._open:
            return []
        item, kind, self._open = self._items[-1], self._open, ""
        whole = kind != "function_call" or self._reply.calls[-1].complete
        item["status"] = "completed" if whole else "incomplete"
        ready = list[object]()
        if kind == "function_call":
            told = self._place() | {"arguments": item["arguments"], "name": item["name"]}
            ready.append(self._event("response.function_call_arguments.done", **told))
        else:
            piece = self._content()[0]
            told = self._place() | {"content_index": 0, "text": piece["text"]}
            more: Json = {"logprobs": []} if kind == "message" else {}
            ready.append(self._event(f"response.{piece['type']}.done", **told, **more))
            ready.append(self._event("response.content_part.done", **self._place(), content_index=0, part=dict(piece)))
        ready.append(self._event("response.output_item.done", output_index=len(self._items) - 1, item=dict(item)))
        return ready

    def _content(self) -> list[Json]:
        content = self._items[-1]["content"]
        assert isinstance(content, list), "texts stand in items with content"
        return content

    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, /, **fields: object) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _piece(kind: str, text: str) -> Json:
    return {"type": kind, "text": text} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})
