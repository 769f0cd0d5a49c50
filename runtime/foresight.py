"""What a step drew, put behind its sequences for a moment: the next one is planned and launched before it is taken in.

Used by the engine where the runner leaves the processor alone: matchers, stops and text follow behind the next pass. What is
foreseen is what will be taken in, but for what ends an output, and for tokens that a grammar refuses when it is asked.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from types import TracebackType

from branchpoint.runtime.masks import StepMasks
from branchpoint.runtime.plan import RowResult, Slot, StepPlan, StepResult
from branchpoint.runtime.sequence import Sequence, Status

__all__ = ["Foresight"]


class Foresight:
    """Within it the sequences of `plan` have the tokens of `result`, up to one that `ends` an output, and count what was computed
    of them; their matchers stand before them. Behind it somebody else is to `forget` what he knows of these tokens. The plan has
    no trees.
    """

    def __init__(
        self, plan: StepPlan, result: StepResult, masks: StepMasks, ends: frozenset[int], forget: Callable[[Sequence], None]
    ) -> None:
        self._plan = plan
        self._result = result
        self._masks = masks
        self._ends = ends
        self._forget = forget
        self._before: list[tuple[Sequence, int, int]] = []  # how many tokens each had, and how many of them computed

    def __enter__(self) -> None:
        for slot, rows in zip(self._plan.slots, self._result.rows, strict=True):
            sequence = slot.sequence
            if slot.sample and slot.rows and sequence.status is Status.RUNNING:
                tokens, computed = self._foresee(slot, rows)
                self._before.append((sequence, sequence.num_tokens, sequence.num_computed))
                sequence.untaken = slot.first_guess + len(tokens) - sequence.num_tokens
                sequence.tokens[slot.first_guess :] = tokens
                sequence.num_computed += computed

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for sequence, length, computed in self._before:
            del sequence.tokens[length:]
            sequence.num_computed, sequence.untaken = computed, 0
            self._forget(sequence)

    def _foresee(self, slot: Slot, rows: Many[RowResult]) -> tuple[list[int], int]:
        """The tokens of a sequence from the first guess on, and how many guesses they confirm."""
        sequence, draft, sampling = slot.sequence, slot.draft, slot.sequence.sampling
        tokens = sequence.tokens[slot.first_guess :]
        known, room = len(tokens), sequence.num_prompt + sequence.max_output - slot.first_guess
        forced = self._masks.forced.get(sequence, ())
        masked = self._masks.usable.get(sequence, len(draft) + 1)
        drawn = rows[len(rows) - len(draft) - 1 :]
        ends = self._ends.union(sampling.stop_token_ids)
        for at in range(len(draft) + 1):
            if at == len(tokens):
                token = drawn[at].token
                if token is None or token in ends or at >= room:
                    return tokens, at
                tokens.append(token)
            if at == len(draft) or at + 1 >= masked or tokens[at] != draft[at]:
                return tokens, at
            if len(tokens) == at + 1 and known <= at < known + len(forced):
                tokens += forced[at - known][: room - len(tokens)]
            if sampling.logprobs is not None and len(tokens) > at + 1 and tokens[at + 1] not in draft[at + 1 : at + 2]:
                return tokens, at  # that row is wanted once more
        raise AssertionError("the last row confirms no guess")
