"""How `select` decides between options from the log-probabilities of their tokens.

The executor asks the backend for what a method needs, hands over the scored options, and gets a `Decision`. The methods of
SGLang are here by its names; `total` and `total_with_end`, which are probabilities of the whole option, are beside them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from branchpoint.lang.errors import ProgramMistake

__all__ = [
    "TIE",
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

TIE = 1e-5
"""Log-probabilities that lie within this of each other are the same to `greedy_token_selection`."""


@dataclass(frozen=True, slots=True)
class ScoredOption:
    """An option with its tokens' natural-log probabilities; `end` is that of the end token after it, where it was asked for."""

    text: str
    logprobs: tuple[float, ...]
    end: float | None = None
    unconditional: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen index, and for every option its score and normalised probability (the softmax of the scores)."""

    choice: int
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """`score` gives one number for each option; the highest wins. The flags say what the backend is asked besides.

    A method of your own: `select(..., choices_method=function)`, or one of these where it needs `end` or `unconditional`.
    """

    name: str
    score: Callable[[Sequence[ScoredOption]], Sequence[float]]
    with_end: bool = False
    unconditional: bool = False


def _mean(logprobs: Sequence[float]) -> float:
    return math.fsum(logprobs) / max(len(logprobs), 1)


def _total(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) for option in options]


def _total_with_end(options: Sequence[ScoredOption]) -> list[float]:
    return [math.fsum(option.logprobs) + (option.end or 0.0) for option in options]


def _means(options: Sequence[ScoredOption]) -> list[float]:
    return [_mean(option.logprobs) for option in options]


def _against_unconditional(options: Sequence[ScoredOption]) -> list[float]:
    return [_mean(option.logprobs) - _mean(option.unconditional or ()) for option in options]


def _greedy(options: Sequence[ScoredOption]) -> list[float]:
    """How many steps an option stayed among the best, and how near it came (below 1) at the one where it fell out.

    An option that has ended goes on with its mean, so that a prefix of another can win.
    """
    steps = max(len(option.logprobs) for option in options)
    rows = [(*option.logprobs, *[_mean(option.logprobs)] * (steps - len(option.logprobs))) for option in options]
    scores = [float(steps)] * len(rows)
    alive = list(range(len(rows)))
    for step in range(steps):
        best = max(rows[index][step] for index in alive)
        for index in [index for index in alive if rows[index][step] < best - TIE]:
            scores[index] = step + math.exp(rows[index][step] - best)
            alive.remove(index)
    return scores


total = ChoicesMethod("total", _total)
total_with_end = ChoicesMethod("total_with_end", _total_with_end, with_end=True)
token_length_normalized = ChoicesMethod("token_length_normalized", _means)
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
    """Decide between at least one option; the first of equal scores wins. Raises ProgramMistake for scores that are none."""
    scores = _scores(method, options)
    best = max(scores)
    weights = [1.0 if score == best else math.exp(score - best) for score in scores]  # equal ones may both be infinite
    whole = math.fsum(weights)
    return Decision(scores.index(best), scores, tuple(weight / whole for weight in weights))


def _scores(method: ChoicesMethod, options: Sequence[ScoredOption]) -> tuple[float, ...]:
    given = method.score(options)
    try:
        scores = tuple(map(float, given))
    except (TypeError, ValueError) as error:
        raise ProgramMistake(f"{method.name} must give a number for each option, got {given!r:.80}.") from error
    if len(scores) != len(options) or any(map(math.isnan, scores)):
        raise ProgramMistake(f"{method.name} must give a number for each of {len(options)} options, got {given!r:.80}.")
    return scores
