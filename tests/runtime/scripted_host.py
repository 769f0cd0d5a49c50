"""The scripted engine as a host loads it, here or in a process of its own, with ways to make it fail."""

import os

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.loop import HostedEngine
from branchpoint.runtime.messages import Call, Event, ModelInfo, ScoreCall
from branchpoint.runtime.process import LoadedEngine
from branchpoint.runtime.tokenizer import load_tokenizer
from tests.runtime.scripted import CONTEXT, EOS, VOCABULARY, make_engine


class FragileEngine:
    """Passes on to `engine`; a call whose id begins with `raise` or `exit` brings it, or its process, down at the next step."""

    def __init__(self, engine: HostedEngine) -> None:
        self._engine = engine
        self._fate = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def submit(self, call: Call | ScoreCall) -> None:
        self._engine.submit(call)
        self._fate = call.id if call.id.startswith(("raise", "exit")) else self._fate

    def step(self) -> list[Event]:
        if self._fate.startswith("raise"):
            raise ZeroDivisionError(self._fate)
        if self._fate:
            os._exit(7)
        return self._engine.step()


def build_scripted(config: EngineConfig) -> LoadedEngine:
    if config.model == "missing":
        raise ModelError("There is no model 'missing'.")
    if config.model == "exit":
        os._exit(3)
    if config.model == "broken":
        raise ZeroDivisionError("loading is broken")
    engine = FragileEngine(make_engine(max_queued=50))
    info = ModelInfo("scripted", "", "scripted", VOCABULARY, CONTEXT, 64, 4, (EOS,))
    return LoadedEngine(engine, info, load_tokenizer(None, 300, (7,)))  # type: ignore[arg-type]
