"""Where nobody has anything to guess, an engine that drafts runs ahead as any other; where somebody has, the step waits."""

from collections.abc import Mapping

import pytest

from branchpoint.constrained.spec import Choice
from branchpoint.runtime.drafting.cost import StepCost
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.price import Price
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.messages import Call
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.drafting.guessing import Oracle, Parrot, all_of
from tests.drafting.test_speculation import GUESSES, sequence, speculation
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import CONTEXT, ScriptedRunner, make_engine, run


def call(name: str, *prompt: int, tokens: int = 24, seed: int = 3) -> Call:
    return Call(name, prompt, SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=True))


CALLS = [call(f"c{number}", *range(number, 9 + 2 * number), tokens=20 + number) for number in range(6)]


class Seldom(Oracle):
    """Knows what comes only behind the last tokens of every ten."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        return super().propose({one: min(count, 4) for one, count in wanted.items() if one.num_output % 10 > 5})


def test_steps_without_drafts_run_ahead_and_those_with_drafts_follow_at_once() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    made = all_of(Parrot(), adaptive=True)
    for one, got in run(make_engine(runner, speculation=made, max_sequences=3), *CALLS).items():
        assert_as_expected(next(each for each in CALLS if each.id == one), got)
    assert runner.num_ahead == len(runner.plans) - 1, "nobody ever speaks"

    lone = CALLS[0]
    runner = ScriptedRunner(runs_ahead=True)
    results = run(make_engine(runner, speculation=all_of(Seldom({lone.id: lone}, CONTEXT, 0.0), adaptive=True)), lone)
    assert_as_expected(lone, results[lone.id])
    drafted = [number for number, plan in enumerate(runner.plans) if plan.slots[0].draft]
    waiting = [number for number, plan in enumerate(runner.plans) if not plan.sources]
    assert drafted and results[lone.id].end.usage.accepted_tokens > 2  # type: ignore[union-attr]
    behind = (number + 1 for number in drafted if number + 1 < len(runner.plans))
    assert set(waiting) == {0, *drafted, *behind}, "none else"


@pytest.mark.parametrize("drafters", [("radix", "suffix"), ("grammar", "ngram"), ("radix", "grammar")])
def test_lookups_find_as_much_where_steps_run_ahead(drafters: tuple[str, ...]) -> None:
    held = Choice(("1,2", "3", "4,5", "6", "7", "8,9,10", "11", "1,2") * 2)
    calls = [call("free", 1, 2, 3), Call("held", (4, 5), SamplingParams(max_tokens=20, seed=1), held), call("long", *range(20))]
    accepted, steps = {}, {}
    for ahead in (False, True):
        runner = ScriptedRunner(128, runs_ahead=ahead)
        engine = make_engine(runner, drafters=drafters)
        accepted[ahead] = 0
        for turn in range(4):
            again = [Call(f"{one.id} {turn}", one.prompt, one.sampling, one.constraint) for one in calls]
            for one, got in run(engine, *again).items():
                assert_as_expected(next(each for each in again if each.id == one), got)
                accepted[ahead] += got.end.usage.accepted_tokens  # type: ignore[union-attr]
        steps[ahead] = len(runner.plans)
        engine.close()
    assert accepted[True] >= 0.5 * accepted[False] > 0, "grammars can't be asked while what was drawn isn't taken in"
    assert steps[True] <= 1.05 * steps[False]


def awaits(made: Speculation, *sequences: Sequence) -> bool:
    return made.awaits(dict.fromkeys(sequences, 100), len(sequences), len(sequences))


def test_a_guess_for_the_token_under_way_alone_is_not_waited_for() -> None:
    assert awaits(speculation(Parrot(5, 6), slope=0.0), sequence())
    assert not awaits(speculation(Parrot(5), slope=0.0), sequence())
    assert not speculation(Parrot(5, 6), slope=0.0).awaits({}, 4, 2)
    assert not awaits(Speculation((Parrot(5, 6),), most=8, ends=frozenset({6})), sequence()), "the output ends there"


def test_who_was_silent_is_asked_less_often_and_who_fails_no_more() -> None:
    asked = 0

    class Counting(Parrot):
        def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
            nonlocal asked
            asked += 1
            if asked == 15:
                raise KeyError("lost")
            return {}

    made, one = speculation(Counting(), slope=0.0), sequence()
    for _ in range(100):
        assert not awaits(made, one)
        made.settle(1.0)
    assert asked == 15 and made.stats()[0].failure == "KeyError: 'lost'"


def test_guesses_that_do_not_pay_are_not_waited_for() -> None:
    made, one = speculation(slope=0.3), sequence()
    waited = 0
    for _ in range(400):
        found = {}
        if awaits(made, one):
            waited += 1
            found = made.propose({one: 100}, 1, 64)
            for proposal in found.values():
                made.learn(one, (), len(proposal.tokens), finished=False)
        made.settle(1.0 + 0.3 * sum(len(proposal.tokens) for proposal in found.values()))
    assert 2 < waited < 40


def test_a_model_that_guesses_is_waited_for_but_in_its_pauses() -> None:
    cost = StepCost({1: 1.0, 64: 1.0})
    for each, pays in ((0.01, True), (5.0, False)):
        asked = Parrot(*GUESSES, name="model")
        asked.propose = None  # type: ignore[assignment,method-assign]  # whether it speaks is known without a pass
        price = Price(StepCost({1: each, 64: each}), cost)
        made, one = Speculation((asked,), most=4, ends=frozenset(), cost=cost, prices={"model": price}), sequence()
        assert awaits(made, one)
        assert price.depth([[0.9] * 4], 1, 1) > 0
        assert awaits(made, one) == pays


def test_a_step_behind_another_is_settled_after_it() -> None:
    made, one = speculation(slope=0.0), sequence()
    guesses = made.propose({one: 100}, 1, 64)[one].tokens
    assert not made.awaits({}, 7, 7)
    assert made.learn(one, range(len(guesses)), len(guesses), finished=False) is not None
    held = made._purse._held
    made.settle(1.0)
    assert made._purse._held > held + 1, "the first step's guesses have saved several"
    made.settle(3.0)
    assert made._usual.excess(7, 6.0) == 1.0, "the second took three seconds for seven tokens"
