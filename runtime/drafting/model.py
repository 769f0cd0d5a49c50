"""A small model as a source of guesses: its runner is another `plan.Runner`, with pages of its own for shadows of sequences.

Shadows are computed when guesses are first asked for, prompts in chunks, and share prefixes in a cache of their own; KV of
guesses that didn't come true is written over. Used through `DrawnDrafter`.
"""

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.drafting.shadow import catch_up, shadow_of
from branchpoint.runtime.flight import runs_ahead
from branchpoint.runtime.plan import (
    UNKNOWN,
    GuessesUnderWay,
    RowResult,
    Runner,
    Slot,
    StepPlan,
    StepResult,
    StepUnderWay,
    TokenMask,
)
from branchpoint.runtime.sequence import Sequence

__all__ = ["ModelSource"]


class ModelSource:
    """Draws with `runner`, whose context holds `context_length` tokens. See `GuessSource`.

    A call computes at most `max_tokens` tokens to catch up; nothing is proposed for a sequence that lacks more. Where the runner
    that is their `verifier` runs ahead, too, guesses are fed to it on the device. With `own_noise` they are independent of what
    the sequence draws, for verification by rejection.
    """

    def __init__(
        self,
        runner: Runner,
        context_length: int,
        max_tokens: int,
        *,
        verifier: Runner | None = None,
        share: bool = True,
        own_noise: bool = False,
    ) -> None:
        self._runner = runner
        self._verifier = verifier
        self._context = context_length
        self._max_tokens = max_tokens
        self._cache = KVCache(runner.num_pages, runner.page_size, enabled=share)
        self._own_noise = own_noise
        self._shadows: OrderedDict[Sequence, Sequence] = OrderedDict()  # the one asked for longest ago first

    def ready(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Sequence]:
        """See `GuessSource`: those whose tokens fit into one pass with the others'."""
        found: dict[Sequence, Sequence] = {}
        chunks: list[Slot] = []
        left = self._max_tokens
        for sequence, shadow in self._with_pages(wanted):
            missing = shadow.num_tokens - shadow.num_computed
            if missing <= left:
                found[sequence] = shadow
            elif left:
                chunks.append(Slot(shadow, shadow.num_computed, left, sample=False))
            left -= min(missing, left)
        if chunks:
            self._run(StepPlan(tuple(chunks), self._cache.take_copies()), None)
        return found

    def draw(self, shadows: Many[Sequence], masks: TokenMask | None) -> Many[RowResult]:
        """See `GuessSource`."""
        return [rows[0] for rows in self._run(self._pass(shadows, None), masks).rows]

    def draw_on(self, shadows: Many[Sequence], counts: Many[int]) -> tuple[GuessesUnderWay, Many[tuple[int, ...]]] | None:
        """See `GuessSource`. Each pass is launched behind the one before, whose tokens it is fed on the device."""
        runner = self._runner
        if not runs_ahead(runner) or not runs_ahead(self._verifier):
            return None
        rows: dict[Sequence, list[int]] = {shadow: [] for shadow in shadows}
        plans, steps, made = list[StepPlan](), list[StepUnderWay](), False
        numbers = itertools.count()
        try:
            for depth in range(max(counts)):
                going = [shadow for shadow, count in zip(shadows, counts, strict=True) if count > depth]
                plans.append(self._pass(going, plans[-1] if plans else None))
                steps.append(runner.launch(plans[-1], *steps[-1:]))
                steps[-1].draw(lambda: None)
                self._ran(plans[-1])
                for shadow in going:
                    rows[shadow].append(next(numbers))
            made = True
        finally:
            for plan in plans:
                self._cache.settle(plan.copies, made=made)
            for shadow in shadows:
                shadow.num_computed = min(shadow.num_computed, shadow.num_tokens)  # what lies behind is told when it is known
        return _Passes(plans, steps), [tuple(its) for its in rows.values()]

    def forget(self, sequence: Sequence) -> None:
        """See `GuessSource`. What was computed stays in the cache while there is room."""
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            catch_up(shadow, sequence)
            self._release(shadow)

    def close(self) -> None:
        """See `GuessSource`."""
        for sequence in tuple(self._shadows):
            self.forget(sequence)
        self._cache.flush()

    def check(self) -> None:
        """Hold pages and shadows against each other. Raises AssertionError."""
        self._cache.check(self._shadows.values())

    def _with_pages(self, wanted: Mapping[Sequence, int]) -> list[tuple[Sequence, Sequence]]:
        """Those of `wanted` whose shadows have pages for their tokens and guesses, the ones with least to compute first."""
        found = []
        for sequence, count in wanted.items():
            if sequence.num_tokens + count - 1 > self._context:
                continue
            shadow = self._shadows.setdefault(sequence, shadow_of(sequence, own_noise=self._own_noise))
            self._shadows.move_to_end(sequence)
            catch_up(shadow, sequence)
            if self._make_room(shadow, count, wanted):
                found.append((sequence, shadow))
        return sorted(found, key=lambda pair: pair[1].num_tokens - pair[1].num_computed)

    def _make_room(self, shadow: Sequence, count: int, needed: Mapping[Sequence, int]) -> bool:
        """See that `shadow` has pages for all but the last of `count` guesses, at the cost of shadows that aren't needed now."""
        if not shadow.pages and self._awaits_prefix(shadow):
            return False
        while not (shadow.pages or self._cache.admit(shadow, 0)) or not self._cache.grow(shadow, shadow.num_tokens + count - 1):
            idle = next((other for other, held in self._shadows.items() if held.pages and other not in needed), None)
            if idle is None:
                return False
            self._release(self._shadows[idle])
        return True

    def _awaits_prefix(self, shadow: Sequence) -> bool:
        """Whether another one is computing a page or more that `shadow` would compute again."""
        page = self._cache.pool.page_size
        for other in self._shadows.values():
            if other.pages and other.in_prefill:
                common = self._cache.shared_prefix(shadow, other)
                if common - max(other.num_computed, self._cache.cached_tokens(shadow)) >= page:
                    return True
        return False

    def _run(self, plan: StepPlan, masks: TokenMask | None) -> StepResult:
        """Compute a pass; prompts can be shared after it."""
        made = False
        try:
            result = self._runner.execute(plan, lambda: masks)
            made = True
        finally:
            self._cache.settle(plan.copies, made=made)
        self._ran(plan)
        return result

    def _pass(self, going: Many[Sequence], before: StepPlan | None) -> StepPlan:
        """A pass that draws behind all tokens, or behind what the pass `before` draws."""
        places = {slot.sequence: place for place, slot in enumerate(before.slots)} if before else {}
        slots = []
        for shadow in going:
            end = shadow.num_computed + 1 if before else shadow.num_tokens
            slots.append(Slot(shadow, shadow.num_computed, end - shadow.num_computed, (end - 1,)))
        return StepPlan(tuple(slots), self._cache.take_copies(), tuple((places[shadow],) for shadow in going) if before else ())

    def _ran(self, plan: StepPlan) -> None:
        """The pass is computed, or will be before the next one: prompts can be shared."""
        for slot in plan.slots:
            shadow, was_in_prefill = slot.sequence, slot.sequence.in_prefill
            shadow.num_computed = slot.start + slot.count
            if was_in_prefill:
                self._cache.publish(shadow)

    def _release(self, shadow: Sequence) -> None:
        """Take the pages of `shadow`; the cache keeps what they hold while there is room."""
        self._cache.release(shadow, keep=True)
        self._cache.forget(shadow)


@dataclass(frozen=True, slots=True)
class _Passes:
    """See `GuessesUnderWay`: passes of which each slot has one row."""

    plans: Many[StepPlan]
    steps: Many[StepUnderWay]

    def finish(self) -> list[int]:
        """See `GuessesUnderWay`. Shadows have the guesses then, up to a missing one, and count what was computed of them."""
        tokens: list[int] = []
        for plan, step in zip(self.plans, self.steps, strict=True):
            for slot, (row,) in zip(plan.slots, step.finish().rows, strict=True):
                shadow = slot.sequence
                tokens.append(UNKNOWN if row.token is None else row.token)
                if row.token is not None and slot.start + slot.count == shadow.num_tokens:
                    shadow.num_computed = shadow.num_tokens
                    shadow.tokens.append(row.token)
        return tokens
