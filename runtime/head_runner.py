"""Runs a learned head beside its model: behind each step over the same tokens, and by itself to draw guesses.

The runner tells it of every step (`follow`); the drafter `head` has it guess (`execute`), over pages of the sequences themselves.
"""

import numpy as np
import torch
from torch import Tensor

from branchpoint.kernels.layout import SlotTable
from branchpoint.runtime.attention import AttentionBackend
from branchpoint.runtime.batch import Batch, build_batch
from branchpoint.runtime.device import watched
from branchpoint.runtime.logprobs import wanted_rows
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.head import Head
from branchpoint.runtime.plan import MaskSource, StepPlan, StepResult
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.transfer import send

__all__ = ["HeadRunner"]


class HeadRunner:
    """`head` over the pages of `attention`, whose KV has layers for it; a `plan.Runner` for slots of one token.

    Beside the KV each place has the hidden state of the token there: the model's, or the one that was guessed last. What is
    guessed is written over once the model has computed it.
    """

    def __init__(
        self, head: Head, model: Model, attention: AttentionBackend, sampler: Sampler, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._head = head
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._device = device
        self._states = torch.zeros(attention.num_places + 1, model.config.hidden_size, dtype=dtype, device=device)
        self.step_seconds: dict[int, float] = {}
        attention.attach(self._states)

    @property
    def num_pages(self) -> int:
        """Pages in the model's KV pool, those for guesses not counted."""
        return self._attention.num_pages

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self._attention.page_size

    @property
    def scratch_pages(self) -> range:
        """The pages for guesses."""
        return self._attention.scratch_pages

    def follow(self, batch: Batch, hidden: Tensor) -> None:
        """Take in a step that the model has computed, hidden [T, hidden_size]; its attention is still planned for this batch."""
        self._states.index_copy_(0, batch.places, hidden.to(self._states.dtype))
        self._forward(batch)

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        """Guess the hidden state of each slot's one token, and draw a token from it. See `plan.Runner`."""
        with watched(self._device), torch.inference_mode():
            batch = build_batch(plan, self.page_size, self._device)
            self._attention.plan(batch)
            guessed = self._forward(batch)
            self._states.index_copy_(0, batch.places, guessed.to(self._states.dtype))
            results = self._sampler.begin(self._model.logits(guessed), wanted_rows(plan), masks()).collect()
        return StepResult(tuple((result,) for result in results))

    def _forward(self, batch: Batch) -> Tensor:
        """What the head makes of a batch [T, hidden_size]; its KV is written."""
        before = self._states.index_select(0, self._places_before(batch))
        return self._head.forward(batch.tokens, batch.positions, before, self._attention)

    def _places_before(self, batch: Batch) -> Tensor:
        """Where the hidden state before each token of a batch stands, int64 [T]: the last row, of zeros, before a first token."""
        firsts, places = _before_slots(batch.table, len(self._states) - 1)
        at, before = send([firsts, places], self._device)
        return batch.places.roll(1).index_copy_(0, at, before)


def _before_slots(table: SlotTable, none: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each slot the index of its first token in the batch, and the place of the token before that; int64."""
    counts = np.array(table.counts, np.int64)
    places = [
        table.pages[slot][(start - 1) // table.page_size] * table.page_size + (start - 1) % table.page_size if start else none
        for slot, start in enumerate(table.starts)
    ]
    return np.cumsum(counts) - counts, np.array(places, np.int64)
