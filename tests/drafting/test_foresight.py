"""Steps launched before what the last one drew is taken in: the same answers, and nobody waits for a grammar."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.spec import Choice
from branchpoint.runtime.drafting.drafter import Drafter
from branchpoint.runtime.drafting.grammar import GrammarDrafter
from branchpoint.runtime.drafting.ngram import NgramDrafter
from branchpoint.runtime.drafting.suffix import SuffixDrafter
from branchpoint.runtime.flight import Flight
from branchpoint.runtime.haste import Haste
from branchpoint.runtime.masks import StepMasks
from branchpoint.runtime.messages import Call
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.drafting.guessing import Oracle, all_of
from tests.drafting.test_verify import RELAXED
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import (
    CONTEXT,
    ListGrammar,
    ListMatcher,
    Scripted,
    ScriptedCompiler,
    ScriptedRunner,
    make_engine,
    run,
)
from tests.runtime.strategies import generate_calls
from tests.runtime.test_flight import LooseCompiler

SETS = Choice(("1,2", "7", "8", "3,4", "9", "5,6", "1,3", "10", "11", "12", "2,4", "5,6"))


def held(name: str = "c", constraint: Choice = SETS, **options: Any) -> Call:
    sampling = SamplingParams(**{"max_tokens": 20, "temperature": 1.0, "seed": 1, **options})
    return Call(name, (1, 2), sampling, constraint)


@settings(RELAXED, max_examples=60)
@given(st.data(), st.sampled_from([0.0, 0.2, 1.0]), st.integers(1, 8), st.booleans())
def test_the_same_answers_whatever_is_guessed_forced_or_refused(data: st.DataObject, lies: float, most: int, loose: bool) -> None:
    calls = [data.draw(generate_calls(f"c{number}")) for number in range(data.draw(st.integers(1, 4)))]
    calls.append(held("held", logprobs=data.draw(st.sampled_from([None, 1])), stop=data.draw(st.sampled_from([(), ("jk",)]))))
    runner = ScriptedRunner(data.draw(st.sampled_from([20, 80])), 4, runs_ahead=True)
    compiler = LooseCompiler() if loose else ScriptedCompiler()
    engine = make_engine(runner, compiler, speculation=all_of(Oracle({one.id: one for one in calls}, CONTEXT, lies), most))
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    assert engine.stats().pages_held == 0
    engine.close()


class Noted(ListMatcher):
    """Writes down when it moves."""

    def __init__(self, sets: tuple[frozenset[int], ...], order: list[str]) -> None:
        super().__init__(sets)
        self._order = order

    def advance(self, tokens: Any) -> int:
        self._order.append("advance")
        return super().advance(tokens)

    def fill(self, row: MaskRow) -> None:
        self._order.append("fill")
        super().fill(row)


class Noting(ScriptedCompiler):
    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self._order = order

    def _grammar(self, constraint: object, prefix: bytes) -> ListGrammar:
        sets = super()._grammar(constraint, prefix).sets  # type: ignore[arg-type]
        grammar = ListGrammar(sets)
        grammar.matcher = lambda: Noted(sets, self._order)  # type: ignore[method-assign]
        return grammar


class Launching(ScriptedRunner):
    order: list[str]

    def launch(self, plan: StepPlan, *before: Scripted) -> Scripted:
        self.order.append("launch" if any(slot.draft for slot in plan.slots) else "plain")
        return super().launch(plan, *before)


def test_no_matcher_is_moved_between_a_result_and_the_next_launch() -> None:
    runner = Launching(runs_ahead=True)
    runner.order = []
    call = held(constraint=Choice(("1,2,3",) * 16))
    engine = make_engine(runner, Noting(runner.order), speculation=all_of(Oracle({"c": call}, CONTEXT, 0.0), 3))
    assert_as_expected(call, run(engine, call)["c"])
    engine.close()
    launches = [at for at, what in enumerate(runner.order) if what == "launch"]
    assert len(launches) == 4
    taken = runner.order[launches[1] + 1 : launches[2]]
    # behind the launch: one is taken in after the other, then the next masks are filled along the guesses
    assert taken.index("fill") == 4 and taken.count("fill") == 4


@pytest.mark.parametrize("lies", [0.0, 1.0])
def test_what_is_forced_is_computed_with_the_guesses_that_say_so_or_a_step_later(lies: float) -> None:
    steps = []
    for ahead in (False, True):
        runner, call = ScriptedRunner(runs_ahead=ahead), held()
        engine = make_engine(runner, speculation=all_of(Oracle({"c": call}, CONTEXT, lies), 4))
        engine._haste._taken = 1.0  # type: ignore[attr-defined]  # so that nothing keeps it from going on
        result = run(engine, call)["c"]
        assert_as_expected(call, result)
        assert result.end.usage.forced_tokens == 6  # type: ignore[union-attr]
        steps.append(len(runner.plans))
        engine.close()
    assert steps[1] - steps[0] <= (0 if lies == 0.0 else 5)  # three are in vain, and the one behind the end


def landed(plan: StepPlan, *, forced: bool) -> Flight:
    """One that was launched early, after which its sequence has taken tokens in."""
    flight = Flight(plan, 0.0, StepMasks(None, []), lambda: None, foreseen={plan.slots[0].sequence: [2]})  # type: ignore[arg-type,return-value]
    plan.slots[0].sequence.tokens += [9] if forced else []
    return flight


def test_who_loses_more_rows_than_taking_in_takes_waits_and_tries_again() -> None:
    haste = Haste(ScriptedRunner(runs_ahead=True))
    for forced in (False, True):
        for _ in range(100):
            one = Sequence("c", 0, [1, 2], 1, SamplingParams(), seed=0)
            plan = StepPlan((Slot(one, 1, 1, (1,), draft=()),))
            assert haste.pays(plan) or forced
            haste.note(0.1, 1.0, landed(plan, forced=forced) if haste.pays(plan) else None)
        if forced:
            assert 0.05 < haste._lost < 0.25  # as much as taking in takes
    assert not Haste(ScriptedRunner()).pays(plan)
    tree = Slot(one, 1, 3, (1, 2, 3), draft=(4, 5), depths=(0, 0))
    assert not Haste(ScriptedRunner(runs_ahead=True)).pays(StepPlan((tree,)))


@pytest.mark.parametrize("drafter", [SuffixDrafter(), NgramDrafter(branches=2)], ids=lambda each: each.name)
def test_lookups_forget_tokens_that_turned_out_otherwise(drafter: Drafter) -> None:
    one = Sequence("c", 0, [1, 2, 3, 1, 2, 4, 9, 1, 2], 1, SamplingParams(), seed=0)
    assert drafter.propose({one: 2})[one].tokens[:2] == (4, 9)
    del one.tokens[5:]
    one.mistaken += 1
    assert drafter.propose({one: 2})[one].tokens == (3, 1)
    one.tokens.append(8)
    assert drafter.propose({one: 2}) == {}


def test_behind_tokens_that_are_not_taken_in_only_what_was_said_before_is_guessed() -> None:
    grammar = ListGrammar(tuple(frozenset({place, place + 1}) for place in range(1, 9)))
    drafter = GrammarDrafter(40, lambda token: b"x" * token)

    def sequence(*output: int) -> Sequence:
        one = Sequence("c", 0, [30, *output], 1, SamplingParams(), seed=0)
        one.grammar, one.matcher = grammar, Noted(grammar.sets, order)
        return one

    order: list[str] = []
    drafter.finish(sequence(1, 2, 3, 4, 5, 6), kept=True)
    one = sequence(1, 2, 3)
    one.untaken = 3
    assert drafter.propose({one: 2})[one].tokens == (4, 5)
    assert drafter.propose({one: 9})[one].tokens == (4, 5, 6)
    assert not order
