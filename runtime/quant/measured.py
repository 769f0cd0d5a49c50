"""Chooses, for each shape of linear and each count of rows, the fastest form of its weights on this very CPU.

The `LinearMethod` behind `--cpu-weights auto` for block-quantised files: forms compete only where their error stays within what
the file's own rounding took away. Measured once a shape, at load.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from branchpoint.runtime.layers.linear import LinearSource, PlainLinear
from branchpoint.runtime.quant.bfloat16 import Bfloat16Linear, bfloat16_fast
from branchpoint.runtime.quant.blocks import GROUP, FourBit
from branchpoint.runtime.quant.int4 import Int4Linear
from branchpoint.runtime.quant.int8 import Int8Linear, int8_available

__all__ = ["FORMS", "Measured", "MeasuredLinear", "fastest"]

Apply = Callable[[Tensor], Tensor]

FORMS = ("float32", "bfloat16", "int4", "int8")
_COARSE = ("int8",)  # forms with an error of their own well above bfloat16's
_EARNED = 1.25  # a coarse form must be this many times as fast as another one to count as equal
_CLEARLY = 0.85  # the form of fewer rows stays unless another takes less than this share of its time
_ROWS = (1, 32, 128)  # few buckets: within one, the same tokens give the same text whatever is batched with them
_BUCKET_OF_BITS = (0, 0, 0, 0, 1, 1, 1, 2)  # bit length of the row count -> index into _ROWS
_HOPELESS = 3.0  # this many times slower than the best, at _SETTLED rows or more: not tried with more
_SETTLED = 16  # with fewer rows the weights' bytes decide, with more the products do
_LARGEST = 2**31  # multiplications that a measurement may cost; larger ones keep the choice of fewer rows
_LAPS = 6
_RACE_SECONDS = 0.02  # after which a race ends, once each form has run _LEAST_LAPS times
_LEAST_LAPS = 3
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.625}  # for each weight
_READ_BYTES, _READS = 2**24, 8
_READERS = 4  # threads that read memory faster than one does; more of them hardly add to it


class MeasuredLinear:
    """Weights in the forms that won, one for each bucket of row counts."""

    def __init__(self, forms: tuple[Apply, ...]) -> None:
        self._forms = tuple(forms[bucket] for bucket in _BUCKET_OF_BITS)

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N]."""
        return self._forms[min(x.shape[0].bit_length(), 7)](x)


@dataclass(frozen=True, slots=True)
class _Weights:
    """A source's weights: four-bit blocks where the file has them, dense float32 when a form asks for it."""

    source: LinearSource
    blocks: FourBit | None

    def dense(self) -> Tensor:
        """The weights [N, K] float32."""
        return self.source.dense().float() if self.blocks is None else self.blocks.dense()

    def form(self, name: str) -> Apply:
        """The layer in this form."""
        if name == "int4":
            assert self.blocks is not None, "int4 is only offered for the file's own blocks"
            return Int4Linear(self.blocks, self.source.bias).apply
        if name == "int8":
            return Int8Linear(self.dense(), self.source.bias).apply
        if name == "bfloat16":
            return Bfloat16Linear(self.dense(), self.source.bias).apply
        return PlainLinear(self.dense(), self.source.bias).apply


class Measured:
    """Linears of the fastest allowed forms. `allowed` are names out of `FORMS`; float32 may be missing where memory is short.

    `choices` tells what was chosen: for each (N, K, has blocks) the form of each bucket of rows (1-7, 8-63, more).
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        available = {"float32": True, "bfloat16": bfloat16_fast(), "int8": int8_available(), "int4": True}
        self._allowed = tuple(name for name in allowed if available[name])
        self._threads = torch.get_num_threads()
        with _one_thread():
            self._read_seconds = _read_seconds() / min(self._threads, _READERS)
        self.choices: dict[tuple[int, int, bool], tuple[str, ...]] = {}

    @property
    def is_coarse(self) -> bool:
        """Whether forms below bfloat16 are allowed: the file itself is coarser than that."""
        return not {"int4", "int8"}.isdisjoint(self._allowed)

    def create(self, source: LinearSource) -> MeasuredLinear:
        """See `LinearMethod`."""
        blocks = source.four_bit() if source.shape[1] % GROUP == 0 else None
        weights = _Weights(source, blocks)
        key = (*source.shape, blocks is not None)
        if key not in self.choices:
            names = [name for name in self._allowed if name != "int4" or blocks is not None] or ["float32"]
            built = {name: weights.form(name) for name in names}
            with _one_thread():
                self.choices[key] = fastest(built, source.shape[1], source.shape[0], self._threads, self._read_seconds)
        else:
            built = {name: weights.form(name) for name in set(self.choices[key])}
        return MeasuredLinear(tuple(built[name] for name in self.choices[key]))


def fastest(
    forms: dict[str, Apply],
    inputs: int,
    outputs: int,
    threads: int,
    read_seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> tuple[str, ...]:
    """The name of the best form for each bucket of rows, by `clock` (seconds). A coarse form wins only by a clear margin.

    The race runs on one thread and on weights that the caches hold; a real step has `threads`, and its weights come from
    memory. So a form counts as taking its share of the time, and no less than its bytes take to be read, at `read_seconds` each.
    """
    floors = {name: _BYTES[name] * inputs * outputs * read_seconds for name in forms}
    chosen: list[str] = []
    running = list(forms)
    for rows in _ROWS:
        if len(running) == 1 or (chosen and rows * inputs * outputs > _LARGEST):
            chosen.append(chosen[-1] if chosen else running[0])
            continue
        x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
        raced = _race({name: forms[name] for name in running}, x, clock)
        seconds = {name: max(taken / threads, floors[name]) for name, taken in raced.items()}
        handicapped = {name: taken * (_EARNED if name in _COARSE else 1.0) for name, taken in seconds.items()}
        best = min(handicapped, key=handicapped.__getitem__)
        stays = bool(chosen) and chosen[-1] in running and handicapped[best] > _CLEARLY * handicapped[chosen[-1]]
        chosen.append(chosen[-1] if stays else best)
        if rows >= _SETTLED:
            running = [name for name in running if seconds[name] <= _HOPELESS * min(seconds.values())]
    return tuple(chosen)


def _race(forms: dict[str, Apply], x: Tensor, clock: Callable[[], float]) -> dict[str, float]:
    """The least seconds that each form took for x. They run in turn, so that a busy moment of the machine strikes them all."""
    for form in forms.values():
        form(x)  # warms caches and pages up
    best = dict.fromkeys(forms, float("inf"))
    begin = clock()
    for lap in range(_LAPS):
        for name, form in forms.items():
            started = clock()
            form(x)
            best[name] = min(best[name], clock() - started)
        if lap + 1 >= _LEAST_LAPS and clock() - begin > _RACE_SECONDS:
            break
    return best


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on this thread alone: what one thread takes hardly changes while the machine's other cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read_seconds() -> float:
    """Seconds in which one thread reads one byte of memory, out of a stretch larger than most caches, in its best moment."""
    pieces = torch.zeros(_READS, _READ_BYTES // 4)
    best = float("inf")
    for piece in pieces:
        begin = perf_counter()
        piece.sum()
        best = min(best, perf_counter() - begin)
    return best / _READ_BYTES
