"""Plans in, tokens out: copies pages, runs the forward pass, takes the wanted logits, samples.

The engine's loop calls `execute` once a step. Everything with a tensor in it lives behind this.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from branchpoint.radix import CopyCost, HostTier
from branchpoint.runtime.attention import AttentionBackend, CpuAttention, kv_bytes_per_page
from branchpoint.runtime.batch import build_batch
from branchpoint.runtime.capacity import host_slots, size_pool
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.device import watched
from branchpoint.runtime.logprobs import WantedRow, wanted_rows
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.plan import MaskSource, RowResult, Slot, StepPlan, StepResult, TokenMask
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import LoadedModel, load_model, pick_device

__all__ = ["TorchRunner", "load_runner"]

MEASURED_PAGES = 32
MEASURED_TOKENS = 256
LOGIT_ROWS = 256
"""Rows whose logits are held at once: a prompt's log-probabilities don't need the whole prompt's logits in memory."""


class TorchRunner:
    """A model with its KV pool and sampler; see `plan.Runner`. Used by one thread."""

    def __init__(self, model: Model, attention: AttentionBackend, sampler: Sampler, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._device = device
        self.host: HostTier | None = None
        self.copy_cost: CopyCost | None = None

    @property
    def num_pages(self) -> int:
        """Pages in the KV pool."""
        return self._attention.num_pages

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self._attention.page_size

    def give_host_memory(self, num_slots: int) -> None:
        """Have a second tier of `num_slots` pages, and measure what a copy costs beside computing, before anything runs."""
        memory = self._attention.give_host_memory(num_slots)
        one, many = memory.seconds(1), memory.seconds(MEASURED_PAGES)
        page = max(0.0, many - one) / max(1, min(MEASURED_PAGES, num_slots, self.num_pages) - 1)
        self.host = HostTier(num_slots, self.page_size)
        self.copy_cost = CopyCost(fixed=max(0.0, one - page), page=page, token=self._seconds_per_token())

    def _seconds_per_token(self) -> float:
        """What a token costs in a prefill that has nothing beside it; computes on pages that nobody uses yet."""
        count = min(MEASURED_TOKENS, self.num_pages * self.page_size)
        pages = list(range(-(-count // self.page_size)))
        sequence = Sequence("", 0, [0] * count, count, SamplingParams(temperature=0.0), 0, pages=pages)
        plan = StepPlan((Slot(sequence, 0, count, sample=False),))
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            self.execute(plan, lambda: None)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            taken.append(time.perf_counter() - started)
        return min(taken) / count

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        """See `plan.Runner`. `forward_seconds` holds the pass and the first logits, not the wait for masks nor the sampling."""
        with watched(self._device), torch.inference_mode():
            self._attention.copy_pages(plan.copies)
            started = time.perf_counter()
            rows = wanted_rows(plan)
            hidden = self._forward(plan) if plan.slots else None
            first = self._model.logits(hidden[:LOGIT_ROWS]) if hidden is not None and rows else None
            seconds = time.perf_counter() - started
            mask = masks()
            results = [] if hidden is None or first is None else self._sample(first, hidden, rows, mask)
        return StepResult(_by_slot(plan, results), seconds)

    def _forward(self, plan: StepPlan) -> Tensor:
        """Hidden states of the wanted rows [R, hidden_size]."""
        batch = build_batch(plan, self.page_size, self._device)
        self._attention.plan(batch)
        hidden = self._model.forward(batch.tokens, batch.positions, self._attention)
        return hidden if batch.rows is None else hidden.index_select(0, batch.rows)

    def _sample(self, logits: Tensor, hidden: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        """Results of all rows, a stretch of logits at a time; `logits` are those of the first stretch."""
        results: list[RowResult] = []
        for begin in range(0, len(rows), LOGIT_ROWS):
            end = begin + LOGIT_ROWS
            stretch = self._model.logits(hidden[begin:end]) if begin else logits
            results += self._sampler.sample(stretch, rows[begin:end], None if mask is None else mask[begin:end])
        return results


def _by_slot(plan: StepPlan, results: list[RowResult]) -> tuple[tuple[RowResult, ...], ...]:
    """The results cut into one tuple for each slot."""
    remaining = iter(results)
    return tuple(tuple(next(remaining) for _ in slot.rows) for slot in plan.slots)


def load_runner(config: EngineConfig) -> tuple[TorchRunner, LoadedModel]:
    """Load the model that `config` names and give it a KV pool. Raises ModelError, CapacityError or InvalidRequest.

    Loading runs in a thread of its own. OpenMP gives each thread that computes a team of workers for as long as it lives; where
    all teams together have more of them than there are cores, they sleep between two operations instead of spinning. The
    engine's thread would decode at half its speed for a team that this one no longer needs.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="branchpoint-load") as loading:
        return loading.submit(_load, config).result()


def _load(config: EngineConfig) -> tuple[TorchRunner, LoadedModel]:
    device = pick_device(config)
    loaded = load_model(config, device)
    pool = size_pool(config, loaded.config, loaded.kv_dtype, device)
    attention = _attention(config, loaded, pool.num_pages, device)
    runner = TorchRunner(loaded.model, attention, _sampler(loaded, device), device)
    page_bytes = kv_bytes_per_page(loaded.config, config.page_size, loaded.kv_dtype)
    num_slots = host_slots(config, page_bytes)
    if num_slots:
        runner.give_host_memory(num_slots)
    return runner, loaded


def _attention(config: EngineConfig, loaded: LoadedModel, num_pages: int, device: torch.device) -> AttentionBackend:
    """The attention backend of a device with its pool."""
    if device.type != "cuda":
        return CpuAttention(loaded.config, num_pages, config.page_size, loaded.kv_dtype, device)
    from branchpoint.runtime.tiled_attention import TiledAttention  # loads triton

    return TiledAttention(
        loaded.config,
        num_pages,
        config.page_size,
        loaded.kv_dtype,
        device,
        query_dtype=loaded.dtype,
        max_sequences=config.max_sequences,
    )


def _sampler(loaded: LoadedModel, device: torch.device) -> Sampler:
    """The sampler of a device."""
    if device.type != "cuda":
        return Sampler(loaded.config.eos_token_ids)
    from branchpoint.runtime.device_sampler import DeviceSampler  # loads triton

    return DeviceSampler(loaded.config.eos_token_ids)
