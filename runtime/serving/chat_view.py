"""How chat completions look, whole or in chunks. Per choice: a role chunk, what it says, an empty chunk with the finish reason.

The view of `chat`, fed by `answer`.
"""

import time
from dataclasses import dataclass

from branchpoint.runtime.messages import Call, Delta, Event, SampleFinished, TokenLogprob
from branchpoint.runtime.serving.answer import EventBatch
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.logprobs import chat_logprobs, prompt_logprobs
from branchpoint.runtime.serving.replies import Reply, ToolCall
from branchpoint.runtime.serving.reply import Arguments, CallStart, Content, Part
from branchpoint.runtime.serving.tools import ToolUse
from branchpoint.runtime.serving.wire import Json

__all__ = ["ChatLook", "ChatView"]


@dataclass(frozen=True, slots=True)
class ChatLook:
    """What a request wants to see. `most_calls` bounds the calls of tools in a reply."""

    model: str
    stream: bool = False
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    show_reasoning: bool = True
    most_calls: int | None = None


class ChatView:
    """See the module. The deltas of a stream, put together, are the message of the whole answer."""

    framing = EVENTS

    def __init__(self, call: Call, use: ToolUse, look: ChatLook) -> None:
        self.stream = look.stream
        self._look = look
        self._head: Json = {"id": call.id, "created": int(time.time()), "model": look.model, "system_fingerprint": None}
        self._collected = Collected((call,))
        made = [Reply(use, most=look.most_calls, show_reasoning=look.show_reasoning) for _ in range(call.sampling.n)]
        self._replies = made
        self._prompt_logprobs = call.sampling.prompt_logprobs is not None
        self._held: list[list[TokenLogprob]] = [[] for _ in made]

    def chunks(self, batch: EventBatch) -> list[object]:
        """What is said, as it comes; see the module."""
        return [chunk for call, event in batch for chunk in self._chunks(call, event)]

    def _chunks(self, call: int, event: Event) -> list[object]:
        sample = self._collected.add(call, event)
        if sample is None or not isinstance(event, Delta | SampleFinished):
            return []
        reply = self._replies[event.index]
        ended = isinstance(event, SampleFinished)
        parts = reply.end() if isinstance(event, SampleFinished) else reply.feed(event.text, len(event.tokens))
        if not self.stream:
            return []
        ready = list[object]()
        if not sample.opened:
            sample.opened = True
            ready.append(self._chunk(event.index, {"role": "assistant", "content": ""}))
        if isinstance(event, Delta) and self._look.logprobs:
            self._held[event.index] += event.logprobs
        deltas = [self._delta(reply, part) for part in parts]
        if not deltas and self._held[event.index] and (ended or not reply.calls):
            deltas = [{"content": ""}]
        for delta in deltas:
            ready.append(self._chunk(event.index, delta, logprobs=self._told(event.index)))
        if ended:
            ready.append(self._chunk(event.index, {}, sample))
        return ready

    def _told(self, index: int) -> Json | None:
        """The log-probabilities that no chunk has told yet."""
        if not self._look.logprobs:
            return None
        entries, self._held[index] = self._held[index], []
        return chat_logprobs(entries) if entries else None

    @staticmethod
    def _delta(reply: Reply, part: Part) -> Json:
        if isinstance(part, Content):
            return {"content": part.text}
        if isinstance(part, CallStart):
            call = _shown(reply.calls[-1], "") | {"index": len(reply.calls) - 1}
            return {"tool_calls": [call]}
        if isinstance(part, Arguments):
            return {"tool_calls": [{"index": len(reply.calls) - 1, "function": {"arguments": part.text}}]}
        return {"reasoning": part.text, "reasoning_content": part.text}

    def tail(self) -> list[object]:
        """The usage, where it is asked for."""
        if not self._look.include_usage:
            return []
        return [self._head | {"object": "chat.completion.chunk", "choices": [], "usage": self._usage()}]

    def whole(self) -> object:
        """The completion in one body."""
        choices = [self._choice(index, sample) for index, sample in enumerate(self._collected.samples[0])]
        told = {"prompt_logprobs": prompt_logprobs(self._collected.prompt_logprobs[0])} if self._prompt_logprobs else {}
        return self._head | {"object": "chat.completion", "choices": choices, "usage": self._usage(), **told}

    def _usage(self) -> Json:
        return self._collected.usage(sum(reply.reasoning_tokens for reply in self._replies))

    def _choice(self, index: int, sample: Sample) -> Json:
        reply = self._replies[index]
        message: Json = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning is not None:
            message |= {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}
        if reply.calls:
            message["tool_calls"] = [_shown(call, call.arguments) for call in reply.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(sample.logprobs) if self._look.logprobs else None,
            "finish_reason": reply.finish(sample.reason),
            "stop_reason": sample.stop,
            **sample.told(),
        }

    def _chunk(self, index: int, delta: Json, ended: Sample | None = None, logprobs: Json | None = None) -> Json:
        reason = self._replies[index].finish(ended.reason) if ended else None
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if ended is not None:
            choice |= {"stop_reason": ended.stop, **ended.told()}
        chunk = self._head | {"object": "chat.completion.chunk", "choices": [choice]}
        if self._look.continuous_usage:
            chunk["usage"] = self._usage()
        elif self._look.include_usage:
            chunk["usage"] = None
        return chunk


def _shown(call: ToolCall, arguments: str) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
