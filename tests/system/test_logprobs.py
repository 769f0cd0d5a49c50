"""Log-probabilities are the model's own, to 1e-4: whatever is cached, chunked, forced, drawn or scored."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from branchpoint.constrained.spec import Choice, Constraint, JsonSchema, Regex
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Call, Completed, Delta, Failed, ScoreCall, Scored, Text, TokenLogprob
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.model_checks import logits_of

CLOSE = 1e-4
DUMMY: dict[str, Any] = {"model": "dummy:llama", "num_pages": 256, "threads": 1, "cpu_weights": "float32", "seed": 2}


class Host:
    """An engine that is stepped here, and its model for a plain forward pass."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self.engine, self.tokenizer = loaded.engine, loaded.tokenizer
        self.model = loaded.engine._runner._model  # type: ignore[attr-defined]  # the plain pass needs the model itself
        self._number = 0

    def run(self, *calls: Call | ScoreCall) -> list[tuple[list[TokenLogprob], Completed | Scored]]:
        """The log-probabilities and the end of each call (of one sample)."""
        found: dict[str, tuple[list[TokenLogprob], list[Completed | Scored]]] = {call.id: ([], []) for call in calls}
        for call in calls:
            self.engine.submit(call)
        while self.engine.has_work:
            for event in self.engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Delta):
                    found[event.id][0].extend(event.logprobs)
                elif isinstance(event, Completed | Scored):
                    found[event.id][1].append(event)
            self.engine.check()
        return [(entries, ends[0]) for entries, ends in found.values()]

    def call(self, prompt: Sequence[int], constraint: Constraint | None = None, **options: Any) -> Call:
        self._number += 1
        return Call(f"c{self._number}", tuple(prompt), SamplingParams(**options), constraint)

    def score(self, prompt: Sequence[int], *continuations: Sequence[int]) -> ScoreCall:
        self._number += 1
        return ScoreCall(f"s{self._number}", tuple(prompt), tuple(map(tuple, continuations)))

    def expected(self, tokens: Sequence[int]) -> Tensor:
        """Row p predicts token p + 1: log-softmax of one pass over all tokens."""
        return logits_of(self.model, tokens).log_softmax(-1)


def hosted(**options: Any) -> Iterator[Host]:
    loaded = build_engine(EngineConfig(**options))
    yield Host(loaded)
    loaded.engine.close()
    loaded.close()


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Host]:
    yield from hosted(model="smollm2", num_pages=128, threads=1, cpu_weights="float32", context_length=512, max_batch_tokens=24)


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"radix_cache": False, "max_batch_tokens": 5},
        {"page_size": 1, "max_batch_tokens": 64},
        {"page_size": 3, "num_pages": 40},
    ],
    ids=str,
)
def dummy(request: pytest.FixtureRequest) -> Iterator[Host]:
    yield from hosted(**{**DUMMY, **request.param})


def assert_entries(host: Host, tokens: Sequence[int], first: int, entries: Sequence[TokenLogprob], top: int) -> None:
    """`entries` are those of tokens[first:], each with its `top` best alternatives."""
    rows = host.expected(tokens)
    assert [entry.token for entry in entries] == list(tokens[first:])
    for place, entry in enumerate(entries, first):
        assert entry.text == host.tokenizer.token_bytes(entry.token)
        if place == 0:
            assert (entry.logprob, entry.top) == (None, ())
            continue
        row = rows[place - 1]
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=CLOSE)
        values = [value for _, value, _ in entry.top]
        assert values == sorted(values, reverse=True) and len(values) == top
        assert values == pytest.approx(row.topk(top).values.tolist() if top else [], abs=CLOSE)
        assert all(value == pytest.approx(float(row[token]), abs=CLOSE) for token, value, _ in entry.top)


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(30)]
    return [shared[: rng.randrange(31)] + [rng.randrange(256) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def test_prompt_logprobs_are_the_models_from_any_start(dummy: Host) -> None:
    for prompt in prompts(6, seed=1):
        for start in {0, 1, len(prompt) // 2, len(prompt) - 1}:
            call = dummy.call(prompt, prompt_logprobs=2, prompt_logprobs_start=start, max_tokens=2, seed=start)
            ((_, end),) = dummy.run(call)
            assert isinstance(end, Completed)
            assert_entries(dummy, prompt, start, end.prompt_logprobs, 2)


def test_prompt_logprobs_of_many_calls_at_once(dummy: Host) -> None:
    asked = prompts(8, seed=2)
    calls = [dummy.call(prompt, prompt_logprobs=at % 3, max_tokens=at % 2, n=1 + at % 3) for at, prompt in enumerate(asked)]
    for at, (prompt, (_, end)) in enumerate(zip(asked, dummy.run(*calls), strict=True)):
        assert isinstance(end, Completed)
        assert_entries(dummy, prompt, 0, end.prompt_logprobs, at % 3)


BIAS = ((5, 30.0), (6, -100.0))
STEERED = [
    {},
    {"temperature": 0.0},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.8},
    {"logit_bias": BIAS},
    {"presence_penalty": 2.0, "frequency_penalty": -1.0, "repetition_penalty": 1.4},
    {"min_tokens": 12},
]


@pytest.mark.parametrize("steered", STEERED, ids=str)
def test_output_logprobs_are_raw_whatever_steers_the_draw(dummy: Host, steered: dict[str, Any]) -> None:
    options = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3, "seed": 4, **steered}
    asked = prompts(4, seed=3)
    for prompt, (entries, _) in zip(asked, dummy.run(*(dummy.call(prompt, **options) for prompt in asked)), strict=True):
        tokens = [*prompt, *(entry.token for entry in entries)]
        assert len(entries) == 12
        assert_entries(dummy, tokens, len(prompt), entries, 3)


HELD = [
    Choice(("a long option that is forced as a whole", "a long option that is not")),
    JsonSchema(
        json.dumps(
            {"type": "object", "properties": {"key": {"type": "boolean"}}, "required": ["key"], "additionalProperties": False}
        )
    ),
    Regex("constant [0-9]{2} text"),
]


@pytest.mark.parametrize("constraint", HELD, ids=lambda constraint: type(constraint).__name__)
@pytest.mark.parametrize("most", [None, 5, 20])
def test_forced_and_masked_tokens_have_the_models_own_logprobs(dummy: Host, constraint: Constraint, most: int | None) -> None:
    prompt = list(b"Say it: ")
    calls = [
        dummy.call(prompt, constraint, logprobs=2, prompt_logprobs=1, seed=seed, max_tokens=most, temperature=1.5)
        for seed in range(3)
    ]
    for entries, end in dummy.run(*calls):
        assert isinstance(end, Completed) and end.usage.forced_tokens > 0
        assert_entries(dummy, [*prompt, *(entry.token for entry in entries)], len(prompt), entries, 2)
        assert_entries(dummy, prompt, 0, end.prompt_logprobs, 1)


def test_scores_equal_the_prompts_logprobs_of_the_same_tokens(dummy: Host) -> None:
    for prompt in prompts(4, seed=5):
        continuations = [[1, 2, 3], [1, 2], [], [1, 2, 3, 4, 5], [9] * 30]
        ((_, scored),) = dummy.run(dummy.score(prompt, *continuations))
        assert isinstance(scored, Scored)
        for continuation, row in zip(continuations, scored.logprobs, strict=True):
            tokens = [*prompt, *continuation]
            expected = dummy.expected(tokens)
            assert row == pytest.approx(
                [float(expected[at - 1, tokens[at]]) for at in range(len(prompt), len(tokens))], abs=CLOSE
            )
            ((_, known),) = dummy.run(dummy.call(tokens, prompt_logprobs=0, max_tokens=0))
            assert isinstance(known, Completed)
            assert row == pytest.approx([entry.logprob for entry in known.prompt_logprobs[len(prompt) :]], abs=CLOSE)


TEXT = "The quick brown fox jumps over the lazy dog. Ünïcödé 🙂 counts too: 1, 2, 3, 4 and so on until the prompt is long."


def test_the_real_models_logprobs_are_raw_chunked_cached_and_scored(smollm2: Host) -> None:
    prompt = smollm2.tokenizer.encode(TEXT)
    first = smollm2.call(prompt, prompt_logprobs=3, logprobs=3, max_tokens=6, temperature=0.8, seed=1, ignore_eos=True)
    ((entries, end),) = smollm2.run(first)
    assert isinstance(end, Completed)
    assert_entries(smollm2, prompt, 0, end.prompt_logprobs, 3)
    tokens = [*prompt, *(entry.token for entry in entries)]
    assert_entries(smollm2, tokens, len(prompt), entries, 3)
    again, scored = smollm2.run(
        smollm2.call(tokens, prompt_logprobs=0, prompt_logprobs_start=20, max_tokens=0), smollm2.score(tokens[:20], tokens[20:])
    )
    assert isinstance(again[1], Completed) and isinstance(scored[1], Scored)
    assert again[1].usage.cached_tokens == 19
    assert_entries(smollm2, tokens, 20, again[1].prompt_logprobs, 0)
    assert scored[1].logprobs[0] == pytest.approx([entry.logprob for entry in again[1].prompt_logprobs], abs=CLOSE)


def totals(host: Host, before: str, options: Sequence[str]) -> list[float]:
    """The log-probability of each option's bytes after the text, as `select` has it."""
    cut = host.tokenizer.options((Text(before),), options)
    ((_, scored),) = host.run(host.score(cut.prompt, *cut.continuations))
    assert isinstance(scored, Scored)
    return [math.fsum(row[skip:]) for row, skip in zip(scored.logprobs, cut.skips, strict=True)]


@pytest.mark.parametrize(
    ("before", "seam", "options"),
    [
        ("Is the sky blue?\nAnswer:", " ", ["Yes", "No"]),
        ("I live in New", " ", ["York", "Orleans", "Zealand"]),
        ("Der Fluss heißt Do", "n", ["au", "ez"]),
        ("x = 1", "0", ["0", "5", "00"]),
        ("Smile: ", "🙂", ["🙂", "!"]),
    ],
)
def test_where_text_and_options_meet_changes_no_probability(
    smollm2: Host, before: str, seam: str, options: Sequence[str]
) -> None:
    apart = torch.tensor(totals(smollm2, before, [seam + option for option in options])).softmax(0)
    together = torch.tensor(totals(smollm2, before + seam, options)).softmax(0)
    torch.testing.assert_close(apart, together, atol=1e-3, rtol=0)


def test_a_trie_of_continuations_scores_as_each_of_them_alone_and_computes_less(dummy: Host) -> None:
    rng = random.Random(9)
    for prompt in prompts(4, seed=9):
        stems = [tuple(rng.randrange(256) for _ in range(rng.randint(1, 9))) for _ in range(3)]
        options = [(*rng.choice(stems), *(rng.randrange(4) for _ in range(rng.randint(0, 3)))) for _ in range(20)]
        together = scores_of(dummy, prompt, *options)
        for option, found in zip(options, together.logprobs, strict=True):
            assert found == pytest.approx(scores_of(dummy, prompt, option).logprobs[0], abs=1e-5)
        begun = {option[:length] for option in options for length in range(1, len(option))}
        usage = together.usage
        assert usage.prompt_tokens == len(prompt) + sum(map(len, options))
        if dummy.engine._cache.enabled:
            assert usage.cached_tokens + usage.prefilled_tokens == usage.prompt_tokens
            assert usage.prefilled_tokens <= len(prompt) + len(begun) < usage.prompt_tokens - 20


def scores_of(host: Host, prompt: Sequence[int], *continuations: Sequence[int]) -> Scored:
    ((_, end),) = host.run(host.score(prompt, *continuations))
    assert isinstance(end, Scored)
    return end
