"""What no kernel can go below: the bytes that must move and the products that must be taken, over what a device measurably does.

Pure arithmetic for `benchmarks.gpu`, which prints each kernel's time against its floor. Each input is read once and each output
written once, whatever a kernel really does; keys and values that slots share count once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from branchpoint.kernels.prefixes import SharedPrefix
from branchpoint.kernels.tiles import TileShape

__all__ = [
    "Ceilings",
    "Work",
    "add_rms_norm_work",
    "attention_work",
    "linear_work",
    "merge_work",
    "rms_norm_work",
    "rope_write_work",
    "sample_work",
    "silu_mul_work",
]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was measured to do in a second: bytes copied (read and written counted), operations of a matrix product."""

    bytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Work:
    """The least that must be done; operations are multiplications and additions."""

    bytes: int
    operations: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bytes + other.bytes, self.operations + other.operations)

    def seconds(self, ceilings: Ceilings) -> float:
        """The floor: moving the bytes or taking the products, what takes longer."""
        return max(self.bytes / ceilings.bytes, self.operations / ceilings.operations)

    def share(self, seconds: float, ceilings: Ceilings) -> float:
        """How near `seconds` are to the floor, 1 for on it."""
        return self.seconds(ceilings) / seconds


def attention_work(starts: Sequence[int], counts: Sequence[int], shape: TileShape, shared: Iterable[SharedPrefix] = ()) -> Work:
    """Slots that compute `counts` tokens from `starts` on, causal; queries in, outputs out, keys and values of all contexts."""
    read = sum(start + count for start, count in zip(starts, counts, strict=True))
    for prefix in shared:
        read -= (len(prefix.members) - 1) * (prefix.last - prefix.first) * shape.page_size
    pairs = sum(start * count + count * (count + 1) // 2 for start, count in zip(starts, counts, strict=True))
    rows = 2 * sum(counts) * shape.heads * shape.head_dim * shape.dtype.itemsize
    return Work(
        read * 2 * shape.kv_heads * shape.head_dim * shape.kv_dtype.itemsize + rows, 4 * pairs * shape.heads * shape.head_dim
    )


def merge_work(rows: int, parts: int, shape: TileShape) -> Work:
    """`rows` outputs out of `parts` float32 ones in all, each with its log-sum-exp."""
    read = 4 * parts * shape.heads * (shape.head_dim + 1)
    return Work(read + rows * shape.heads * shape.head_dim * shape.dtype.itemsize)


def linear_work(rows: int, inputs: int, outputs: int, itemsize: int, weight_itemsize: float | None = None) -> Work:
    """[rows, inputs] times a weight [outputs, inputs], whose elements may take other than `itemsize` bytes."""
    weight = inputs * outputs * (itemsize if weight_itemsize is None else weight_itemsize)
    return Work(int(weight) + rows * (inputs + outputs) * itemsize, 2 * rows * inputs * outputs)


def rms_norm_work(rows: int, width: int, itemsize: int) -> Work:
    """One row read and written for each; the weight is nothing beside them."""
    return Work(2 * rows * width * itemsize)


def add_rms_norm_work(rows: int, width: int, itemsize: int) -> Work:
    """Two rows read, the sum and its norm written."""
    return Work(4 * rows * width * itemsize)


def silu_mul_work(rows: int, width: int, itemsize: int) -> Work:
    """Gate and up [rows, width] each read, one written."""
    return Work(3 * rows * width * itemsize)


def rope_write_work(rows: int, shape: TileShape) -> Work:
    """The projection's heads and a row of cos and one of sin read, queries written, keys and values written to the cache."""
    kv = 2 * shape.kv_heads * shape.head_dim
    read = (shape.heads * shape.head_dim + kv + 2 * shape.head_dim) * shape.dtype.itemsize
    return Work(rows * (read + shape.heads * shape.head_dim * shape.dtype.itemsize + kv * shape.kv_dtype.itemsize))


def sample_work(rows: int, vocabulary: int, *, masked: bool = False) -> Work:
    """Float32 logits read once, a bit for each where there are masks."""
    return Work(rows * (4 * vocabulary + (vocabulary // 8 if masked else 0)))
