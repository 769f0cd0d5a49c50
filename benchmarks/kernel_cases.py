"""Every kernel with inputs, its torch reference and its least work: `benchmarks.gpu` checks them all, then times them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import floors
from benchmarks.floors import Work
from branchpoint.kernels import activation, adjust, attention, draw, drawing, logprobs, norm, paged, reference, rotary
from branchpoint.kernels.drawing import DrawOptions
from branchpoint.kernels.laying import plan_tiles
from branchpoint.kernels.layout import SlotTable, plan_attention
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.tiles import TileShape

__all__ = ["KernelCase", "Sizes", "kernel_cases", "sharing_case"]

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes to run in: `rows` tokens of the small operations, `context` tokens of each of `batch` decoding sequences."""

    rows: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    batch: int
    page_size: int = 16


@dataclass(frozen=True, slots=True)
class KernelCase:
    """`run` and `expected` return the same tensors but for rounding, up to `tolerance` of the largest entry. `bar` is the least
    share of the floor that is asked for, None where nothing is.
    """

    name: str
    run: Callable[[], Tensors]
    expected: Callable[[], Tensors]
    work: Work | None
    tolerance: float
    bar: float | None = None

    def error(self) -> float:
        """The largest difference from the reference, over the largest entry of each tensor; infinite where shapes differ."""
        worst = 0.0
        for actual, expected in zip(self.run(), self.expected(), strict=True):
            if actual.shape != expected.shape:
                return math.inf
            if actual.numel():
                scale = expected.double().abs().max().clamp(min=1e-6)
                worst = max(worst, float((actual.double() - expected.double()).abs().max() / scale))
        return worst if worst == worst else math.inf


class _Make:
    """Random inputs on a device, the same for the same seed."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype or self.dtype)

    def whole(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(high, shape, generator=self._generator, device=self.device, dtype=dtype)


def kernel_cases(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[KernelCase]:
    """All kernels, one after another, so that each one's inputs can go before the next are made."""
    make = _Make(device, dtype)
    close = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    yield from _layer_cases(sizes, make, close)
    yield from _attention_cases(sizes, make, close)
    yield from _sampling_cases(sizes, make)


def _layer_cases(sizes: Sizes, make: _Make, close: float) -> Iterator[KernelCase]:
    rows, hidden, bytes_each = sizes.rows, sizes.hidden, make.dtype.itemsize
    x, residual, weight = make.normal(rows, hidden), make.normal(rows, hidden), make.normal(hidden)
    yield KernelCase(
        "rms_norm",
        lambda: (norm.rms_norm(x, weight, 1e-5),),
        lambda: (reference.rms_norm(x, weight, 1e-5),),
        floors.rms_norm_work(rows, hidden, bytes_each), close, 0.85,
    )  # fmt: skip
    yield KernelCase(
        "add_rms_norm",
        lambda: norm.add_rms_norm(x, residual, weight, 1e-5),
        lambda: reference.add_rms_norm(x, residual, weight, 1e-5),
        floors.add_rms_norm_work(rows, hidden, bytes_each), close, 0.85,
    )  # fmt: skip
    gate_up = make.normal(rows, 2 * sizes.inner)
    yield KernelCase(
        "silu_mul",
        lambda: (activation.silu_mul(gate_up),),
        lambda: (reference.silu_mul(gate_up),),
        floors.silu_mul_work(rows, sizes.inner, bytes_each), close, 0.85,
    )  # fmt: skip
    yield from _rope_cases(sizes, make, close)


def _rope_cases(sizes: Sizes, make: _Make, close: float) -> Iterator[KernelCase]:
    rows, kv_heads, dim = sizes.rows, sizes.kv_heads, sizes.head_dim
    qkv = make.normal(rows, sizes.heads + 2 * kv_heads, dim)
    cos, sin = (table.to(make.dtype) for table in reference.rope_tables(make.normal(rows, dim // 2, dtype=torch.float32)))
    places = torch.randperm(2 * rows, device=make.device)[:rows]
    weight = make.normal(1, sizes.heads + kv_heads, dim)
    shape = TileShape(sizes.heads, kv_heads, dim, make.dtype, make.dtype, 16)
    for name, heads_norm in (("rope + KV write", None), ("QK-norm + rope + KV write", weight)):
        caches = [torch.zeros(2 * rows, 2 * kv_heads, dim, dtype=make.dtype, device=make.device) for _ in range(2)]
        yield KernelCase(
            name,
            lambda norms=heads_norm, cache=caches[0]: (rotary.rope_write(qkv, cos, sin, norms, 1e-6, cache, places), cache),  # type: ignore[misc]  # bound at once
            lambda norms=heads_norm, cache=caches[1]: (reference.rope_write(qkv, cos, sin, norms, 1e-6, cache, places), cache),  # type: ignore[misc]  # bound at once
            floors.rope_write_work(rows, shape), close, 0.85 if heads_norm is None else None,
        )  # fmt: skip


def _attention_cases(sizes: Sizes, make: _Make, close: float) -> Iterator[KernelCase]:
    context, batch, page = sizes.context, sizes.batch, sizes.page_size
    pages = -(-context // page)
    apart = [list(range(number * pages, (number + 1) * pages)) for number in range(batch)]
    trunk = [[*apart[0][: pages - 1], own[-1]] for own in apart]
    yield _attention_case("prefill attention", SlotTable([apart[0]], [0], [context], page), sizes, make, close, bar=0.55)
    yield _attention_case(
        "chunk over a cached prefix", SlotTable([apart[0]], [context // 2], [context // 2], page), sizes, make, close
    )
    decode = SlotTable(apart, [context - 1] * batch, [1] * batch, page)
    yield _attention_case("decode attention", decode, sizes, make, close, bar=0.8)
    yield _attention_case("verify of 4 drafts", SlotTable(apart, [context - 5] * batch, [5] * batch, page), sizes, make, close)
    shared = SlotTable(trunk, [context - 1] * batch, [1] * batch, page)
    yield _attention_case("decode attention, shared prefix", shared, sizes, make, close)
    if make.dtype != torch.float32:
        yield _attention_case("decode attention, fp8", decode, sizes, make, 2 * close, eight=True)


def _attention_case(
    name: str, table: SlotTable, sizes: Sizes, make: _Make, close: float, *, bar: float | None = None, eight: bool = False
) -> KernelCase:
    kv_dtype = torch.float8_e4m3fn if eight else make.dtype
    shape = TileShape(sizes.heads, sizes.kv_heads, sizes.head_dim, make.dtype, kv_dtype, table.page_size)
    places = table.page_size * (1 + max(max(pages) for pages in table.pages))
    cache = make.normal(places, 2 * sizes.kv_heads, sizes.head_dim).to(kv_dtype)
    q = make.normal(sum(table.counts), sizes.heads, sizes.head_dim)
    scales = torch.full((2 * sizes.kv_heads,), 0.5, device=make.device) if eight else None
    tiles, scratch = plan_tiles(table, shape, make.device), Scratch(make.dtype, make.device)
    scale = sizes.head_dim**-0.5

    def expected() -> Tensors:
        plan = plan_attention(table, make.dtype, make.device, share=False)
        return (attention.paged_attention(q, cache, plan, scale, Scratch(kv_dtype, make.device), scales),)

    distinct = len({page for pages in table.pages for page in pages}) * table.page_size
    work = floors.attention_work(table.starts, table.counts, shape)
    read_twice = sum(start + count for start, count in zip(table.starts, table.counts, strict=True)) - distinct
    if read_twice > 0:
        work = Work(work.bytes - read_twice * 2 * sizes.kv_heads * sizes.head_dim * kv_dtype.itemsize, work.operations)
    return KernelCase(name, lambda: (paged.paged_attention(q, cache, tiles, scale, scratch, scales),), expected, work, close, bar)


def sharing_case(
    sizes: Sizes, slots: int, common: int, device: torch.device, dtype: torch.dtype, *, share: bool
) -> Callable[[], Tensor]:
    """Decoding of so many slots behind `common` shared tokens, with 64 of their own each; with `share` where the rule says so."""
    make, size = _Make(device, dtype), sizes.page_size
    trunk, own = list(range(common // size)), 64 // size
    pages = [[*trunk, *range(len(trunk) + at * own, len(trunk) + (at + 1) * own)] for at in range(slots)]
    shape = TileShape(sizes.heads, sizes.kv_heads, sizes.head_dim, dtype, dtype, size)
    cache = make.normal((len(trunk) + slots * own) * size, 2 * sizes.kv_heads, sizes.head_dim)
    q, scratch = make.normal(slots, sizes.heads, sizes.head_dim), Scratch(dtype, device)
    table = SlotTable(pages, [len(each) * size - 1 for each in pages], [1] * slots, size)
    plan = plan_tiles(table, shape, device, share=share)
    return lambda: paged.paged_attention(q, cache, plan, sizes.head_dim**-0.5, scratch)


def _sampling_cases(sizes: Sizes, make: _Make) -> Iterator[KernelCase]:
    rows, vocabulary = sizes.batch, sizes.vocabulary
    logits = 3 * make.normal(rows, vocabulary, dtype=torch.float32)
    bits = make.whole(2**31 - 1, rows, -(-vocabulary // 32), dtype=torch.int32)
    for name, options, mask in (
        ("best of the logits", _draw_options(rows, make, temperature=0), None),
        ("draw with noise", _draw_options(rows, make), None),
        ("draw under a mask", _draw_options(rows, make, masked=True), bits),
        ("draw, top-k 50, top-p 0.9", _draw_options(rows, make, top_k=50, top_p=0.9), None),
    ):
        yield KernelCase(
            name,
            lambda options=options, mask=mask: draw.draw_rows(logits, options, mask),  # type: ignore[misc]  # bound at once
            lambda options=options, mask=mask: drawing.draw_rows(logits, options, mask),  # type: ignore[misc]  # bound at once
            floors.sample_work(rows, vocabulary, masked=mask is not None), 0.0,
        )  # fmt: skip
    yield KernelCase(
        "log-sum-exp and 20 best",
        lambda: logprobs.top_logits(logits, min(20, vocabulary)),
        lambda: reference.top_logits(logits, min(20, vocabulary)),
        floors.sample_work(rows, vocabulary), 1e-5,
    )  # fmt: skip
    places = torch.randperm(rows * vocabulary, device=make.device)[: 64 * rows]
    changes = [make.normal(len(places), dtype=torch.float32).abs() + 0.5 for _ in range(3)]
    yield KernelCase(
        "bias and penalties",
        lambda: _adjusted(adjust.adjust_logits, logits, places, changes),
        lambda: _adjusted(reference.adjust_logits, logits, places, changes),
        None, 1e-5,
    )  # fmt: skip


def _draw_options(
    rows: int, make: _Make, *, temperature: float = 0.8, top_k: int = 0, top_p: float = 1.0, masked: bool = False
) -> DrawOptions:
    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=make.device)

    mask_row = torch.arange(rows, dtype=torch.int32, device=make.device) if masked else column(-1, torch.int32)
    return DrawOptions(
        column(temperature, torch.float32), column(top_k, torch.int32), column(top_p, torch.float64),
        column(-math.inf, torch.float32), make.whole(2**62, rows), make.whole(4096, rows), mask_row,
        draws=temperature > 0, filters=top_k > 0 or top_p < 1,
    )  # fmt: skip


def _adjusted(form: Callable[..., None], logits: Tensor, places: Tensor, changes: list[Tensor]) -> Tensors:
    changed = logits.clone()
    form(changed, places, *changes)
    return (changed,)
