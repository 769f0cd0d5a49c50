"""The name of a prefix: a namespace and token ids, packed once so that edges of the tree compare at the speed of memory.

Made by the scheduler for each match and insert; read by the tree.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["PrefixKey", "common_prefix"]


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """Token ids (signed 64 bits) within a namespace; prefixes are shared inside a namespace, never across.

    `tokens` may be any sequence and is kept as a tuple; `packed` is the same as an `array("q")`, for comparing only.
    """

    namespace: str
    tokens: Sequence[int]
    packed: "array[int]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens = tuple(self.tokens)
        packed = array("q")
        packed.frombytes(struct.pack(f"{len(tokens)}q", *tokens))
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "packed", packed)

    def __len__(self) -> int:
        return len(self.packed)


def common_prefix(left: "array[int]", right: "array[int]") -> int:
    """Length of the longest common prefix of two packed token arrays: equality of slices, halved until it stands still."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:  # the first difference lies in [low, high)
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
