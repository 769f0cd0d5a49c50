"""The programs that are simulated: agents with tools, few-shot questions and selects, trees of thought, chats.

Lengths are drawn from a fixed seed, so that every policy is given the same work.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from benchmarks.simulation.runner import EOS
from benchmarks.simulation.scripts import Ask, Deed, Fork, Pause, Score, Script

__all__ = ["SHAPES", "Shape"]

Tokens = tuple[int, ...]
Shape = Callable[[int], Script]


def _random(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _tokens(rng: np.random.Generator, low: int, high: int | None = None) -> Tokens:
    """As many random tokens as a number in [low, high]."""
    count = low if high is None else int(rng.integers(low, high + 1))
    return tuple(rng.integers(0, EOS, count).tolist())


def _answer(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def agent(index: int) -> Generator[Deed, Sequence[int], None]:
    """One of 8 system prompts of 1,000 tokens, a question, 4 to 8 turns with a tool call of 1 to 10 seconds between them."""
    rng = _random(1, index)
    text = _tokens(_random(11, index % 8), 1000) + _tokens(rng, 50, 200)
    turns = int(rng.integers(4, 9))
    for turn in range(turns):
        pause = float(rng.uniform(1, 10))
        last = turn == turns - 1
        output = yield Ask(text, _answer(rng, 30, 120), returns=not last, pause=0.0 if last else pause)
        if not last:
            yield Pause(pause)
            text += tuple(output) + _tokens(rng, 50, 400)


def few_shot(index: int) -> Generator[Deed, Sequence[int], None]:
    """One of 64 tasks with 1,200 to 2,500 tokens of examples, a question of its own, an answer of a few tokens."""
    task, rng = _random(12, index % 64), _random(2, index)
    yield Ask(_tokens(task, 1200, 2500) + _tokens(rng, 40, 120), _answer(rng, 1, 8), returns=False)


def few_shot_select(index: int) -> Generator[Deed, Sequence[int], None]:
    """One of 64 tasks as in `few_shot`, a question of its own, and the best of 4 endings of 10 to 20 tokens."""
    task, rng = _random(12, index % 64), _random(6, index)
    text = _tokens(task, 1200, 2500) + _tokens(rng, 40, 120)
    yield Score(text, tuple(_tokens(rng, 10, 20) for _ in range(4)), returns=False)


def tree_of_thought(index: int) -> Generator[Deed, Sequence[int], None]:
    """A problem, and four levels of two thoughts each: 30 calls in 16 branches."""
    rng = _random(3, index)
    text = _tokens(_random(13), 400) + _tokens(rng, 100, 300)
    yield Fork([_thought(index, text, (branch,)) for branch in range(2)])


def _thought(index: int, text: Tokens, path: tuple[int, ...]) -> Generator[Deed, Sequence[int], None]:
    rng = _random(4, index, *path)
    deeper = len(path) < 4
    text += _tokens(rng, 10, 20)
    text += tuple((yield Ask(text, _answer(rng, 30, 90), returns=deeper)))
    if deeper:
        yield Fork([_thought(index, text, (*path, branch)) for branch in range(2)])


def chat(index: int) -> Generator[Deed, Sequence[int], None]:
    """A system prompt of 300 tokens, 3 to 10 turns, a person who reads and types for 5 to 60 seconds between them."""
    rng = _random(5, index)
    text = _tokens(_random(15), 300) + _tokens(rng, 20, 200)
    turns = int(rng.integers(3, 11))
    for turn in range(turns):
        last = turn == turns - 1
        output = yield Ask(text, _answer(rng, 80, 300), returns=not last)
        if not last:
            yield Pause(float(rng.uniform(5, 60)))
            text += tuple(output) + _tokens(rng, 20, 200)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"agents": agent, "few_shot": few_shot, "select": few_shot_select, "tree": tree_of_thought, "chat": chat}
)
