"""Every example runs on the real model, in-process or against a real server."""

import re
from collections.abc import Iterator

import pytest

import branchpoint as bp
from examples import agent, demo, extraction, openai_client, over_http, tree_of_thought
from tests.system.served import served


@pytest.fixture(scope="module")
def engine() -> Iterator[bp.Engine]:
    with bp.Engine(model="smollm2", cpu_weights="float32", threads=1, num_pages=512, context_length=2048) as ready:
        yield ready


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ["--cpu-weights", "float32", "--threads", "1", "--num-pages", "512", "--context-length", "2048"]
    with served(*options) as server:
        yield server.ready().url


def test_the_demo_prints_text_values_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    run = demo.main()
    printed = capsys.readouterr().out
    assert set(run.value) == {"area", "urgency", "reply"}
    assert run.value["area"] in {"billing", "login", "other"} and run.value["urgency"] in range(1, 6)
    assert isinstance(run.value["reply"], demo.Reply)
    assert demo.TICKET[:40] in printed and "prefilled" in printed and "reused" in printed
    assert run.report().total.reused > 0 and run.report().total.forced > 0


def test_extraction_gives_events(engine: bp.Engine) -> None:
    events = extraction.main(engine)
    assert len(events) == 2 and all(isinstance(event, extraction.Event) for event in events)


def test_the_agent_reuses_its_earlier_turns(engine: bp.Engine) -> None:
    run = agent.main(engine)
    assert run["step"] in {*agent.TOOLS, "answer"} and run["answer"]
    assert run.report().total.reused > run.report().total.prefilled


def test_a_tree_of_thought_shares_its_stem(engine: bp.Engine) -> None:
    run = tree_of_thought.main(engine)
    assert len(run.value) == 4 and all(1 <= score <= 5 and thought for score, thought in run.value)
    assert run.report().total.reused > run.report().total.prefilled


def test_the_same_program_gives_the_same_values_over_http(engine: bp.Engine, url: str) -> None:
    assert over_http.main(url) == extraction.main(engine)


def test_the_openai_client_gets_its_json(url: str) -> None:
    trip = openai_client.main(url)
    assert re.fullmatch(r".{0,20}", trip["city"]) and 1 <= trip["days"] <= 14
