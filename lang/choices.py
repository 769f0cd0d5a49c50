"""How `select` decides between options from the log-probabilities of their tokens.

The executor asks the backend for what a method `needs`, hands over the scored options, and gets a `Decision`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from branchpoint.lang.errors import ProgramMistake

__all__ = [
    "ChoicesMethod",
    "Decision",
    "ScoredOption",
    "decide",
    "greedy_token_selection",
    "method_of",
    "token_length_normalized",
    "total",
    "total_with_end",
    "unconditional_likelihood_normalized",
]


@dataclass(frozen=True, slots=True)
class ScoredOption:
    """An option with its tokens' natural-log probabilities; `end` is that of the end token after it, where it was asked for."""

    text: str
    logprobs: tuple[float, ...]
    end: float | None = None
    unconditional: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen index, and for every option its score and normalised probability."""

    choice: int
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """`score` gives one number for each option; the highest wins. The flags say what the backend is asked besides."""

    name: str
    score: Callable[[Sequence[ScoredOption]], Sequence[float]]
    with_end: bool = False
    unconditional: bool = False


def _total(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) for option in options]


def _total_with_end(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) + (option.end or 0.0) for option in options]


def _mean(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) / max(len(option.logprobs), 1) for option in options]


def _greedy(options: Sequence[ScoredOption]) -> list[float]:
    alive = list(range(len(options)))
    depth = [0] * len(options)
    for step in range(max(len(option.logprobs) for option in options)):
        going = [index for index in alive if step < len(options[index].logprobs)]
        if not going:
            break
        best = max(options[index].logprobs[step] for index in going)
        alive = [index for index in going if options[index].logprobs[step] >= best - 1e-5]
        for index in alive:
            depth[index] = step + 1
    return [float(count) for count in depth]


def _against_unconditional(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) - math.fsum(option.unconditional or ()) for option in options]


total = ChoicesMethod("total", _total)
total_with_end = ChoicesMethod("total_with_end", _total_with_end, with_end=True)
token_length_normalized = ChoicesMethod("token_length_normalized", _mean)
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy)
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _against_unconditional, unconditional=True
)


def method_of(wanted: object) -> ChoicesMethod:
    """The method of this name, or one made of a function of the scored options. Raises ProgramMistake naming the known ones."""
    known = (total, total_with_end, token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)
    if isinstance(wanted, ChoicesMethod):
        return wanted
    if callable(wanted):
        return ChoicesMethod(getattr(wanted, "__name__", "custom"), wanted)
    for method in known:
        if method.name == wanted:
            return method
    names = ", ".join(method.name for method in known)
    raise ProgramMistake(f"choices_method must be one of {names}, or a function of the scored options; got {wanted!r}.")


def decide(method: ChoicesMethod, options: Sequence[ScoredOption]) -> Decision:
    """Decide between at least one option; the first of equal scores wins."""
    scores = tuple(float(score) for score in method.score(options))
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return Decision(scores.index(best), scores, tuple(weight / math.fsum(weights) for weight in weights))
