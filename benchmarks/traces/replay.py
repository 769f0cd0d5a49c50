"""Sends recorded calls again as a client would that has no language: independent requests, each as soon as it could be made.

They carry token ids, the kindest form, but no hints; a select is a request for each option.
"""

import secrets
import threading
from collections.abc import Sequence

import msgspec

from benchmarks.traces.recorder import Answered, watched
from branchpoint.runtime.client import EngineClient
from branchpoint.runtime.messages import Call, Hints, ScoreCall

__all__ = ["replay"]


def replay(client: EngineClient, calls: Sequence[Answered]) -> list[tuple[str, Answered]]:
    """Make `calls` again and wait for all. Returns the log, as a Recorder's."""
    sending = _Sending(client, calls)
    sending.start()
    sending.done.wait()
    return sending.log


class _Sending:
    def __init__(self, client: EngineClient, calls: Sequence[Answered]) -> None:
        self.done = threading.Event()
        self.log: list[tuple[str, Answered]] = []
        self._client = client
        self._lock = threading.Lock()
        self._requests = {original: _requests(original.call) for original in calls}
        self._open = {original: len(requests) for original, requests in self._requests.items()}
        self._missing = {original: len(original.waits_for) for original in calls}
        self._later: dict[Answered, list[Answered]] = {original: [] for original in calls}
        for original in calls:
            for needed in original.waits_for:
                self._later[needed].append(original)

    def start(self) -> None:
        for original in [original for original, missing in self._missing.items() if missing == 0]:
            self._send(original)

    def _send(self, original: Answered) -> None:
        for call in self._requests[original]:
            answered = Answered(call)
            self.log.append(("made", answered))
            self._client.submit(call, watched(answered, lambda answered=answered: self._ended(original, answered)))  # type: ignore[misc]  # bound early

    def _ended(self, original: Answered, answered: Answered) -> None:
        ready = []
        with self._lock:
            self.log.append(("ended", answered))
            self._open[original] -= 1
            if self._open[original] == 0:
                del self._open[original]
                for later in self._later[original]:
                    self._missing[later] -= 1
                    if self._missing[later] == 0:
                        ready.append(later)
        for later in ready:
            self._send(later)
        if not self._open:
            self.done.set()


def _requests(call: Call | ScoreCall) -> list[Call | ScoreCall]:
    if isinstance(call, ScoreCall):
        return [ScoreCall(secrets.token_hex(8), call.prompt, (option,), call.namespace) for option in call.continuations]
    return [msgspec.structs.replace(call, id=secrets.token_hex(8), hints=Hints())]
