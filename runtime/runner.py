"""Plans in, tokens out: copies pages, runs the forward pass, takes the wanted logits, samples.

The engine's loop calls `execute` once a step. Everything with a tensor in it lives behind this.
"""

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from branchpoint.radix import CopyCost, HostTier
from branchpoint.runtime.attention import AttentionBackend
from branchpoint.runtime.batch import Padding, build_batch
from branchpoint.runtime.device import watched
from branchpoint.runtime.graph import GraphedAttention, StepGraphs, capture_on_cuda, padded_sizes
from branchpoint.runtime.head_runner import HeadRunner
from branchpoint.runtime.logprobs import WantedRow, wanted_rows
from branchpoint.runtime.lora.placed import PlacedAdapters
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.plan import MaskSource, RowResult, Slot, StepPlan, StepResult, StepUnderWay, TokenMask
from branchpoint.runtime.pooled import Pooled
from branchpoint.runtime.sampler import Drawn, Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.transfer import send

__all__ = ["TorchRunner", "TorchStep", "decode_plan"]

MEASURED_PAGES = 32
MEASURED_TOKENS = 256
SPLIT_TOKENS = 1024
"""A context so long that its keys are split among programs, whatever runs beside it."""

LOGIT_ROWS = 256
"""Rows whose logits are held at once: a prompt's log-probabilities don't need the whole prompt's logits in memory."""


class TorchRunner:
    """A model with its KV pool and sampler; see `plan.Runner`. Used by one thread."""

    def __init__(self, model: Model, attention: AttentionBackend, sampler: Sampler, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._device = device
        self.runs_ahead = device.type == "cuda"
        self.graphs: StepGraphs | None = None
        self.head: HeadRunner | None = None
        self.adapters: PlacedAdapters | None = None
        self.host: HostTier | None = None
        self.copy_cost: CopyCost | None = None
        self.step_seconds: dict[int, float] = {}

    @property
    def num_pages(self) -> int:
        """Pages in the KV pool."""
        return self._attention.num_pages

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self._attention.page_size

    def warm_up(self) -> None:
        """Launch every form of the model's and the sampler's kernels once; writes to the spare page alone.

        Those of attention are launched by its own `warm_up`.
        """
        self._sampler.warm_up(self._model.config.vocabulary_size, self._device)
        self.execute(decode_plan(1, self.num_pages), lambda: None)

    def capture_steps(self, most_tokens: int, most_sequences: int) -> None:
        """On CUDA: run small steps as graphs from now on, of which those that only decode are captured at once: for short
        contexts, and for long ones, whose keys are split. Computes on pages that nobody uses yet.
        """
        assert isinstance(self._attention, GraphedAttention), "every backend for CUDA can be captured"
        self.warm_up()
        sizes = padded_sizes(most_tokens)
        self.graphs = StepGraphs(self._model, self._attention, sizes, self._device, capture_on_cuda(self._device))
        long = min(SPLIT_TOKENS, self._model.config.context_length - 1) // self.page_size
        for size in reversed(sizes):
            if size <= most_sequences:
                for pages in (0, min(long, self.num_pages - 1)):
                    plan = decode_plan(size, self.num_pages, range(pages), self.page_size)
                    for _ in range(2):  # the first time loads what it calls, the second captures
                        self.execute(plan, lambda: None)

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
        """See `plan.Runner`."""
        step = self.launch(plan)
        step.draw(masks)
        return step.finish()

    def launch(self, plan: StepPlan, *before: StepUnderWay) -> "TorchStep":
        """See `flight.AheadRunner`. On CUDA nothing is waited for."""
        with watched(self._device), torch.inference_mode():
            self._attention.copy_pages(plan.copies)
            started = time.perf_counter()
            rows = wanted_rows(plan)
            hidden = self._forward(plan, before) if plan.slots else None
            pooled = Pooled(rows, hidden) if hidden is not None and any(row.sequence.pooled for row in rows) else None
            if pooled is not None:
                rows, hidden = pooled.rows, pooled.hidden
            first = self._model.logits(hidden[:LOGIT_ROWS]) if hidden is not None and rows else None
            seconds = time.perf_counter() - started
        return TorchStep(plan, rows, hidden, first, pooled, self._model, self._sampler, self._device, seconds)

    def _forward(self, plan: StepPlan, before: Many[StepUnderWay]) -> Tensor:
        """Hidden states of the wanted rows [R, hidden_size]."""
        adapted = None if self.adapters is None else self.adapters.model_for(plan)
        size = self.graphs.size_for(plan) if self.graphs and adapted is None else None
        padding = Padding(size, self._attention.spare_place) if size else None
        batch = build_batch(plan, self.page_size, self._device, padding)
        if plan.fed:
            (fed,) = send([np.array(plan.fed, np.int64).T], self._device)
            batch.tokens.index_copy_(0, fed[0], _drawn(before).index_select(0, fed[1]))
        if self.graphs and size:
            hidden = self.graphs.run(batch)
        else:
            self._attention.plan(batch)
            hidden = (adapted or self._model).forward(batch.tokens, batch.positions, self._attention)
        if self.head is not None:
            self.head.follow(batch, hidden)
        return hidden if batch.rows is None else hidden.index_select(0, batch.rows)


@dataclass(slots=True, eq=False)
class TorchStep:
    """A step that a `TorchRunner` has launched: its wanted `rows`, their hidden states, and the logits of the first of them."""

    plan: StepPlan
    rows: list[WantedRow]
    hidden: Tensor | None
    logits: Tensor | None
    pooled: Pooled | None
    model: Model
    sampler: Sampler
    device: torch.device
    seconds: float
    drawn: tuple[Drawn, ...] = ()

    @property
    def tokens(self) -> Tensor:
        """What the wanted rows draw, int64 [R] on the device."""
        tokens = self.drawn[0].tokens if len(self.drawn) == 1 else torch.cat([each.tokens for each in self.drawn])
        return tokens if self.pooled is None else self.pooled.spread(tokens)

    def draw(self, masks: MaskSource) -> None:
        """See `plan.StepUnderWay`. All rows, a stretch of logits at a time."""
        with watched(self.device), torch.inference_mode():
            mask = masks()
            if self.pooled is not None and mask is not None:
                mask = mask[self.pooled.kept]
            if self.hidden is not None and self.logits is not None:
                self.drawn = tuple(self._stretches(self.hidden, self.logits, mask))

    def finish(self) -> StepResult:
        """See `plan.StepUnderWay`. `forward_seconds` holds what launching took, on a CPU the pass and the first logits."""
        with watched(self.device), torch.inference_mode():
            results = [result for drawn in self.drawn for result in drawn.collect()]
            if self.pooled is not None:
                results = self.pooled.merged(results)
        return StepResult(_by_slot(self.plan, results), self.seconds)

    def _stretches(self, hidden: Tensor, logits: Tensor, mask: TokenMask | None) -> Iterator[Drawn]:
        for begin in range(0, len(self.rows), LOGIT_ROWS):
            end = begin + LOGIT_ROWS
            stretch = self.model.logits(hidden[begin:end]) if begin else logits
            yield self.sampler.begin(stretch, self.rows[begin:end], None if mask is None else mask[begin:end])


def decode_plan(size: int, page: int, before: Iterable[int] = (), page_size: int = 0) -> StepPlan:
    """A step that decodes `size` sequences on one page, at their first token; the first one has the pages `before` that too."""
    sampling = SamplingParams(temperature=0.0)
    first = [*before, page]
    start = page_size * (len(first) - 1)
    long = Slot(Sequence("", 0, [0] * (start + 1), start + 1, sampling, 0, pages=first), start, 1, (start,))
    short = [Slot(Sequence("", at, [0], 1, sampling, 0, pages=[page]), 0, 1, (0,)) for at in range(1, size)]
    return StepPlan((long, *short))


def _drawn(steps: Many[StepUnderWay]) -> Tensor:
    """What the rows of all these steps draw, int64 on the device."""
    tokens = []
    for step in steps:
        assert isinstance(step, TorchStep), "a step with sources comes behind those of such runners"
        tokens.append(step.tokens)
    return tokens[0] if len(tokens) == 1 else torch.cat(tokens)


def _by_slot(plan: StepPlan, results: list[RowResult]) -> tuple[tuple[RowResult, ...], ...]:
    """The results cut into one tuple for each slot."""
    remaining = iter(results)
    return tuple(tuple(next(remaining) for _ in slot.rows) for slot in plan.slots)
