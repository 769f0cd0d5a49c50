"""On real forward passes in float32: the same tokens with every drafter and without, and real models' guesses do come true."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Failed
from branchpoint.runtime.weights.loader import load_model
from tests.drafting.training import TrainedHead
from tests.system.test_random_calls import ALONE, PLAIN, Host, any_call, check_same

CHAINS: tuple[dict[str, Any], ...] = (
    {"drafters": ("grammar",)},
    {"drafters": ("ngram",), "ngram_min": 1, "draft_branches": 3, "draft_tokens": 12},
    {"drafters": ("suffix",), "draft_branches": 2},
    {"drafters": ("radix",)},
    {"drafters": ("model",), "draft_model": "dummy:qwen3"},
    {"drafters": ("radix", "grammar"), "draft_branches": 3, "num_pages": 60, "page_size": 5, "max_batch_tokens": 24},
    {"drafters": ("radix", "suffix", "grammar"), "num_pages": 400, "page_size": 1, "draft_adaptive": True, "draft_branches": 2},
    {"drafters": ("head",), "draft_tokens": 3},
    {"drafters": ("head", "grammar"), "num_pages": 300, "page_size": 1, "max_batch_tokens": 24},
    {"drafters": ("grammar", "model"), "draft_model": "dummy:llama", "num_pages": 60, "page_size": 5, "max_batch_tokens": 24},
)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a head that has learned nothing: with the same noise, it is right now and then all the same."""
    torch.manual_seed(1)
    model = load_model(EngineConfig(**PLAIN), torch.device("cpu")).model
    return TrainedHead(model).save(Path(tmp_path_factory.mktemp("head")))


def check_rounds(seeds: range, head: str, *, most: int) -> None:
    """Random calls, each of them twice, so that there is something to guess from; now and then one is aborted."""
    alone = Host(ALONE)
    hosts = [Host({"num_pages": 1024, "draft_adaptive": False, **chain, **_head_of(chain, head)}) for chain in CHAINS]
    try:
        for seed in seeds:
            rng = random.Random(seed)
            shared = [rng.randrange(256) for _ in range(40)]
            calls = [any_call(rng, number, shared) for number in range(most)]
            expected = alone.run(calls)
            for host in hosts:
                for time in range(2):
                    got = host.run(calls, random.Random(seed + time), aborted=calls[-1].id if time else None)
                    for call in calls:
                        aborted = time == 1 and call is calls[-1] and isinstance(got[call.id].end, Failed)
                        if not aborted:
                            check_same(call, expected[call.id], got[call.id])
        for host, chain in zip(hosts, CHAINS, strict=True):
            adaptive = chain.get("draft_adaptive", False)  # depends on what steps took
            assert adaptive or sum(counts.accepted for counts in host.engine.stats().drafters) > 0, chain
    finally:
        for host in (alone, *hosts):
            host.close()


def _head_of(chain: dict[str, Any], head: str) -> dict[str, str]:
    return {"draft_head": head} if "head" in chain["drafters"] else {}


@pytest.mark.timeout(120)
def test_random_calls_say_the_same_with_every_drafter(head: str) -> None:
    check_rounds(range(1), head, most=8)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_five_hundred_random_calls_say_the_same_with_every_drafter(head: str) -> None:
    check_rounds(range(1000, 1021), head, most=24)
