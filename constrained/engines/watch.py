"""What a judged cursor asks of whoever follows its text: one JSON value (here), or a text with values in it (`tagged.py`).

Asked by `judged.py`.
"""

from typing import Protocol, TypeVar

from branchpoint.constrained.engines.effects import Effects
from branchpoint.constrained.engines.plain import PlainCutter
from branchpoint.constrained.engines.rows import RowReader
from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import forbid
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.work import Work

__all__ = ["ValueWatch", "Watch"]

_ZEROS = (b"0", b"-0")
_Place = TypeVar("_Place")


class Watch(Protocol[_Place]):
    """Follows a text from place to place. Shared by cursors; places are never changed."""

    @property
    def work(self) -> Work:
        """What the judges spend on."""

    def start(self) -> _Place:
        """Before the first byte."""

    def read(self, place: _Place, text: bytes) -> _Place | None:
        """The place after `text`, None where what is judged can't become valid any more."""

    def may_end(self, place: _Place) -> bool:
        """Whether everything that is judged is complete and valid here."""

    def cut(self, row: MaskRow, place: _Place) -> None:
        """Clear the bits of all tokens that a judge refuses."""

    def may_strand(self, place: _Place) -> bool:
        """Whether a token that is allowed here may lead to where all that follow are refused."""

    def may_count(self, place: _Place) -> bool:
        """Whether a number may stand here that is judged as a whole."""

    def writes_number(self, place: _Place) -> bool:
        """Whether such a number is being written: the grammar may let no digit follow."""

    def may_be_last(self, place: _Place) -> bool:
        """Whether it may be at its last digit: it is a zero so far, or may have bounds."""


class ValueWatch:
    """One JSON value, `prefix` bytes before it (`Watch`)."""

    def __init__(self, vocabulary: Vocabulary, shapes: TokenShapes, effects: Effects, judge: Judge, prefix: int) -> None:
        self.reader = Reader(judge, prefix)
        self._judge = judge
        self._rows = RowReader(vocabulary, shapes, self.reader)
        self._plain = PlainCutter(vocabulary, shapes, effects, judge, self.reader)

    @property
    def work(self) -> Work:
        """What the judge spends on."""
        return self._judge.work

    def start(self) -> State:
        """Before the first byte."""
        return self.reader.start()

    def read(self, place: State, text: bytes) -> State | None:
        """The state after `text`, None where the value can't become valid any more."""
        return self.reader.read(place, text)

    def may_end(self, place: State) -> bool:
        """Whether the value is complete and valid."""
        return self.reader.may_end(place)

    def cut(self, row: MaskRow, place: State) -> None:
        """Clear the bits of all tokens that the judge refuses."""
        if self._plain.applies(place):
            self._plain.cut(row, place)
        elif refused := self._rows.refused(row, place):
            forbid(row, refused)

    def may_strand(self, place: State) -> bool:
        """Whether a token that is allowed here may lead to where all that follow are refused."""
        frame = place.frame
        if frame is None or not frame.loose:
            return False
        if place.at is At.AFTER or place.at is At.KEY or place.at is At.IN_KEY:
            return True
        return any(self._judge.is_sensitive(frame, kind) for kind in ("string", "number", "boolean"))

    def may_count(self, place: State) -> bool:
        """Whether a number may stand here that is judged as a whole."""
        return (place.at is At.VALUE or place.at is At.IN_SCALAR) and self._judge.is_loose(place.duties)

    def writes_number(self, place: State) -> bool:
        """Whether such a number is being written: the grammar may let no digit follow."""
        return place.at is At.IN_SCALAR and place.is_watched and place.text[0] not in b"tfn"

    def may_be_last(self, place: State) -> bool:
        """Whether it may be at its last digit: it is a zero so far, or may have bounds."""
        return (self._judge.bounds_numbers or place.text in _ZEROS) and self.writes_number(place)
