"""Fills the token masks of a step on a few threads, while the forward pass runs.

The engine starts it before the runner computes a plan, or right after where that is done elsewhere; the runner waits for the
masks before it samples. Behind a draft, the matcher walks along the guesses, through a tree of them down and back, and returns.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from branchpoint.constrained.grammar import MaskRow, Matcher, Residue, mask_words
from branchpoint.runtime.plan import Slot, StepPlan, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["MaskFiller", "StepMasks"]


@dataclass(frozen=True, slots=True)
class _Walk:
    """What the fills of one slot came to: the rows that hold, whether the matcher is where it was, what is left to ask, what
    each guess forces, and the CPU seconds that a row took.
    """

    seconds: float
    rows: int
    whole: bool = True
    residue: Residue | None = None
    forced: tuple[tuple[int, ...], ...] = ()
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The first row to be masked for a slot: behind its last own token, or behind the guesses that are `known` since. Those of
    other guesses follow.
    """

    row: int
    slot: Slot
    matcher: Matcher
    known: int = 0


class StepMasks:
    """The masks of one plan; all but `wait` is whole after it.

    `errors` says whose grammar failed, `seconds` what each sequence's fills took. `usable` holds how many of a slot's drawn rows
    are masked: behind a guess that the grammar refuses there are none. For the guesses of a chain that aren't known yet `forced`
    tells what the grammar leaves no choice about behind each. `broken` are sequences whose matcher failed on a guess and must be
    made anew.
    """

    def __init__(
        self,
        rows: TokenMask | None,
        fills: "list[tuple[list[_Wanted], Future[list[_Walk | BaseException]]]]",
        usable: dict[Sequence, int] | None = None,
    ) -> None:
        self.errors: dict[Sequence, BaseException] = {}
        self.seconds: dict[Sequence, float] = {}
        self.usable = usable or {}
        self.forced: dict[Sequence, tuple[tuple[int, ...], ...]] = {}
        self.broken: set[Sequence] = set()
        self._rows = rows
        self._fills = fills

    def wait(self) -> TokenMask | None:
        """All rows, filled: a plan's MaskSource. A row whose grammar failed allows everything."""
        for part, fill in self._fills:
            for wanted, came in zip(part, fill.result(), strict=True):
                sequence = wanted.slot.sequence
                if isinstance(came, BaseException):
                    assert self._rows is not None, "a row was filled that isn't there"
                    self._rows[wanted.row] = -1
                    self.errors[sequence] = came
                    continue
                self.seconds[sequence] = came.seconds
                self.usable[sequence] = wanted.known + came.rows
                self.forced[sequence] = came.forced
                sequence.residue = came.residue
                sequence.note_mask(came.cost)
                if not came.whole:
                    self.broken.add(sequence)
        self._fills = []
        return self._rows


class MaskFiller:
    """Fills rows for a vocabulary of `size` tokens. `close` ends its threads."""

    def __init__(self, size: int, *, workers: int = 2) -> None:
        self._size = size
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="branchpoint-mask")

    def start(self, plan: StepPlan) -> StepMasks:
        """Begin to fill what `plan` needs: of a slot's rows the last one is sampled, and before it one for each guess.

        A row behind which the grammar has forced a token since the plan was made draws nothing that counts.
        """
        wanted: list[_Wanted] = []
        usable: dict[Sequence, int] = {}
        row = 0
        for slot in plan.slots:
            row += len(slot.rows)
            sequence = slot.sequence
            if not slot.sample or sequence.matcher is None:
                continue
            sequence.residue = None
            if not sequence.samples:
                continue  # what was forced since is its end
            since = tuple(sequence.tokens[slot.first_guess :])
            if not since or (since == slot.draft[: len(since)] and not slot.depths):
                wanted.append(_Wanted(row - 1 - len(slot.draft) + len(since), slot, sequence.matcher, len(since)))
            elif slot.depths:
                usable[sequence] = 1
        if not wanted:
            return StepMasks(None, [], usable)
        rows = np.empty((row, mask_words(self._size)), np.int32)
        whole = np.ones(row, np.bool_)
        whole[[each.row for each in wanted if not each.slot.draft]] = False  # which are filled all over
        rows[whole] = -1
        parts = [wanted[first :: self._workers] for first in range(min(self._workers, len(wanted)))]
        return StepMasks(rows, [(part, self._pool.submit(_fill_all, rows, part)) for part in parts], usable)

    def close(self) -> None:
        """Wait for running fills and end the threads."""
        self._pool.shutdown(wait=True)


def _must_be_exact(slot: Slot) -> bool:
    """Whether which other tokens are allowed changes the chance of the one that is drawn."""
    return bool(slot.odds) or slot.sequence.sampling.truncates


def _fill_all(rows: TokenMask, part: list[_Wanted]) -> list[_Walk | BaseException]:
    """Mask the rows of one thread; a task for each would cost the engine's thread more than the masks cost this one."""
    came: list[_Walk | BaseException] = []
    for wanted in part:
        since = time.thread_time()
        try:
            walk = _fill(rows[wanted.row : wanted.row + len(wanted.slot.draft) - wanted.known + 1], wanted)
            came.append(replace(walk, cost=(time.thread_time() - since) / walk.rows))
        except BaseException as error:  # noqa: BLE001  # the boundary of one sequence, a library's panics too
            came.append(error)
    return came


def _fill(rows: TokenMask, wanted: _Wanted) -> _Walk:
    """Mask the first row, and those behind the guesses that the grammar takes. Raises only what the first row's fill raises.

    What is drawn from any of them is asked about when the matcher stands there, exact or not, since exact rows look less far.
    Where the first has nothing to ask, nobody would, and the others are exact.
    """
    started, slot, matcher = time.perf_counter(), wanted.slot, wanted.matcher
    residue = matcher.fill_loosely(rows[0])
    exact = residue is None or _must_be_exact(slot)
    if residue is not None and exact:
        residue.narrow(rows[0])
    fill = matcher.fill if exact else matcher.fill_loosely
    whole = True
    forced: list[tuple[int, ...]] = []  # behind each guess so far
    try:
        if slot.depths:
            _walk_tree(rows, slot, matcher, fill, forced)
        else:
            _walk(rows, slot.draft[wanted.known :], matcher, fill, forced)
    except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
        rows[len(forced) + 1 :] = -1
        whole, residue = False, None
    known = () if slot.depths else tuple(forced)
    return _Walk(time.perf_counter() - started, len(forced) + 1, whole, residue, known)


def _walk(
    rows: TokenMask, guesses: tuple[int, ...], matcher: Matcher, fill: Callable[[MaskRow], object], forced: list[tuple[int, ...]]
) -> None:
    """Along the guesses of a chain that the matcher takes, and back; what it forces behind each decides about the next ones, and
    needs no mask.
    """
    following: tuple[int, ...] = ()
    for row, guess in zip(rows[1:], guesses, strict=True):
        if (following and guess != following[0]) or matcher.advance((guess,)) != 1:
            break
        following = following[1:] if following else tuple(matcher.forced())
        if not following:
            fill(row)
        forced.append(following)
    matcher.rollback(len(forced))


def _walk_tree(
    rows: TokenMask, slot: Slot, matcher: Matcher, fill: Callable[[MaskRow], object], forced: list[tuple[int, ...]]
) -> None:
    """Down along all guesses that the matcher takes, and back; what it forces isn't asked."""
    at = 0
    for row, guess, depth in zip(rows[1:], slot.draft, slot.depths, strict=True):
        if depth < at:
            matcher.rollback(at - depth)
        at = depth
        if matcher.advance((guess,)) != 1:
            break
        at += 1
        fill(row)
        forced.append(())
    matcher.rollback(at)
