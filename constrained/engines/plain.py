"""Cuts a mask where nobody looks at values, only at brackets and keys: objects in any order, and what lies around loose places.

Used by `judged.py`. The same tokens go as if each were read, which is what happens to the few that are odd.
"""

import bisect

import numpy as np

from branchpoint.constrained.engines.effects import LEVELS, Effects, Levels
from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import forbid
from branchpoint.constrained.partial import Frame, written_key
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["PlainCutter"]


class PlainCutter:
    """For one grammar; shared by its cursors."""

    def __init__(self, vocabulary: Vocabulary, shapes: TokenShapes, effects: Effects, judge: Judge, reader: Reader) -> None:
        self._vocabulary = vocabulary
        self._shapes = shapes
        self._effects = effects
        self._judge = judge
        self._reader = reader
        self._any_value = not judge.is_about_values
        self._openings = tuple(head for head in shapes.heads if head.strip() == b'"')  # of keys, with the whitespace before them

    def applies(self, state: State) -> bool:
        """Whether only brackets and keys count from `state`, up to the next value."""
        frame = state.frame
        if state.at is At.PREFIX or (frame is not None and frame.loose) or self._judge.is_loose(state.duties):
            return False
        return state.at not in (At.IN_STRING, At.IN_KEY) or not state.text.endswith(b"\\")

    def cut(self, row: MaskRow, state: State) -> None:
        """Clear the bits of all tokens that the judge refuses."""
        frame = state.frame
        quoted = state.at is At.IN_STRING or state.at is At.IN_KEY
        if frame is not None and state.at is not At.IN_KEY:
            kept = self._effects.kept(self._levels(frame), quoted=quoted)
            if kept is not None:
                np.bitwise_and(row, kept, out=row)
        if frame is not None and frame.names and frame.duties and (state.at is At.IN_KEY or state.at is At.KEY):
            self._keys(row, state, frame)
        self._odd(row, state, quoted=quoted)

    def _odd(self, row: MaskRow, state: State, *, quoted: bool) -> None:
        odd = self._effects.allowed_odd(row, quoted=quoted, any_value=self._any_value and state.at is not At.KEY)
        if odd:
            tokens = self._vocabulary.tokens
            forbid(row, [token for token in odd if self._reader.read(state, tokens[token]) is None])

    def _levels(self, frame: Frame) -> Levels:
        found: Levels | None = frame.memo.get(("levels", ""))
        if found is None:
            levels: list[tuple[bool, bool]] = []
            at: Frame | None = frame
            while at is not None and len(levels) < LEVELS:
                judged = at.is_object and bool(at.duties)
                levels.append((judged and self._judge.needs(at), judged and self._judge.left(at) == ()))
                at = at.above
            found = frame.memo["levels", ""] = tuple(levels)
        return found

    def _keys(self, row: MaskRow, state: State, frame: Frame) -> None:
        """No key twice, and no beginning of one that only those begin with that stand already."""
        inside = state.at is At.IN_KEY
        written = state.text[1:] if inside else b""
        left = self._judge.left(frame)
        for name in frame.names:
            key = written_key(name)
            if key.startswith(written):
                forbid(row, self._leading(key[len(written) :], written, left, inside=inside))

    def _leading(self, rest: bytes, written: bytes, left: tuple[bytes, ...] | None, *, inside: bool) -> list[int]:
        """The tokens that lead to a key that stands already, and to no other."""
        by_bytes, found = self._vocabulary.by_bytes, list(self._shapes.by_head(rest + b'"')) if inside else []
        if left is None:
            return found
        for end in range(_shared(written + rest, left) - len(written) + 1, min(len(rest), self._vocabulary.longest) + 1):
            for before in (b"",) if inside else self._openings:
                found += by_bytes.get(before + rest[:end], ())
        return found


def _shared(key: bytes, others: tuple[bytes, ...]) -> int:
    """The length of the longest beginning that `key` has in common with one of the (sorted) others; -1 where there is none."""
    at = bisect.bisect(others, key)
    return max((_common(key, other) for other in others[max(0, at - 1) : at + 1]), default=-1)


def _common(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
