"""On SmolLM2 in float32: the same text drafted or not, greedy and drawn, free and under a schema; good guesses hold."""

import json
from collections.abc import Iterator

import pytest

import branchpoint as bp
from branchpoint.lang.backends.generation import Generation

TEXT = "The blue kettle stands on the stove. The red kettle stands on the shelf. Nobody knows where the green kettle went."
COPY = f"<|im_start|>user\nRepeat this text word for word: {TEXT}<|im_end|>\n<|im_start|>assistant\n"
ASKED = "<|im_start|>user\nAda paid 30 euros for a kettle. As JSON:<|im_end|>\n<|im_start|>assistant\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "buyer": {"type": "string", "maxLength": 12},
        "payment": {"enum": ["paid in cash", "paid by card", "not paid"]},
        "price": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["buyer", "payment", "price"],
    "additionalProperties": False,
}


def answers(engine: bp.Engine) -> list[Generation]:
    done = []
    for _ in range(2):  # once more, so that there are earlier outputs to guess from
        done.append(engine.generate(COPY, temperature=0.0, max_tokens=30, logprobs=1))
        done += engine.generate([COPY, ASKED], temperature=1.0, seed=5, max_tokens=16, presence_penalty=0.5, stop=["shelf"])
        done.append(engine.generate(ASKED, temperature=0.8, seed=3, json_schema=json.dumps(SCHEMA)))
    return done


@pytest.fixture(scope="module")
def plain() -> Iterator[list[Generation]]:
    with bp.Engine("smollm2", cpu_weights="float32", threads=1, num_pages=128, context_length=512) as engine:
        yield answers(engine)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_text_and_logprobs_are_those_without_drafting(plain: list[Generation]) -> None:
    options = {"drafters": ("radix", "suffix", "grammar"), "draft_adaptive": False}
    with bp.Engine("smollm2", cpu_weights="float32", threads=1, num_pages=128, context_length=512, **options) as engine:
        drafted = answers(engine)
        counts = {each.name: each.accepted for each in engine.stats().drafters}
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.finish_reason for one in drafted] == [one.finish_reason for one in plain]
    for one, other in zip(drafted, plain, strict=True):
        assert [entry.logprob for entry in one.logprobs] == pytest.approx([entry.logprob for entry in other.logprobs], abs=2e-4)
    assert drafted[0].usage.accepted_tokens > 10, "a copy was not guessed"
    assert all(counts.values()), counts
