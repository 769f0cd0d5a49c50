"""Of a row, the tokens that the judge refuses where somebody looks at values; those that differ in nothing it sees are read once.

Used by `judged.py`; `plain.py` does the same where only brackets and keys count.
"""

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.mask import iterate_allowed
from branchpoint.constrained.partial import unfinished, written_key
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["RowReader"]

_MANY = 16
_QUOTE = b'"'
_FOREIGN = "\ue000".encode()
Ids = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int32]


class RowReader:
    """For one grammar; shared by its cursors."""

    def __init__(self, vocabulary: Vocabulary, shapes: TokenShapes, reader: Reader) -> None:
        self._vocabulary = vocabulary
        self._shapes = shapes
        self._reader = reader

    def refused(self, row: MaskRow, state: State) -> list[int]:
        """The allowed tokens after which the judge refuses; tokens that differ in nothing it sees are judged once."""
        shapes = self._shapes
        if state.at is At.IN_STRING and self._reader.is_blind(state):
            return self._blind(row, state)
        if state.at in (At.IN_STRING, At.IN_KEY):
            if unfinished(state.text).startswith(b"\\"):
                return self._in_escape(state, iterate_allowed(row))
            if self._reader.read(state, shapes.foreign) is not None:
                # a text that no schema mentions may go on, so that only the end of the string is left to judge
                candidates = iterate_allowed(row[: len(shapes.quoted)] & shapes.quoted)
            else:
                candidates = iterate_allowed(row)
                told = self._reader.told(state) if state.at is At.IN_STRING else None
                if told is not None and self._reader.read(state, _FOREIGN) is None:
                    known = np.isin(candidates, self._telling(state.text[1:], told)) | (shapes.ending_of[candidates] >= 0)
                    known |= shapes.escaped[candidates]
                    return [*candidates[~known].tolist(), *self._one_by_one(state, candidates[known])]
            if self._reader.is_blind(state):
                return self._by_part(state, candidates, shapes.ending_of, shapes.endings, b"")
            return self._one_by_one(state, candidates)
        return self._by_part(state, iterate_allowed(row), shapes.head_of, shapes.heads, shapes.foreign)

    def _blind(self, row: MaskRow, state: State) -> list[int]:
        """The refused tokens in a string that nobody looks at: by what follows its end, asked once for the whole string."""
        shapes, frame = self._shapes, state.frame
        candidates = iterate_allowed(row[: len(shapes.quoted)] & shapes.quoted)
        memo = frame.memo if frame is not None else {}
        refused: list[int] = []
        for token, ending in zip(candidates.tolist(), shapes.ending_of[candidates].tolist(), strict=True):
            text = self._vocabulary.tokens[token] if ending < 0 else shapes.endings[ending]
            key = ("string", text.hex())
            if key not in memo:
                memo[key] = self._reader.read(state, text) is not None
            if not memo[key]:
                refused.append(token)
        return refused

    def _in_escape(self, state: State, candidates: Ids) -> list[int]:
        """The refused ones of tokens that go on with an escape: by their first bytes, and behind those like any text."""
        refused: list[int] = []
        firsts: dict[bytes, list[int]] = {}
        for token in candidates.tolist():
            firsts.setdefault(self._vocabulary.tokens[token][:1], []).append(token)
        for first, members in firsts.items():
            if first and self._reader.read(state, first) is None:
                refused += members
                continue
            if first and self._reader.read(state, first + self._shapes.foreign) is not None:
                members = [token for token in members if _QUOTE in self._vocabulary.tokens[token]]
            refused += self._one_by_one(state, np.array(members, dtype=np.int64))
        return refused

    def _telling(self, written: bytes, told: frozenset[str], before: bytes = b"") -> list[int]:
        """The tokens that, after the text `before`, go on towards one of the strings that are told apart."""
        by_bytes = self._vocabulary.by_bytes
        found: set[int] = set()
        for each in told:
            whole = written_key(each)
            rest = whole[len(written) :] if whole.startswith(written) else b""
            for end in range(0 if before else 1, min(len(rest), self._vocabulary.longest) + 1):
                found.update(by_bytes.get(before + rest[:end], ()))
        return list(found)

    def _by_part(self, state: State, candidates: Ids, part_of: Parts, parts: list[bytes], more: bytes) -> list[int]:
        """The refused ones of tokens that share a part: as one, where what stands beside the part makes no difference."""
        part = part_of[candidates]
        refused: list[int] = []
        alone = [candidates[part < 0]]
        for each in np.unique(part[part >= 0]).tolist():
            members = candidates[part == each]
            if self._reader.read(state, parts[each]) is None:
                refused += members.tolist()
            elif more and self._reader.read(state, parts[each] + more) is None:
                told = self._reader.told(state) if state.at is At.VALUE and len(members) > _MANY else None
                telling = np.isin(members, self._telling(b"", told, parts[each])) if told is not None else None
                if telling is not None and self._reader.read(state, parts[each] + _FOREIGN) is None:
                    refused += members[~telling].tolist()
                    members = members[telling]
                alone.append(members)
        return refused + self._one_by_one(state, np.concatenate(alone))

    def _one_by_one(self, state: State, candidates: Ids) -> list[int]:
        tokens, label = self._vocabulary.tokens, self._reader.labels(state)
        refused: list[int] = []
        judged: dict[object, bool] = {}
        for token in candidates.tolist():
            text = tokens[token]
            if not text:
                continue
            name = label(text)
            if name not in judged:  # what is refused after the first byte is refused after more
                first = text[:1]
                if first not in judged:
                    judged[first] = self._reader.read(state, first) is not None
                judged[name] = judged[first] and self._reader.read(state, text) is not None
            if not judged[name]:
                refused.append(token)
        return refused
