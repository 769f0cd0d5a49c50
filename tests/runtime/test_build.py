"""A real (random) model behind both hosts: the same words, from loading to the last token."""

import json
import threading
from pathlib import Path

import pytest

from branchpoint.constrained.spec import JsonSchema
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed, Text
from branchpoint.runtime.process import EngineClient, EngineProcess, EngineThread, build_engine, tokenizer_of
from branchpoint.runtime.sampling import SamplingParams

CONFIG = EngineConfig(model="dummy:llama", num_pages=64, threads=1, device="cpu", seed=5)
SCHEMA = JsonSchema(
    '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}'
)


def finish(client: EngineClient, call: Call) -> list[Event]:
    events: list[Event] = []
    ended = threading.Event()

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, Completed | Failed):
            ended.set()

    client.submit(call, take)
    assert ended.wait(60)
    assert isinstance(events[-1], Completed), events[-1]
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_both_hosts_say_the_same_with_a_real_model(caplog: pytest.LogCaptureFixture) -> None:
    """And tell what loading is at."""
    caplog.set_level("INFO", "branchpoint.loading")
    said: list[list[str]] = []
    for client in (EngineThread(build_engine(CONFIG)), EngineProcess(CONFIG)):
        with client:
            tokenizer = tokenizer_of(client.info)
            free = tokenizer.prepare([Text("Once upon")], heal=True)
            calls = [
                Call("free", free.tokens, SamplingParams(max_tokens=12, seed=1), heal=free.heal),
                Call("json", tuple(tokenizer.encode("n = ")), SamplingParams(max_tokens=200, seed=2), SCHEMA),
            ]
            said.append([text_of(finish(client, call)) for call in calls])
            assert client.info.num_pages == 64
    assert said[0] == said[1]
    told = [record.getMessage() for record in caplog.records if record.name == "branchpoint.loading"]
    assert told == [f"Reading the weights of {CONFIG.model}.", "Loading the tokenizer."] * 2
    assert isinstance(json.loads(said[0][1])["n"], int)


def test_what_a_loader_refuses_is_raised_with_its_kind(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Unknown model"):
        EngineProcess(EngineConfig(model=str(tmp_path / "nothing")))
    with pytest.raises(InvalidRequest) as refused:
        build_engine(EngineConfig(model="dummy:llama", context_length=10**7))
    assert refused.value.param == "context_length"
