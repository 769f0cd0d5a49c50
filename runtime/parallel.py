"""Where a piece of the model runs: its shard of the weights.

Passed into models and weight loading; a model asks its shard, never the environment.
"""

from dataclasses import dataclass

from branchpoint.runtime.errors import ModelError

__all__ = ["Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts that a model's heads and hidden units are cut into; `rank` counts from 0.

    Raises ModelError for a size above 1, which the layers don't cut for yet, and for a rank outside the size.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ModelError(f"A shard's rank must be in [0, {self.size - 1}], got {self.rank}.")
        if self.size != 1:
            raise ModelError(f"Tensor parallelism over {self.size} shards is not implemented; use one (size 1).")
