"""Sends recorded calls again as a client would that has no language: independent requests, each as soon as it could be made.

They have no hints, and a select is a request for each option. Each prompt is rendered from its messages and tokenised, as a
server must, but then goes on as the recorded ids, the kindest form: text made again into tokens may not be the tokens whose KV is
there.
"""

import functools
import queue
import re
import secrets
import time
from collections.abc import Sequence

import msgspec

from benchmarks.traces.recorder import Answered, watched
from branchpoint.runtime.chat_template import Message
from branchpoint.runtime.client import EngineClient
from branchpoint.runtime.messages import Call, Hints, ScoreCall
from branchpoint.runtime.tokenizer import Tokenizer

__all__ = ["Replay"]

_TURNS = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


class Replay:
    """`calls`, recorded from programs, made again on `client` by the thread that runs it. Use it once."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, calls: Sequence[Answered]) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self.log: list[tuple[str, Answered]] = []
        self.ended: dict[str, float] = {}  # when the last call of each program so far has ended, by `time.perf_counter`
        self._ended = queue.SimpleQueue[tuple[Answered, Answered]]()
        self._requests = {original: _requests(original.call) for original in calls}
        self._texts = {original: tokenizer.decode(original.call.prompt, skip_special=False) for original in calls}
        self._chats = {original: _messages(tokenizer, text) for original, text in self._texts.items()}
        self._open = {original: len(requests) for original, requests in self._requests.items()}
        self._missing = {original: len(original.waits_for) for original in calls}
        self._later: dict[Answered, list[Answered]] = {original: [] for original in calls}
        for original in calls:
            for needed in original.waits_for:
                self._later[needed].append(original)

    def run(self) -> None:
        """Make all calls and wait for their ends. `log` is then as a Recorder's."""
        for original in [original for original, missing in self._missing.items() if missing == 0]:
            self._send(original)
        while self._open:
            original, answered = self._ended.get()
            self.log.append(("ended", answered))
            self._open[original] -= 1
            if self._open[original] == 0:
                del self._open[original]
                self.ended[original.call.hints.program] = time.perf_counter()
                self._go_on(original)

    def _go_on(self, original: Answered) -> None:
        for later in self._later[original]:
            self._missing[later] -= 1
            if self._missing[later] == 0:
                self._send(later)

    def _send(self, original: Answered) -> None:
        for call in self._requests[original]:
            if chat := self._chats[original]:
                self._tokenizer.render(chat, add_generation_prompt=True)
            self._tokenizer.encode(self._texts[original], special=True)
            answered = Answered(call)
            self.log.append(("made", answered))
            done = functools.partial(self._ended.put, (original, answered))
            self._client.submit(call, watched(answered, done))


def _messages(tokenizer: Tokenizer, text: str) -> list[Message]:
    """The messages that a chat client would have sent for `text`; none where that is no chat, or goes on inside a message."""
    messages: list[Message] = [{"role": role, "content": content} for role, content in _TURNS.findall(text)]
    return messages if messages and tokenizer.render(messages, add_generation_prompt=True) == text else []


def _requests(call: Call | ScoreCall) -> list[Call | ScoreCall]:
    if isinstance(call, ScoreCall):
        return [ScoreCall(secrets.token_hex(8), call.prompt, (option,), call.namespace) for option in call.continuations]
    return [msgspec.structs.replace(call, id=secrets.token_hex(8), hints=Hints())]
