"""Decides each step how many guesses of which drafter are verified for whom, and learns from what came out of them.

The scheduler calls `propose` when a step is planned, the engine `learn` for each verified draft and `settle` after each step.
With bad guesses or full batches the answer is none, and asking becomes rare. What it may lose is bounded (`Purse`).
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from branchpoint.runtime.drafting.acceptance import Acceptance
from branchpoint.runtime.drafting.cost import StepCost, Usual
from branchpoint.runtime.drafting.drafter import Drafter, Proposal
from branchpoint.runtime.drafting.pause import Pause
from branchpoint.runtime.drafting.price import LEAST_GAIN, Price
from branchpoint.runtime.drafting.purse import Purse
from branchpoint.runtime.drafting.silence import Silences
from branchpoint.runtime.drafting.tally import Tally
from branchpoint.runtime.drafting.walk import legal_guesses
from branchpoint.runtime.messages import DrafterStats
from branchpoint.runtime.sequence import Sequence

__all__ = ["Speculation"]


@dataclass(slots=True)
class _Draft:
    """A proposal under consideration, the chance that each of its guesses is reached and right, and their ranks as proposed."""

    drafter: str
    proposal: Proposal
    chances: list[float]
    ranks: list[int]

    def pick(self, numbers: Many[int]) -> None:
        """Leave the guesses of these numbers."""
        self.proposal = self.proposal.pick(numbers)
        self.chances = [self.chances[number] for number in numbers]
        self.ranks = [self.ranks[number] for number in numbers]


@dataclass(slots=True)
class _Step:
    """A step that was planned: `tokens` and `rows` (sequences that draw) without drafts, drafts that it verifies, what held so
    far, and the seconds that were spent on guessing: with guesses `under_way` the step takes these, too.
    """

    tokens: int = 0
    rows: int = 0
    drafts: dict[Sequence, _Draft] = field(default_factory=dict)
    verified: int = 0
    agreed: int = 0
    spent: float = 0.0
    under_way: bool = False


class Speculation:
    """A chain of drafters: the first that has an answer speaks. At most `most` guesses for a sequence; `ends` are tokens that end
    an output, which nobody guesses behind. With `replays` earlier outputs are guessed behind the same prompts, so steps
    should round alike. `adaptive` false verifies all that is proposed; else `cost` says what that takes, and `prices`, by
    drafter, what it takes to guess where that is computed.
    """

    def __init__(
        self,
        drafters: tuple[Drafter, ...],
        *,
        most: int,
        ends: frozenset[int],
        adaptive: bool = True,
        replays: bool = False,
        cost: StepCost | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._drafters = list(drafters)
        self._most = most
        self._ends = ends
        self._adaptive = adaptive
        self.replays = replays
        self._acceptance = Acceptance()
        self._cost = cost or StepCost()
        self._prices = dict(prices or {}) if adaptive else {}
        self._planned = _Step()
        self._steps = deque[_Step]()  # those that aren't over, in their order
        self._silences = Silences()
        self._pause = Pause()
        self._purse = Purse()
        self._usual = Usual()
        self._tally = Tally([drafter.name for drafter in drafters])

    def propose(
        self, wanted: Mapping[Sequence, int], planned: int, budget: int, rows: int | None = None
    ) -> dict[Sequence, Proposal]:
        """Guesses for a step of `planned` tokens so far and room for `budget` more; `wanted` says how many each could use.

        `rows` sequences draw, where those are more than could use any. Asked once for each step, which is then settled or
        abandoned; it may be behind another that is not yet.
        """
        step = self._planned = _Step(planned, rows or len(wanted))
        self._steps.append(step)
        if not wanted or budget <= 0 or not self._may_guess():
            return {}
        asked = {sequence: min(wanted[sequence], self._most) for sequence in self._asked(wanted)}
        drafts = self._collect(asked) if asked else {}
        step.under_way = any(draft.proposal.under_way for draft in drafts.values())
        chosen = self._choose(drafts, budget) if self._adaptive else _all_of(drafts, budget)
        for sequence in asked:
            self._silences.note(sequence, spoke=sequence in drafts or not self._adaptive)
        for sequence, numbers in chosen.items():
            draft = step.drafts[sequence] = drafts[sequence]
            draft.pick(numbers)
        return {sequence: draft.proposal for sequence, draft in step.drafts.items()}

    def awaits(self, wanted: Mapping[Sequence, int], planned: int, rows: int) -> bool:
        """Whether a step of `planned` tokens, in which `rows` sequences draw, is to wait for the tokens of the one that is under
        way, since somebody is likely to have guesses behind them. Where not, it goes without, and is the next to be settled.

        Lookups tell by what they guess behind the tokens that are known: the second of those would be verified.
        """
        step = self._planned = _Step(planned, rows)
        asked = dict.fromkeys(self._asked(wanted), 2) if wanted and self._may_guess() else {}
        if any(self._speaks(drafter, asked) for drafter in tuple(self._drafters)):
            return True
        for sequence in asked:
            self._silences.note(sequence, spoke=False)
        self._steps.append(step)
        return False

    def learn(self, sequence: Sequence, agreed: Many[int], verified: int, *, finished: bool) -> str | None:
        """In the step that is over, of `verified` guesses for `sequence` those of the numbers `agreed` were right, one behind
        another; where it has `finished` the rest is unknown.

        Returns whose guesses they were.
        """
        step = self._steps[0] if self._steps else _Step()
        draft = step.drafts.pop(sequence, None)
        if draft is None or not verified:
            return None
        step.verified += verified
        step.agreed += len(agreed)
        proposal = draft.proposal.cut(verified)
        self._acceptance.learn(draft.drafter, proposal, draft.ranks, sequence, agreed, whole=not finished)
        self._tally.add(draft.drafter, len(agreed), verified, 1 + max(proposal.places))
        return draft.drafter

    def settle(self, seconds: float) -> None:
        """The step is over after so long, and all its drafts are learned of: count what it won. Perhaps nobody drew in it."""
        step = self._steps.popleft()
        if not (step.verified or step.spent):
            if step.tokens == step.rows > 0:
                self._usual.note(step.tokens, seconds)
            self._purse.settle()
            return
        alone, usual = self._cost.estimate(step.rows), self._cost.estimate(step.tokens)
        longer = self._cost.estimate(step.tokens + step.verified) / usual - 1
        if step.tokens == step.rows:
            longer = max(longer, self._usual.excess(step.tokens, seconds - step.spent * step.under_way))
        saved, taken = step.agreed / step.rows, (longer * usual + step.spent) / alone
        if saved > taken:
            self._pause = Pause()
        self._purse.settle(saved, taken)

    def abandon(self) -> None:
        """The step failed: nothing is known of its drafts."""
        self._steps.popleft()

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """`sequence` has ended; with `kept` its output is whole."""
        self._acceptance.forget(sequence)
        self._silences.forget(sequence)
        for drafter in tuple(self._drafters):
            try:
                drafter.finish(sequence, kept=kept)
            except Exception as error:  # noqa: BLE001  # the boundary of a drafter: its fault costs no call anything
                self._drop(drafter, error)

    def stats(self) -> tuple[DrafterStats, ...]:
        """What each drafter has done so far."""
        return self._tally.stats()

    def close(self) -> None:
        """Give back what the drafters hold."""
        for drafter in self._drafters:
            drafter.close()

    def _may_guess(self) -> bool:
        """Whether this step is none of those that go without guesses: by what the last ones came to, or to see what it takes."""
        if not self._adaptive:
            return True
        step = self._planned
        is_due = step.tokens == step.rows and self._usual.is_due(step.tokens)
        return not (is_due or self._purse.is_empty or self._pause.skips(step.rows))

    def _asked(self, wanted: Iterable[Sequence]) -> list[Sequence]:
        """For whom guesses are asked now."""
        return [sequence for sequence in wanted if sequence.draftable and self._silences.ends(sequence)]

    def _speaks(self, drafter: Drafter, asked: Mapping[Sequence, int]) -> bool:
        """Whether `drafter` can guess any sequence's token behind the one that is under way: one that computes its guesses always
        can, but for its pauses.
        """
        if not asked or not self._adaptive:
            return bool(asked)
        if price := self._prices.get(drafter.name):
            return not price.rests(self._planned.rows)
        answers = self._ask(drafter, asked)
        return any(max(self._usable(one, answer).places, default=0) > 0 for one, answer in answers.items())

    def _ask(self, drafter: Drafter, asked: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        try:
            return drafter.propose(asked)
        except Exception as error:  # noqa: BLE001  # the boundary of a drafter: its fault costs no call anything
            self._drop(drafter, error)
            return {}

    def _collect(self, asked: Mapping[Sequence, int]) -> dict[Sequence, _Draft]:
        """The first answer for each sequence that its grammar can follow, with its chances."""
        found: dict[Sequence, _Draft] = {}
        for drafter in tuple(self._drafters):
            left = {sequence: count for sequence, count in asked.items() if sequence not in found and sequence.draftable}
            if not left:
                break
            affordable = self._affordable(drafter.name, left)
            if not affordable:
                continue
            for sequence, proposal in self._ask(drafter, affordable).items():
                kept = self._usable(sequence, proposal)
                if kept.tokens:
                    chances = self._acceptance.chances(drafter.name, kept, sequence)
                    draft = found[sequence] = _Draft(drafter.name, kept, chances, kept.ranks)
                    if len(chances) > self._most:  # the likeliest of a tree; a chain was asked to be no longer
                        draft.pick(sorted(sorted(range(len(chances)), key=lambda number: -chances[number])[: self._most]))
        return found

    def _affordable(self, name: str, wanted: dict[Sequence, int]) -> dict[Sequence, int]:
        """As many of the guesses that are wanted as are worth what this drafter takes for them; that counts as spent."""
        price = self._prices.get(name)
        if price is None:
            return wanted
        guessed = ((sequence, Proposal((0,) * count)) for sequence, count in wanted.items())
        chances = [self._acceptance.chances(name, proposal, sequence) for sequence, proposal in guessed]
        depth = price.depth(chances, self._planned.rows, self._planned.tokens)
        self._planned.spent += price.seconds(len(wanted), depth)
        return {sequence: min(count, depth) for sequence, count in wanted.items()} if depth else {}

    def _usable(self, sequence: Sequence, proposal: Proposal) -> Proposal:
        """What of a proposal can come true: up to an end, and as far as the grammar goes."""
        sampling = sequence.sampling
        ends = self._ends if sequence.matcher is not None or not sampling.ignore_eos else frozenset[int]()
        return legal_guesses(sequence, proposal.without(ends.union(sampling.stop_token_ids)))

    def _choose(self, drafts: Mapping[Sequence, _Draft], budget: int) -> dict[Sequence, Many[int]]:
        """Which guesses of each draft give the most tokens a second, by measured cost; the likeliest are taken first.

        Where none pay, the first of each is taken all the same, to see whether that is so; then there is a pause.
        """
        offers = sorted(
            ((chance, -place, sequence) for sequence, draft in drafts.items() for place, chance in enumerate(draft.chances)),
            key=lambda offer: offer[:2],
            reverse=True,
        )[:budget]
        if not offers:
            return {}
        rows, planned = self._planned.rows, self._planned.tokens
        alone, usual = self._cost.estimate(rows), self._cost.estimate(planned)
        best, best_rate, gained = 0, (1 + LEAST_GAIN) * rows / alone, float(rows)
        for number, (chance, _, _) in enumerate(offers, 1):
            gained += chance
            rate = gained / (alone + self._cost.estimate(planned + number) - usual)
            if rate > best_rate:
                best, best_rate = number, rate
        if not best:
            self._pause.extend(rows)
            firsts = [sequence for _, place, sequence in offers if place == 0]
            affordable = self._cost.estimate(planned + len(firsts)) - usual <= alone
            return dict.fromkeys(firsts, (0,)) if affordable else {}
        chosen: dict[Sequence, list[int]] = {}
        for _, number, sequence in offers[:best]:
            chosen.setdefault(sequence, []).append(-number)
        return {sequence: sorted(numbers) for sequence, numbers in chosen.items()}

    def _drop(self, drafter: Drafter, error: Exception) -> None:
        """A drafter that fails is asked no more: the text doesn't need it."""
        self._drafters.remove(drafter)
        self._tally.fail(drafter.name, f"{type(error).__name__}: {str(error)[:200]}")
        logging.getLogger(__name__).error("The drafter %s failed and is asked no more: %s", drafter.name, error)


def _all_of(drafts: Mapping[Sequence, _Draft], budget: int) -> dict[Sequence, Many[int]]:
    """As much of every draft as there is room for."""
    chosen: dict[Sequence, Many[int]] = {}
    for sequence, draft in drafts.items():
        chosen[sequence] = range(min(budget, len(draft.proposal.tokens)))
        budget -= len(chosen[sequence])
    return chosen
