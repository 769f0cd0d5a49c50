"""How many guesses are verified: by what was agreed so far, what a step costs, and how much room there is. No clock in here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from branchpoint.runtime.drafting.acceptance import Acceptance
from branchpoint.runtime.drafting.cost import SIZES, StepCost
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.price import Price
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.tally import Tally, advice
from branchpoint.runtime.messages import DrafterStats
from branchpoint.runtime.plan import StepPlan
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.step_timing import time_steps
from tests.drafting.guessing import Parrot

GUESSES = tuple(range(1, 9))


def sequence(number: int = 0) -> Sequence:
    return Sequence(f"c{number}", 0, [1, 2, 3], 3, SamplingParams(), seed=0)


def speculation(*drafters: object, slope: float, most: int = 8) -> Speculation:
    """A chain for which a step of one token takes a second, and each token more `slope` seconds."""
    cost = StepCost({1: 1.0, 65: 1.0 + slope * 64})
    return Speculation(drafters or (Parrot(*GUESSES),), most=most, ends=frozenset(), cost=cost)  # type: ignore[arg-type]


def step(made: Speculation, *sequences: Sequence, rate: float = 0.0, true: StepCost | None = None) -> int:
    """One step in which each guess for `sequences` is right with this rate, those in front first. How many were made.

    It takes what `true` says, or else what `made` believes.
    """
    found = made.propose(dict.fromkeys(sequences, 100), len(sequences), 64)
    for one, proposal in found.items():
        made.learn(one, range(int(rate * len(proposal.tokens))), len(proposal.tokens), finished=False)
    count = sum(len(proposal.tokens) for proposal in found.values())
    made.settle((true or made._cost).estimate(len(sequences) + count))
    return count


def asked(made: Speculation, *sequences: Sequence, budget: int = 64) -> list[int]:
    found = made.propose(dict.fromkeys(sequences, 100), len(sequences), budget)
    return [len(found[one].tokens) if one in found else 0 for one in sequences]


def test_cheap_tokens_are_guessed_and_dear_ones_are_not() -> None:
    counts = [asked(speculation(slope=slope), sequence())[0] for slope in (0.0, 0.05, 0.3, 2.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 8 and counts[-1] == 0


def test_wrong_guesses_make_drafts_short_and_then_rare() -> None:
    made, one = speculation(slope=0.05), sequence()
    counts = [step(made, one) for _ in range(400)]
    assert counts[0] >= 2
    assert sum(counts[30:]) <= 12, "guesses that never hold are still verified"
    (told,) = made.stats()
    assert (told.drafted, told.accepted) == (sum(counts), 0)


def test_right_guesses_make_drafts_as_long_as_they_may_be() -> None:
    made, one = speculation(slope=0.05), sequence()
    assert [step(made, one, rate=1.0) for _ in range(30)][-1] == 8


def test_what_is_lost_on_guesses_is_bounded_whatever_they_look_like() -> None:
    class Fickle(Parrot):
        """Each time of another grade, so that nothing is ever known of it."""

        def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
            self.grade = getattr(self, "grade", 0) + 1
            return {one: Proposal((1,), self.grade) for one in wanted}

    made, steps = speculation(Fickle(), slope=0.05), 3000
    counts = [step(made, *(sequence(number * 16 + place) for place in range(16))) for number in range(steps)]
    lost = sum(counts) * 0.05 / (1 + 15 * 0.05)
    assert lost < 8 + 0.01 * steps, f"{lost} of {steps} steps"
    assert sum(counts) > 0


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_what_is_lost_is_bounded_by_what_steps_really_take_where_they_were_measured_wrong(rate: float) -> None:
    """Guesses for a full batch look free, and each costs as much as a token."""
    sequences = [sequence(number) for number in range(16)]
    true, steps = StepCost({1: 1.0, 16: 16.0, 64: 64.0}), 2000
    made = Speculation((Parrot(1, 2, 3, 4),), most=4, ends=frozenset(), cost=StepCost({16: 1.0, 64: 1.0}))
    counts = [step(made, *sequences, rate=rate, true=true) for _ in range(steps)]
    lost = sum(counts) * (1 - rate) / 16
    assert lost < 0.03 * steps, f"{lost} of {steps} steps"
    assert counts[0] > 0, "what looks free is tried"


def test_steps_that_wait_for_something_else_do_not_end_what_pays() -> None:
    made, one = speculation(slope=0.05), sequence()
    for number in range(200):
        step(made, one, rate=1.0, true=StepCost({1: 1.0, 64: 50.0}) if number % 10 == 5 else None)
    assert sum(step(made, one, rate=1.0) for _ in range(20)) > 100


def test_a_step_that_only_computes_prompts_counts_no_draft_of_the_step_before() -> None:
    made, one = speculation(slope=0.3), sequence()
    assert step(made, one) > 0
    for _ in range(100):
        step(made)
    assert step(made, sequence(1)) > 0


def test_of_a_step_that_failed_nothing_is_counted_later() -> None:
    made, one = speculation(slope=0.3), sequence()
    assert asked(made, one)[0] > 0
    made.abandon()
    assert made.learn(one, (), 1, finished=False) is None
    assert step(made, sequence(1)) > 0


def test_a_step_that_is_planned_before_another_is_over_learns_for_itself() -> None:
    made, one, two = Speculation((Parrot(1, 2),), most=2, ends=frozenset(), adaptive=False), sequence(), sequence(1)
    made.propose({one: 9}, 1, 9)
    made.propose({one: 9, two: 9}, 2, 9)
    assert made.learn(two, (), 2, finished=False) is None
    assert made.learn(one, (0,), 2, finished=False) == "parrot"
    made.settle(1.0)
    assert made.learn(one, (0, 1), 2, finished=False) == made.learn(two, (), 2, finished=False) == "parrot"
    made.settle(1.0)
    assert [(each.drafted, each.accepted) for each in made.stats()] == [(6, 3)]


def test_a_full_batch_whose_guesses_hold_is_found_out_by_trying_them_all_at_once() -> None:
    sequences = [sequence(number) for number in range(16)]
    made = Speculation(  # a tile more for any guess, and a prior that doesn't pay for it
        (Parrot(*GUESSES),), most=1, ends=frozenset(), cost=StepCost({16: 1.0, 17: 1.6, 64: 1.6})
    )
    counts = [step(made, *sequences, rate=1.0) for _ in range(20)]
    assert counts[0] == 16 and counts[-5:] == [16] * 5


def test_a_batch_that_empties_is_asked_again_at_once() -> None:
    sequences = [sequence(number) for number in range(16)]
    made = Speculation((Parrot(*GUESSES),), most=4, ends=frozenset(), cost=StepCost({1: 1.0, 2: 1.01, 16: 1.02, 17: 9.0}))
    for _ in range(10):
        step(made, *sequences)
    assert sum(step(made, *sequences) for _ in range(10)) == 0
    assert step(made, sequences[0], rate=1.0) > 0


def test_a_full_batch_gets_fewer_guesses_than_a_lone_sequence() -> None:
    sequences = [sequence(number) for number in range(32)]
    made = speculation(slope=0.08)
    assert max(asked(made, *sequences)) < asked(made, sequence(99))[0]
    assert sum(asked(speculation(slope=0.0), *sequences, budget=10)) == 10
    assert asked(speculation(slope=0.0), *sequences, budget=0) == [0] * 32


def test_the_first_of_a_chain_that_has_an_answer_speaks() -> None:
    made, one = speculation(Parrot(name="silent"), Parrot(5, 6, name="second"), Parrot(7, name="third"), slope=0.0), sequence()
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5, 6)
    made.learn(one, (0,), 2, finished=False)
    assert {each.name: each.drafted for each in made.stats()} == {"silent": 0, "second": 2, "third": 0}


def test_nobody_guesses_behind_an_end() -> None:
    made = Speculation((Parrot(5, 9, 6),), most=8, ends=frozenset({9}), adaptive=False)  # type: ignore[arg-type]
    one = sequence()
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5,)
    one.sampling = SamplingParams(ignore_eos=True)
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5, 9, 6)
    one.sampling = SamplingParams(stop_token_ids=(5,))
    assert made.propose({one: 8}, 1, 8) == {}


def test_a_drafter_that_fails_is_asked_no_more_and_named(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Parrot):
        def propose(self, wanted: object) -> dict[Sequence, Proposal]:
            raise KeyError("lost")

    made, one = speculation(Broken(name="broken"), Parrot(5, name="whole"), slope=0.0), sequence()
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5,)
    assert made.stats()[0].failure == "KeyError: 'lost'"
    assert "broken" in caplog.text and "asked no more" in advice(made.stats())[0]
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5,)


class Parting(Parrot):
    """Four guesses, and another one for the first of them."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        return {one: Proposal((1, 2, 3, 4), 0).beside([(0, (9,))]) for one in wanted}


def chosen(made: Speculation, truth: tuple[int, ...], *sequences: Sequence) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """One step whose outputs go on as `truth` says: the guesses that were verified for each sequence, and their depths."""
    found = made.propose(dict.fromkeys(sequences, 100), len(sequences), 64)
    for one, proposal in found.items():
        agreed: list[int] = []
        for number, (token, depth) in enumerate(zip(proposal.tokens, proposal.places, strict=True)):
            if depth == len(agreed) < len(truth) and token == truth[depth] and (not agreed or agreed[-1] < number):
                agreed.append(number)
        made.learn(one, agreed, len(proposal.tokens), finished=False)
    made.settle(made._cost.estimate(len(sequences) + sum(len(proposal.tokens) for proposal in found.values())))
    return [(found[one].tokens, found[one].depths) if one in found else ((), ()) for one in sequences]


def test_another_token_for_a_place_is_guessed_where_it_is_likelier_to_hold_than_one_more_at_the_end() -> None:
    parts, goes_on = (speculation(Parting(), slope=0.02, most=2) for _ in range(2))
    one = sequence()
    for number in range(60):
        apart = chosen(parts, ((1, 5), (9,))[number % 2], one)
        along = chosen(goes_on, (1, 2, 3, 4), one)
    assert apart == [((1, 9), (0, 0))]
    assert along == [((1, 2), ())]


def test_a_dearer_or_fuller_step_makes_trees_narrow_and_then_nothing() -> None:
    widths = []
    for slope, most in ((0.02, 1), (0.3, 1), (2.0, 1), (0.3, 32)):
        made = speculation(Parting(), slope=slope)
        batch = [sequence(number) for number in range(most)]
        for number in range(80):
            found = chosen(made, ((1, 2, 3), (9,), (1, 2, 3))[number % 3], *batch)
            widths += [len(tokens) for tokens, _ in found[:1]] if number == 79 else []
    assert widths[0] == 5 and widths[0] > widths[1] and widths[2:] == [0, 0], widths


def test_a_guess_beside_others_has_a_rate_of_its_own() -> None:
    acceptance, one = Acceptance(), sequence()
    line = Proposal((1, 2), 0)
    both = line.beside([(0, (9,))])
    for number in range(60):
        acceptance.learn("a", line, line.ranks, one, (0, 1), whole=True)
        acceptance.learn("a", both, both.ranks, one, ((0, 1), (2,))[number % 2], whole=True)
    assert both.ranks == [1, 0, 2] and both.depths == (0, 1, 0)
    alone, (first, _, other) = acceptance.chances("a", line, one)[0], acceptance.chances("a", both, one)
    assert alone > 0.9 and first == pytest.approx(0.5, abs=0.1) and other == pytest.approx(0.5, abs=0.1)
    assert both.pick((0, 1)).depths == () and both.pick((0, 2)).depths == (0, 0) and both.cut(1) == Proposal((1,))


def test_advice_names_what_does_not_pay() -> None:
    poor, good, few = DrafterStats("a", 50, 100, 10), DrafterStats("b", 50, 100, 60), DrafterStats("c", 5, 10, 0)
    (line,) = advice((poor, good, few))
    assert line == "The drafter a doesn't pay: 10% of 100 guesses were right; leave it out."


def test_counts_by_place_hold_the_last_place_for_all_behind_it() -> None:
    tally = Tally(["a"])
    tally.add("a", 2, 20)
    (told,) = tally.stats()
    assert told.by_place[:3] == ((1, 1), (1, 1), (1, 0)) and told.by_place[15] == (5, 0)


def test_rates_forget_and_differ_by_grade_and_sequence() -> None:
    acceptance, one, other = Acceptance(), sequence(), sequence(1)
    for _ in range(40):
        acceptance.learn("a", Proposal((1, 2, 3), 1), (0, 0, 0), one, (), whole=True)
        acceptance.learn("a", Proposal((1, 2, 3), 2), (0, 0, 0), one, (0, 1, 2), whole=True)
    low, high = (acceptance.chances("a", Proposal((1, 2, 3), grade), other)[0] for grade in (1, 2))
    assert low < 0.1 < 0.9 < high
    for _ in range(300):
        acceptance.learn("a", Proposal((1,), 1), (0,), other, (0,), whole=True)
    assert acceptance.chances("a", Proposal((1,), 1), other)[0] > 0.7
    acceptance.forget(one)
    acceptance.forget(other)
    assert not acceptance._own


def test_costs_between_measured_sizes_lie_on_a_line_and_never_fall() -> None:
    cost = StepCost()
    assert cost.estimate(8) > cost.estimate(1)
    cost = StepCost({1: 1.0, 11: 2.0, 12: 3.0, 20: 2.5})
    assert [cost.estimate(size) for size in (1, 6, 11, 12)] == pytest.approx([1.0, 1.5, 2.0, 2.5])
    assert cost.estimate(16) == pytest.approx(2.5)
    assert cost.estimate(39) == pytest.approx(1.0 + 38 * 1.5 / 19)


def test_steps_are_timed_until_a_slow_model_has_taken_its_time() -> None:
    ticks = 0.0

    class Slow:
        page_size = 4
        num_pages = 8

        def execute(self, plan: StepPlan, masks: object) -> None:
            nonlocal ticks
            assert all(slot.sequence.pages == [8] and slot.count <= 4 for slot in plan.slots)
            ticks += plan.num_tokens * self.seconds

        seconds = 0.001

    found = time_steps(Slow(), SIZES, 4, 8, lambda: ticks)  # type: ignore[arg-type]
    assert found == {size: pytest.approx(size / 1000) for size in SIZES if size <= 16}
    Slow.seconds = 1.0
    assert list(time_steps(Slow(), SIZES, 64, 8, lambda: ticks)) == [1, 2, 4]  # type: ignore[arg-type]


def priced(each: float) -> Price:
    """Guesses for which each pass takes `each` of a step's second, whatever it holds; the step's own tokens cost little."""
    return Price(StepCost({1: each, 64: each}), StepCost({1: 1.0, 64: 1.1}))


def test_computed_guesses_are_as_deep_as_their_passes_are_worth() -> None:
    chances = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]] * 4
    depths = [priced(each).depth(chances, 4, 4) for each in (0.01, 0.2, 0.4)]
    assert depths == sorted(depths, reverse=True) and depths[0] == 6 and 0 < depths[-1] < 6
    assert priced(0.1).seconds(4, 3) == pytest.approx(0.3)


def test_where_no_pass_pays_one_is_tried_now_and_then() -> None:
    price = priced(2.0)
    depths = [price.depth([[0.9, 0.9], [0.9]], 2, 2) for _ in range(200)]
    assert set(depths) == {0, 1} and 3 < sum(depths) < 12


def test_what_guessing_took_is_counted_with_what_it_won() -> None:
    """Every guess is right, but a pass takes as long as the step that it saves."""
    cost = StepCost({1: 1.0, 64: 1.0})
    made = Speculation(
        (Parrot(*GUESSES, name="model"), Parrot(5, name="lookup")),
        most=4,
        ends=frozenset(),
        cost=cost,
        prices={"model": Price(StepCost({1: 1.0, 64: 1.0}), cost)},
    )
    one, counts = sequence(), []
    for _ in range(300):
        counts += asked(made, one)
        made.learn(one, range(counts[-1]), counts[-1], finished=False)
        made.settle(1.0)
    told = {each.name: each.drafted for each in made.stats()}
    assert told["model"] < 40 and told["lookup"] > 200, told


class Waiting(Parrot):
    """Has only launched what draws its guesses."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        waiting: Any = object()
        return {one: replace(each, under_way=waiting) for one, each in super().propose(wanted).items()}


def test_guesses_that_are_drawn_in_the_step_which_verifies_them_are_counted_once() -> None:
    """A step takes a second, and each pass for its guesses an eighth of one: before it, or in it."""
    held = []
    for drafter in (Parrot, Waiting):
        cost = StepCost({1: 1.0, 64: 1.0})
        price = Price(StepCost({1: 0.125, 64: 0.125}), cost)
        source = drafter(*GUESSES, name="model")
        made, one = Speculation((source,), most=4, ends=frozenset(), cost=cost, prices={"model": price}), sequence()
        made.propose({}, 1, 64, 1)
        made.settle(1.0)
        (count,) = asked(made, one)
        made.learn(one, (0,), count, finished=False)
        made.settle(1.0 + 0.125 * count * (drafter is Waiting))
        held.append(made._purse._held)
    assert held[0] == pytest.approx(held[1])
