"""Follows a text with JSON values in it, and has each value judged where it stands: what `judged.py` asks about structural tags.

Outside of values nothing is judged, so that only tokens that reach into one are looked at.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.engines.watch import ValueWatch
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import forbid, pack
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.spots import Seams, Spot, Spots
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.work import Work

__all__ = ["Place", "TagWatch"]

_VALUE = rb'["0-9{\[tfn-]'
Ids = npt.NDArray[np.int64]


class Place:
    """The spot in the outline; `state` is where in its value the text stands, once that has begun. Never changed.

    `pending` are the bytes of a character that isn't complete.
    """

    __slots__ = ("pending", "spot", "state")

    def __init__(self, spot: Spot, state: State | None = None, pending: bytes = b"") -> None:
        self.spot = spot
        self.state = state
        self.pending = pending


class TagWatch:
    """`watches` judge the values of an outline by their names; values without one are only followed to their ends (`Watch`)."""

    def __init__(self, vocabulary: Vocabulary, spots: Spots, seams: Seams, watches: Mapping[str, ValueWatch], work: Work) -> None:
        self.work = work
        self._spots = spots
        self._watches = watches
        self._unjudged = Reader(Judge(True, {}, work=work), 0)
        self._crossing = _Crossing(vocabulary, seams)
        self._tokens = vocabulary.tokens
        self._begins: dict[str, MaskRow] = {}
        self._entering: dict[Spot, Ids] = {}
        self._size = vocabulary.size

    def start(self) -> Place:
        """Before the first byte."""
        return Place(self._spots.start)

    def _reader(self, spot: Spot) -> Reader:
        assert spot.value is not None, "asked where a value may begin"
        watch = self._watches.get(spot.value.name)
        return watch.reader if watch is not None else self._unjudged

    def read(self, place: Place, text: bytes) -> Place | None:
        """The place after `text`, None where a value in it can't become valid any more."""
        spot, state, pending = place.spot, place.state, place.pending
        at = 0
        while at < len(text):
            if state is not None:
                reached, taken = self._reader(spot).read_value(state, text[at:])
                if reached is None:
                    return None
                at += taken
                state = reached
                if reached.at is At.END:
                    spot, state = self._spots.behind(spot), None
            elif spot.value is not None and not pending and chr(text[at]) in spot.value.starts:
                state = self._reader(spot).start()
            else:
                pending += text[at : at + 1]
                at += 1
                if len(pending) < _length(pending[0]):
                    continue
                following = self._step(spot, pending)
                if following is None:
                    return None
                spot, pending = following, b""
        return Place(spot, state, pending)

    def _step(self, spot: Spot, encoded: bytes) -> Spot | None:
        try:
            return self._spots.step(spot, encoded.decode())
        except UnicodeDecodeError:
            return None

    def may_end(self, place: Place) -> bool:
        """Whether no value is left open, as far as it is judged; the grammar says whether the text is complete."""
        return place.state is None or self._reader(place.spot).may_end(place.state)

    def may_strand(self, place: Place) -> bool:
        """Whether a token that is allowed in this value may lead to where all that follow are refused."""
        watch = self._judging(place)
        return watch is not None and place.state is not None and watch.may_strand(place.state)

    def may_count(self, place: Place) -> bool:
        """Whether a number may stand here that is judged as a whole."""
        watch = self._judging(place)
        return watch is not None and watch.may_count(watch.start() if place.state is None else place.state)

    def writes_number(self, place: Place) -> bool:
        """Whether such a number is being written: the grammar may let no digit follow."""
        watch = self._judging(place)
        return watch is not None and place.state is not None and watch.writes_number(place.state)

    def may_be_last(self, place: Place) -> bool:
        """Whether it may be at its last digit: it is a zero so far, or may have bounds."""
        watch = self._judging(place)
        return watch is not None and place.state is not None and watch.may_be_last(place.state)

    def _judging(self, place: Place) -> ValueWatch | None:
        """Who judges the value that has begun, or may begin."""
        return self._watches.get(place.spot.value.name) if place.spot.value is not None else None

    def cut(self, row: MaskRow, place: Place) -> None:
        """Clear the bits of all tokens that a judge refuses."""
        spot, state = place.spot, place.state
        if spot.value is None or place.pending:
            self._check(row, place, self._entered(place))
            return
        watch = self._judging(place)
        if watch is not None and state is not None:
            watch.cut(row, state)
        elif watch is not None:
            begins = self._beginning(spot.value.starts)
            begun = row & begins
            watch.cut(begun, watch.start())
            row &= begun | ~begins
        self._check(row, place, self._crossing.nested if state is not None and state.frame is not None else self._crossing.all)

    def _check(self, row: MaskRow, place: Place, tokens: Ids) -> None:
        """Read each of these tokens that the row has."""
        found = tokens[(row[tokens >> 5] >> (tokens & 31)) & 1 == 1].tolist()
        forbid(row, [token for token in found if self.read(place, self._tokens[token]) is None])

    def _entered(self, place: Place) -> Ids:
        """The tokens that reach into a value from a place outside of one."""
        if place.pending or place.spot not in self._entering:
            groups = self._crossing.by_head.items()
            found = [tokens for head, tokens in groups if self._leads_in(place, head)]
            entering = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
            if place.pending:
                return entering
            self._entering[place.spot] = entering
        return self._entering[place.spot]

    def _leads_in(self, place: Place, head: bytes) -> bool:
        reached = self.read(place, head)
        return reached is not None and reached.state is None and reached.spot.value is not None

    def _beginning(self, starts: str) -> MaskRow:
        """The tokens with which a value begins."""
        if starts not in self._begins:
            firsts = frozenset(starts.encode())
            self._begins[starts] = pack((at for at, text in enumerate(self._tokens) if text and text[0] in firsts), self._size)
        return self._begins[starts]


class _Crossing:
    """The tokens in which something else ends and a value begins.

    `all` of them; `nested`, those that also close a bracket before; `by_head`, by the text before the value, for each that may
    begin in them.
    """

    def __init__(self, vocabulary: Vocabulary, seams: Seams) -> None:
        before = frozenset(char.encode()[-1:] for char in seams.before)
        ends = b"".join(map(re.escape, sorted(before)))
        inside = re.compile(rb"(?s:(?<=[" + ends + rb"])" + _VALUE + rb")") if ends else None
        behind = re.compile(rb'(?<=[]}"el])' + _VALUE) if seams.adjoining else None
        every: list[int] = []
        groups: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.tokens):
            seen = [found.start() for found in inside.finditer(text)] if inside is not None else []
            for at in seen:
                groups.setdefault(text[:at], []).append(token)
            if seen or (behind is not None and behind.search(text)):
                every.append(token)
        self.all = _ids(every)
        self.nested = _ids(token for token in every if re.search(rb"[]}]", vocabulary.tokens[token]))
        self.by_head = {head: _ids(tokens) for head, tokens in groups.items()}


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, dtype=np.int64)


def _length(first: int) -> int:
    """The bytes of a character by its first one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
