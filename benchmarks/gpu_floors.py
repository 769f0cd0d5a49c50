"""What no serving engine can go below on a workload: each step reads the weights once, each token takes its products.

Pure arithmetic beside `floors`, which has the same for kernels. Whatever several requests share is read and computed once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.floors import Work
from branchpoint.runtime.models.config import ModelConfig

__all__ = ["Served", "served", "serving_work"]


@dataclass(frozen=True, slots=True)
class Served:
    """What a workload comes to: `tokens` computed in `steps` passes at least, tokens drawn, pairs of a query and a key that it
    sees, and keys that decoding reads.
    """

    steps: int = 0
    tokens: int = 0
    drawn: int = 0
    pairs: int = 0
    read: int = 0

    def __add__(self, other: "Served") -> "Served":
        return Served(
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.drawn + other.drawn,
            self.pairs + other.pairs,
            self.read + other.read,
        )


def served(requests: Iterable[tuple[int, int, int]], shared: int = 0) -> Served:
    """Requests that run at once, each (tokens that are cached, tokens of the prompt behind them, tokens drawn).

    The first `shared` of the cached ones are the same for all.
    """
    each = list(requests)
    steps = max(drawn for *_, drawn in each)
    tokens = sum(new + drawn - 1 for _, new, drawn in each)
    pairs = sum(_sum(cached + new + drawn - 1) - _sum(cached) for cached, new, drawn in each)
    read = sum((drawn - 1) * (cached + new - shared) + _sum(drawn - 1) for cached, new, drawn in each)
    return Served(steps, tokens, sum(drawn for *_, drawn in each), pairs, read + (steps - 1) * shared)


def serving_work(shape: ModelConfig, workload: Served, itemsize: int) -> Work:
    """The least bytes and operations of a workload, weights and KV of `itemsize` bytes; the draws themselves are not counted."""
    head = shape.vocabulary_size * shape.hidden_size
    layers = shape.num_parameters - (1 if shape.tied else 2) * head
    weights, kv = layers + head, 2 * shape.kv_size * shape.num_layers
    return Work(
        itemsize * (workload.steps * weights + workload.read * kv),
        2 * (layers * workload.tokens + head * workload.drawn) + 4 * workload.pairs * shape.q_size * shape.num_layers,
    )


def _sum(count: int) -> int:
    """1 + 2 + ... + count."""
    return count * (count + 1) // 2
