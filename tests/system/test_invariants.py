"""The engine with the real runner says the same whatever is cached, chunked, batched, preempted, and what transformers says."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.generation import Generation

DUMMY = {"model": "dummy:llama", "seed": 3, "cpu_weights": "float32", "threads": 1, "context_length": 512, "num_pages": 256}
VOCABULARY = 250


def requests(count: int) -> list[list[int]]:
    """Prompts of mixed lengths; every second one begins with a shared stretch."""
    rng = random.Random(count)
    shared = [rng.randrange(VOCABULARY) for _ in range(70)]
    return [
        shared[: 35 * (i % 2) * (1 + i % 3)] + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 60))]
        for i in range(count)
    ]


def answers(options: dict[str, Any], prompts: list[list[int]], *, alone: bool = False) -> list[tuple[int, ...]]:
    sampling: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 11, "max_tokens": 40, "ignore_eos": True}
    with bp.Engine(**{**DUMMY, **options}) as engine:
        done = [engine.generate(prompt, **sampling) for prompt in prompts] if alone else engine.generate(prompts, **sampling)
    assert all(isinstance(one, Generation) for one in done)
    return [tuple(one.tokens) for one in done]


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    """Each request alone, nothing cached, whole prompts in one pass."""
    return answers({"radix_cache": False, "page_size": 16}, requests(12), alone=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"page_size": 1, "num_pages": 4096},
        {"page_size": 16, "max_batch_tokens": 24},
        {"page_size": 5, "num_pages": 103, "context_length": 256},
        {"policy": "fcfs", "max_sequences": 3},
        {"policy": "lpm"},
        {"radix_cache": False},
    ],
    ids=str,
)
def test_same_tokens_in_any_setting(options: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    assert answers(options, requests(12)) == expected


def test_preempted_sequences_say_the_same(expected: list[tuple[int, ...]]) -> None:
    options = {**DUMMY, "num_pages": 16, "page_size": 16, "context_length": 256}
    with bp.Engine(**options) as engine:
        done = engine.generate(requests(12), temperature=0.7, top_p=0.9, seed=11, max_tokens=40, ignore_eos=True)
    assert [tuple(one.tokens) for one in done] == expected
    assert sum(one.usage.preemptions for one in done) > 0


@pytest.fixture(scope="module")
def smollm2() -> Iterator[bp.Engine]:
    with bp.Engine(model="smollm2", cpu_weights="float32", num_pages=512, context_length=2048) as engine:
        yield engine


@pytest.mark.slow
def test_greedy_text_of_the_whole_engine_equals_transformers(smollm2: bp.Engine) -> None:
    prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village,", "1 2 3 4 5"]
    together = smollm2.generate(prompts, temperature=0.0, max_tokens=64, ignore_eos=True)
    again = [smollm2.generate(prompt, temperature=0.0, max_tokens=64, ignore_eos=True) for prompt in prompts]
    assert [one.tokens for one in together] == [one.tokens for one in again]
    assert all(one.usage.cached_tokens > 0 for one in again)
