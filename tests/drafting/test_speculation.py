"""How many guesses are verified: by what was agreed so far, what a step costs, and how much room there is. No clock in here."""

import pytest

from branchpoint.runtime.drafting.acceptance import Acceptance
from branchpoint.runtime.drafting.cost import StepCost
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.tally import DrafterStats, Tally, advice
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.drafting.guessing import Parrot

GUESSES = tuple(range(1, 9))


def sequence(number: int = 0) -> Sequence:
    return Sequence(f"c{number}", 0, [1, 2, 3], 3, SamplingParams(), seed=0)


def speculation(*drafters: object, slope: float, most: int = 8) -> Speculation:
    """A chain for which a step of one token takes a second, and each token more `slope` seconds."""
    made = Speculation(drafters or (Parrot(*GUESSES),), most=most, ends=frozenset())  # type: ignore[arg-type]
    for tokens in (1, 65):
        made.note_step(tokens, 1.0 + slope * (tokens - 1))
    return made


def asked(made: Speculation, *sequences: Sequence, budget: int = 64) -> list[int]:
    found = made.propose(dict.fromkeys(sequences, 100), len(sequences), budget)
    return [len(found[one].tokens) if one in found else 0 for one in sequences]


def test_cheap_tokens_are_guessed_and_dear_ones_are_not() -> None:
    counts = [asked(speculation(slope=slope), sequence())[0] for slope in (0.0, 0.05, 0.3, 2.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 8 and counts[-1] == 0


def test_wrong_guesses_make_drafts_short_and_then_rare() -> None:
    made, one = speculation(slope=0.05), sequence()
    counts = []
    for _ in range(200):
        counts += asked(made, one)
        if counts[-1]:
            made.learn(one, 0, counts[-1], finished=False)
    assert counts[0] > 2
    assert sum(counts[20:]) <= 8, "guesses that never hold are still verified"
    (told,) = made.stats()
    assert (told.drafted, told.accepted) == (sum(counts), 0)


def test_right_guesses_make_drafts_as_long_as_they_may_be() -> None:
    made, one = speculation(slope=0.05), sequence()
    for _ in range(30):
        (count,) = asked(made, one)
        made.learn(one, count, count, finished=False)
    assert asked(made, one) == [8]


def test_a_full_batch_gets_fewer_guesses_than_a_lone_sequence() -> None:
    sequences = [sequence(number) for number in range(32)]
    made = speculation(slope=0.08)
    assert max(asked(made, *sequences)) < asked(made, sequence(99))[0]
    assert sum(asked(speculation(slope=0.0), *sequences, budget=10)) == 10
    assert asked(speculation(slope=0.0), *sequences, budget=0) == [0] * 32


def test_the_first_of_a_chain_that_has_an_answer_speaks() -> None:
    made, one = speculation(Parrot(name="silent"), Parrot(5, 6, name="second"), Parrot(7, name="third"), slope=0.0), sequence()
    assert made.propose({one: 8}, 1, 8)[one].tokens == (5, 6)
    made.learn(one, 1, 2, finished=False)
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
        acceptance.learn("a", 1, one, 0, refused=True)
        acceptance.learn("a", 2, one, 3, refused=False)
    low, high = (acceptance.chances("a", Proposal((1, 2, 3), grade), other)[0] for grade in (1, 2))
    assert low < 0.1 < 0.9 < high
    for _ in range(300):
        acceptance.learn("a", 1, other, 1, refused=False)
    assert acceptance.chances("a", Proposal((1,), 1), other)[0] > 0.7
    acceptance.forget(one)
    acceptance.forget(other)
    assert not acceptance._own


def test_costs_between_measured_sizes_lie_on_a_line_and_one_interruption_counts_little() -> None:
    cost = StepCost()
    assert cost.estimate(8) > cost.estimate(1)
    cost.note(1, 1.0)
    cost.note(11, 2.0)
    assert cost.estimate(6) == pytest.approx(1.5)
    assert cost.estimate(21) == pytest.approx(3.0)
    cost.note(1, 500.0)
    assert cost.estimate(1) < 1.5
    cost.note(10_000, 9.0)  # a large prefill says nothing about guesses
    assert cost.estimate(21) < 3.5
