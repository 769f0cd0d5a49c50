"""Whatever is guessed, the answers are the same: on the scripted model, which reads its own pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.spec import Choice, Constraint
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.messages import Call, DrafterStats, Usage
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.drafting.guessing import Oracle, Parrot, all_of
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import (
    CONTEXT,
    EOS,
    ListGrammar,
    ListMatcher,
    ScriptedCompiler,
    ScriptedRunner,
    make_engine,
    run,
    sets_of,
)
from tests.runtime.strategies import any_call
from tests.runtime.test_engine_invariants import LONGEST, MOST, EngineMachine, pools, setups

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.reuse, Phase.generate))


@settings(RELAXED, max_examples=80)
@given(st.data(), pools, setups, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(1, 12), st.booleans(), st.integers(1, 3))
def test_same_answers_whatever_is_guessed(
    data: st.DataObject, pool: tuple[int, int], setup: dict[str, object], lies: float, most: int, cut: bool, branches: int
) -> None:
    page_size, num_pages = pool
    calls = [data.draw(any_call(f"c{number}", LONGEST, MOST)) for number in range(data.draw(st.integers(1, 6)))]
    length = min(CONTEXT, num_pages * page_size)
    drafter = Oracle({one.id: one for one in calls if isinstance(one, Call)}, length, lies, branches=branches)
    runner = ScriptedRunner(num_pages, page_size, runs_ahead=data.draw(st.booleans()))
    made = all_of(drafter, most, frozenset({EOS} if cut else ()), adaptive=data.draw(st.booleans()))
    engine = make_engine(runner, speculation=made, **setup)
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], length)
        if isinstance(one, Call):
            usage = results[one.id].end.usage
            assert usage.accepted_tokens <= min(usage.drafted_tokens, usage.completion_tokens)
            if lies == 1.0 and branches == 1 and not one.constraint:
                assert usage.accepted_tokens <= usage.drafted_tokens // 2 + 2
    assert all(plan.num_tokens <= setup["max_batch_tokens"] for plan in runner.plans)
    stats = engine.stats()
    assert stats.pages_held == 0 and stats.pages_free + stats.pages_cached == num_pages
    assert len(drafter.finished) == len(set(drafter.finished))
    engine.close()


@settings(RELAXED, max_examples=40)
@given(st.data(), st.sampled_from([0.0, 0.3]))
def test_guesses_take_no_page_that_another_sequence_needs(data: st.DataObject, lies: float) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    calls = [data.draw(any_call(f"c{number}", LONGEST, MOST)) for number in range(data.draw(st.integers(3, 8)))]
    runner = ScriptedRunner(-(-(LONGEST + 7) // page_size), page_size)
    length = runner.num_pages * page_size
    drafter = Oracle({one.id: one for one in calls if isinstance(one, Call)}, length, lies)
    engine = make_engine(runner, max_sequences=16, max_batch_tokens=64, speculation=all_of(drafter))
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], length)
    engine.close()


class GuessingMachine(EngineMachine):
    """Aborts, faults, flushes and slow grammars in the middle of drafts."""

    def speculation(self) -> Speculation:
        oracle = Oracle(self.calls, self.runner.num_pages * self.runner.page_size, 0.3, branches=2)  # type: ignore[arg-type]
        return all_of(oracle, adaptive=self.runner.page_size == 4)


GuessingMachine.TestCase.settings = settings(RELAXED, max_examples=60, stateful_step_count=25)
test_random_operations_keep_the_books_and_the_answers = GuessingMachine.TestCase


def guessed(call: Call, lies: float = 0.0, most: int = 4, **options: object) -> tuple[ScriptedRunner, Usage]:
    runner = ScriptedRunner(64, 4)
    engine = make_engine(runner, speculation=all_of(Oracle({call.id: call}, CONTEXT, lies), most), **options)
    results = run(engine, call)
    assert_as_expected(call, results[call.id])
    engine.close()
    return runner, results[call.id].end.usage


def test_right_guesses_save_steps_and_are_counted() -> None:
    runner, usage = guessed(Call("c", (1, 2, 3), SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)))
    assert len(runner.plans) == 4  # five tokens a step
    assert usage.completion_tokens == 20 and usage.accepted_tokens == 16 == usage.drafted_tokens
    assert usage.drafters == (DrafterStats("oracle", 4, 16, 16, ((4, 4),) * 4),)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"drafters": ("radix",)}, [11, 1]),
        ({"drafters": ("ngram",)}, [12]),
        ({"drafters": ("radix",), "cpu_weights": "int4"}, [12]),
    ],
)
def test_a_prompt_that_may_be_replayed_ends_in_a_step_of_its_own_where_forms_differ(
    options: dict[str, Any], steps: list[int]
) -> None:
    runner = ScriptedRunner()
    engine = make_engine(runner, **options)
    for name in ("a", "again"):
        run(engine, Call(name, tuple(range(5, 17)), SamplingParams(max_tokens=1)))
        assert [plan.num_tokens for plan in runner.plans] == steps
        runner.plans.clear()
        steps = [1]  # all but the last is in the cache


def test_a_step_that_fails_takes_its_drafts_along() -> None:
    made, runner = all_of(Parrot(1, 2)), ScriptedRunner()
    engine = make_engine(runner, speculation=made)
    engine.submit(Call("c", (1, 2, 3), SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)))
    engine.step()
    runner.fault = OSError("broken")
    engine.step()
    slot = runner.plans[-1].slots[0]
    assert slot.draft and made.learn(slot.sequence, (), len(slot.draft), finished=True) is None
    engine.close()


def test_wrong_guesses_change_nothing_and_leave_nothing_in_the_tree() -> None:
    call = Call("c", (1, 2, 3), SamplingParams(max_tokens=6, temperature=1.0, seed=3, ignore_eos=True))
    engine = make_engine(ScriptedRunner(64, 1), speculation=all_of(Oracle({"c": call}, CONTEXT, 1.0), 8))
    results = run(engine, call)
    assert_as_expected(call, results["c"])
    assert engine.stats().pages_cached == 3 + 6 - 1  # the last token was never computed
    assert results["c"].end.usage.drafted_tokens > 0


def test_masks_are_those_of_each_position_and_forced_tokens_count_as_forced() -> None:
    sets = Choice(("1,2", "7", "3,4", "5,6", "8", "9", "10,11"))
    call = Call("c", (1, 2), SamplingParams(max_tokens=20, temperature=1.0, seed=1), sets)
    runner, usage = guessed(call, most=8)
    assert len(runner.plans) == 1
    assert (usage.forced_tokens, usage.accepted_tokens, usage.completion_tokens) == (3, 4, 7)


DEAD_ENDS = frozenset(range(20, 39))


@dataclass
class Shortsighted(ListMatcher):
    """Takes dead ends too, in exact rows as well; only who asks is told."""

    def fill_loosely(self, row: MaskRow) -> "Shortsighted":  # type: ignore[override]
        self.fill(row)
        return self

    def allows(self, token: int) -> bool:
        return token not in DEAD_ENDS

    def narrow(self, row: MaskRow) -> None:
        pass


class ShortsightedGrammar(ListGrammar):
    def matcher(self) -> Shortsighted:
        return Shortsighted(tuple(allowed | DEAD_ENDS for allowed in self.sets))


class ShortsightedCompiler(ScriptedCompiler):
    def _grammar(self, constraint: Constraint | None, prefix: bytes) -> ListGrammar:
        assert constraint is not None
        return ShortsightedGrammar(sets_of(constraint))


class Blinkered(Oracle):
    """Guesses dead ends now and then."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        rng, dead = self._random, sorted(DEAD_ENDS)
        found = super().propose(wanted)
        return {
            sequence: Proposal(tuple(token if rng.random() < 0.8 else rng.choice(dead) for token in each.tokens))
            for sequence, each in found.items()
        }


@pytest.mark.parametrize("ahead", [False, True])
def test_what_leads_nowhere_is_refused_behind_guesses_too(ahead: bool) -> None:
    for seed in range(12):
        sets = Choice(tuple(f"{place},{place + 1},{place + 2}" for place in range(1, 16)))
        call = Call("c", (1, 2), SamplingParams(max_tokens=40, temperature=1.0, seed=seed), sets)
        for drafter in (None, Oracle({"c": call}, CONTEXT, 0.0), Blinkered({"c": call}, CONTEXT, 0.2, seed)):
            runner = ScriptedRunner(64, 4, runs_ahead=ahead)
            engine = make_engine(runner, ShortsightedCompiler(), speculation=drafter and all_of(drafter, 5))
            results = run(engine, call)
            assert_as_expected(call, results["c"])
            assert drafter is None or results["c"].end.usage.accepted_tokens > 0
            engine.close()


def test_a_grammar_that_breaks_behind_a_guess_fails_where_it_fails_without() -> None:
    call = Call("c", (1, 2), SamplingParams(max_tokens=20, temperature=0.0), Choice(("1", "2,3", "broken", "4,5", "6,7")))
    ends = []
    for drafter in (None, Parrot(2, 4, 6), Parrot(3, 4), Parrot(9)):
        engine = make_engine(ScriptedRunner(64, 4), speculation=drafter and all_of(drafter))
        ends.append(run(engine, call)["c"].end)
        engine.close()
    assert [(end.kind, end.message) for end in ends] == [(ends[0].kind, ends[0].message)] * 4
    assert "cursor is broken" in ends[0].message
