"""Masks of a step: a row for each wanted one, filled where a grammar asks."""

import numpy as np

from branchpoint.constrained.errors import MatcherError
from branchpoint.runtime.masks import MaskFiller
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.runtime.scripted import ListMatcher


def make(matcher: ListMatcher | None) -> Sequence:
    return Sequence("call", 0, [1, 2, 3, 4], 4, SamplingParams(), seed=0, matcher=matcher)


def allowed(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def test_only_the_row_that_is_sampled_is_masked() -> None:
    filler = MaskFiller(70)
    free = Slot(make(None), 0, 4, (3,))
    held = Slot(make(ListMatcher((frozenset({5, 69}),))), 0, 4, (1, 2, 3))
    scored = Slot(make(ListMatcher((frozenset({5}),))), 0, 4, (2,), sample=False)
    masks = filler.start(StepPlan((free, held, scored)))
    rows = masks.wait()
    assert rows is not None and rows.shape == (5, 3) and rows.dtype == np.int32
    assert allowed(rows[3]) == {5, 69}
    assert all((rows[index] == -1).all() for index in (0, 1, 2, 4))
    assert masks.seconds.keys() == {held.sequence} and masks.errors == {}
    filler.close()


def test_a_plan_without_grammars_has_no_masks() -> None:
    filler = MaskFiller(70)
    assert filler.start(StepPlan((Slot(make(None), 0, 4, (3,)),))).wait() is None
    filler.close()


def test_a_grammar_that_fails_is_named_and_leaves_its_row_open() -> None:
    filler = MaskFiller(70)
    broken = Slot(make(ListMatcher((frozenset({5}),), broken_at=0)), 0, 4, (3,))
    masks = filler.start(StepPlan((broken,)))
    rows = masks.wait()
    assert rows is not None and (rows == -1).all()
    assert isinstance(masks.errors[broken.sequence], MatcherError)
    assert masks.wait() is rows
    filler.close()
