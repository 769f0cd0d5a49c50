"""Calls with every option at random, on a real forward pass: batched, chunked, cached, preempted, they end as each does alone."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from branchpoint.constrained.spec import Choice, Ebnf, JsonSchema, Regex
from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    Event,
    Failed,
    Hints,
    SampleFinished,
    ScoreCall,
    Scored,
    TokenLogprob,
)
from branchpoint.runtime.sampling import SamplingParams

OBJECT = (
    '{"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "integer"}},'
    ' "required": ["a", "b"], "additionalProperties": false}'
)
CONSTRAINTS = (
    None,
    None,
    Regex("[a-z]{3,9}[0-9]"),
    Choice(("left is forced", "left too", "right")),
    JsonSchema(OBJECT),
    Ebnf('start: "x" ("y"|"z"){2,5} "end"'),
)
HEALED = (b"", b"", b"a", b"le", b'{"', "é".encode(), "é".encode()[:1], b"xy")
PLAIN: dict[str, Any] = {"model": "dummy:llama", "threads": 1, "seed": 1, "cpu_weights": "float32", "context_length": 256}
ALONE = {"num_pages": 1024, "radix_cache": False}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_pages": 1024},
    {"num_pages": 60, "page_size": 5, "max_batch_tokens": 13},
    {"num_pages": 300, "page_size": 1, "policy": "lpm", "max_sequences": 6},
    {"num_pages": 1024, "page_size": 128, "policy": "fcfs"},
    {"num_pages": 1024, "drafters": ("grammar", "radix", "suffix", "ngram"), "draft_adaptive": False},
    {"num_pages": 60, "page_size": 5, "max_batch_tokens": 13, "drafters": ("ngram", "grammar"), "ngram_min": 1},
)


@dataclass
class Told:
    """What the events of one call amounted to, by sample."""

    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finished: dict[int, SampleFinished] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    end: Completed | Scored | Failed | None = None

    def take(self, event: Event) -> None:
        assert self.end is None, "an event after the terminal one"
        if isinstance(event, Delta):
            self.tokens[event.index] = self.tokens.get(event.index, ()) + event.tokens
            self.text[event.index] = self.text.get(event.index, "") + event.text
            self.logprobs.setdefault(event.index, []).extend(event.logprobs)
        elif isinstance(event, SampleFinished):
            self.finished[event.index] = event
        else:
            self.end = event


def any_call(rng: random.Random, number: int, shared: Sequence[int]) -> Call | ScoreCall:
    pick = rng.choice
    prompt = (*shared[: rng.randrange(41)], *(rng.randrange(256) for _ in range(rng.randint(1, 20))))
    hints = Hints(program=f"p{number % 3}", path=(number % 4,), priority=pick((0, 0, 1)))
    if rng.random() < 0.15:
        options = tuple(tuple(rng.randrange(256) for _ in range(rng.randrange(6))) for _ in range(rng.randint(1, 4)))
        return ScoreCall(f"c{number}", prompt, options, hints=hints)
    constraint, most = pick(CONSTRAINTS), pick((None, 0, 1, 3, 10, 40))
    most = 30 if most is None and constraint is None else most
    sampling = SamplingParams(
        max_tokens=most,
        min_tokens=min(pick((0, 0, 1, 5)), 5 if most is None else most),
        temperature=pick((0.0, 0.7, 1.5)),
        top_p=pick((1.0, 0.9)),
        top_k=pick((0, 20)),
        seed=rng.randrange(1000),
        n=pick((1, 1, 2, 3)),
        logprobs=pick((None, None, 0, 2)),
        prompt_logprobs=pick((None, None, 0, 1)),
        prompt_logprobs_start=rng.randrange(len(prompt)),
        ignore_eos=pick((True, False)),
        include_stop=pick((True, False, False)),
        skip_special_tokens=pick((True, True, False)),
        stop=pick(((), (), ("e",), ("ab", "b1"), (" ",))),
        stop_token_ids=pick(((), (), (101, 120), (34,))),
        repetition_penalty=pick((1.0, 1.3)),
        presence_penalty=pick((0.0, 1.0)),
        logit_bias=pick(((), ((97, 3.0),))),
    )
    return Call(f"c{number}", prompt, sampling, constraint, pick(HEALED), hints=hints)


class Host:
    """One engine, stepped here."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._loaded = build_engine(EngineConfig(**PLAIN, **options))
        self.engine: Any = self._loaded.engine

    def run(
        self, calls: Sequence[Call | ScoreCall], rng: random.Random | None = None, aborted: str | None = None
    ) -> dict[str, Told]:
        """Each alone; with `rng`, all together, some steps between their arrivals. `aborted` is ended after its first steps."""
        told = {call.id: Told() for call in calls}
        for call in calls:
            self.engine.submit(call)
            while self.engine.has_work and (rng is None or rng.random() < 0.3):
                self._step(told)
        if aborted is not None:
            self.engine.abort(aborted)
        while self.engine.has_work:
            self._step(told)
        assert self.engine.stats().pages_held == 0
        return told

    def _step(self, told: dict[str, Told]) -> None:
        for event in self.engine.step():
            told[event.id].take(event)
        self.engine.check()

    def close(self) -> None:
        self.engine.close()
        self._loaded.close()


@contextmanager
def hosts() -> Iterator[tuple[Host, list[Host]]]:
    with ExitStack() as stack:
        made = []
        for options in (ALONE, *SETTINGS):
            made.append(Host(options))
            stack.callback(made[-1].close)
        yield made[0], made[1:]


def near(left: Sequence[TokenLogprob], right: Sequence[TokenLogprob]) -> None:
    assert [entry.token for entry in left] == [entry.token for entry in right]
    assert [entry.logprob for entry in left] == [
        entry.logprob if entry.logprob is None else pytest.approx(entry.logprob, abs=2e-4) for entry in right
    ]


def check_rounds(seeds: range) -> None:
    with hosts() as (alone, others):
        for seed in seeds:
            rng = random.Random(seed)
            shared = [rng.randrange(256) for _ in range(40)]
            calls = [any_call(rng, number, shared) for number in range(12)]
            expected = alone.run(calls)
            for host in others:
                got = host.run(calls, random.Random(seed))
                for call in calls:
                    check_same(call, expected[call.id], got[call.id])


def check_same(call: Call | ScoreCall, expected: Told, got: Told) -> None:
    if isinstance(expected.end, Failed):  # refused, and for the only reason that these calls give
        assert "no complete output of this constraint" in expected.end.message
        assert isinstance(got.end, Failed) and got.end.message == expected.end.message
        return
    assert type(got.end) is type(expected.end) and not isinstance(got.end, Failed), (call, got.end)
    if isinstance(got.end, Scored) and isinstance(expected.end, Scored):
        assert list(got.end.logprobs) == [pytest.approx(row, abs=2e-4) for row in expected.end.logprobs]
        return
    assert isinstance(call, Call) and isinstance(got.end, Completed) and isinstance(expected.end, Completed)
    assert (got.tokens, got.text, got.finished) == (expected.tokens, expected.text, expected.finished), call
    near(got.end.prompt_logprobs, expected.end.prompt_logprobs)
    for index in range(call.sampling.n):
        near(got.logprobs.get(index, []), expected.logprobs.get(index, []))
        if call.sampling.logprobs is not None:
            assert [entry.token for entry in got.logprobs.get(index, [])] == list(got.tokens.get(index, ())), call
        made = got.finished[index].completion_tokens
        assert call.sampling.max_tokens is None or made <= call.sampling.max_tokens


def test_random_calls_end_the_same_in_any_setting() -> None:
    check_rounds(range(3))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_many_random_calls_end_the_same_in_any_setting() -> None:
    check_rounds(range(100, 300))
