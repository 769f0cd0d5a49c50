"""Whether the digits written so far can still become a number that a schema takes: told exactly for integers, however far ahead.

Asked by `judge.py`. Between the numbers that a schema names, what it says of an integer depends on its remainder by a common
multiple of all `multipleOf`; so there is one table of remainders for each stretch between them.
"""

import math
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.verdict import Verdict, alike, all_of, any_of, chosen, contrary, one_of

__all__ = ["NumberSets"]

_MOST_SCHEMAS = 200
_MOST_STRETCHES = 2_000
_MOST_CELLS = 1 << 16
_MOST_SAMPLED = 32
_DIGITS_PER_BIT = 0.301
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_BOUNDS = {"minimum": operator.ge, "exclusiveMinimum": operator.gt, "maximum": operator.le, "exclusiveMaximum": operator.lt}
_Table = npt.NDArray[np.bool_]


class NumberSets:
    """For the subschemas of one schema, whose definitions these are; only remembers what it found."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._sets: dict[int, _NumberSet | None] = {}

    def verdict(self, schema: SchemaMap, text: bytes) -> Verdict:
        """What a schema says of a number that begins with `text`, for as long as that is digits."""
        digits = text.removeprefix(b"-")
        if digits and not digits.isdigit():
            return None
        if id(schema) not in self._sets:
            self._sets[id(schema)] = _number_set(_parts(schema, self._definitions), schema, self._definitions)
        found = self._sets[id(schema)]
        return found.verdict(text, digits) if found is not None else None


def _parts(schema: Schema, definitions: Definitions) -> list[SchemaMap] | None:
    """All schemas that are asked about one value, None where they are too many or come back to themselves."""
    found: list[SchemaMap] = []
    waiting: list[tuple[Schema, int]] = [(schema, 0)]
    while waiting:
        at, depth = waiting.pop()
        if isinstance(at, bool):
            continue
        found.append(at)
        if len(found) > _MOST_SCHEMAS or depth > _MOST_SCHEMAS:
            return None
        waiting += [(each, depth + 1) for each in _in_place(at, definitions)]
    return found


def _in_place(schema: SchemaMap, definitions: Definitions) -> Iterator[Schema]:
    for word in _LISTS:
        yield from schema.get(word, ())
    yield from (schema[word] for word in _SINGLE if word in schema)
    if "$ref" in schema:
        yield definitions[schema["$ref"]]


def _number_set(parts: list[SchemaMap] | None, schema: Schema, definitions: Definitions) -> "_NumberSet | None":
    """The set of one schema, None where it would be too large, or where nothing in it is about numbers."""
    if parts is None:
        return None
    cuts = sorted({cut for part in parts for cut in _cuts(part)})
    period = math.lcm(*(_step(part["multipleOf"]) for part in parts if "multipleOf" in part))
    if len(cuts) >= _MOST_STRETCHES or period * (len(cuts) + 1) > _MOST_CELLS:
        return None
    places = sorted({place for part in parts for place in _places(part)})
    return _NumberSet(_Teller(cuts, period, definitions), schema, places)


def _cuts(schema: SchemaMap) -> Iterator[int]:
    """The integers from which on a keyword says something else."""
    for value in _listed(schema):
        if value == int(value):
            yield from (int(value), int(value) + 1)
    for word in _BOUNDS.keys() & schema.keys():
        if _is_finite(schema[word]):
            at_least = word in ("minimum", "exclusiveMaximum")
            yield math.ceil(schema[word]) if at_least else math.floor(schema[word]) + 1


def _places(schema: SchemaMap) -> Iterator[Fraction]:
    """The numbers at which a keyword begins to say something else of those that are no integers."""
    yield from map(Fraction, _listed(schema))
    yield from (Fraction(schema[word]) for word in _BOUNDS.keys() & schema.keys() if _is_finite(schema[word]))


def _listed(schema: SchemaMap) -> Iterator[float]:
    """The numbers among the values that a schema names."""
    for value in (*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())):
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
            yield value


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _step(multiple: float) -> int:
    """The integers that are multiples of a number are those of this one."""
    return Fraction(str(multiple)).numerator


class _Teller:
    """What schemas say of all integers: rows are stretches between cuts, columns remainders; sizes of 1 broadcast."""

    def __init__(self, cuts: list[int], period: int, definitions: Definitions) -> None:
        self.cuts = cuts
        self.period = period
        self._definitions = definitions
        self._samples = [cuts[0] - 1, *cuts] if cuts else [0]
        self._remainders = np.arange(period)[None, :]

    def integers(self, schema: Schema) -> _Table:
        """Which integers a schema takes."""
        if isinstance(schema, bool):
            return np.array([[schema]])
        result = np.array([[True]])
        for each in self._said(schema):
            result = result & each
        return result

    def _said(self, schema: SchemaMap) -> Iterator[_Table]:
        if "type" in schema:
            yield np.array([[not {"integer", "number"}.isdisjoint(_names(schema))]])
        for word in {"const", "enum"} & schema.keys():
            values = set(_listed({word: schema[word]}))
            yield self._stretches(sample in values for sample in self._samples)
        for word in _BOUNDS.keys() & schema.keys():
            yield self._stretches(_BOUNDS[word](sample, schema[word]) for sample in self._samples)
        if "multipleOf" in schema:
            yield self._remainders % _step(schema["multipleOf"]) == 0
        yield from self._combined(schema)

    def _combined(self, schema: SchemaMap) -> Iterator[_Table]:
        if "$ref" in schema:
            yield self.integers(self._definitions[schema["$ref"]])
        yield from map(self.integers, schema.get("allOf", ()))
        for word in {"anyOf", "oneOf"} & schema.keys():
            count = sum((self.integers(each).astype(np.int32) for each in schema[word]), np.zeros((1, 1), np.int32))
            yield count > 0 if word == "anyOf" else count == 1
        if "not" in schema:
            yield ~self.integers(schema["not"])
        if "if" in schema:
            holds = self.integers(schema["if"])
            yield np.where(holds, self.integers(schema.get("then", True)), self.integers(schema.get("else", True)))

    def _stretches(self, said: Iterable[bool]) -> _Table:
        return np.fromiter(said, np.bool_, len(self._samples))[:, None]

    def fractions(self, schema: Schema, at: Fraction | None) -> Verdict:
        """Whether a schema takes numbers that are no integers, near `at` (None: anywhere): all, none, or (None) that depends."""
        if isinstance(schema, bool):
            return schema
        return all_of(self._said_of_fractions(schema, at))

    def _said_of_fractions(self, schema: SchemaMap, at: Fraction | None) -> Iterator[Verdict]:
        if "type" in schema:
            yield "number" in _names(schema)
        for word in {"const", "enum"} & schema.keys():
            values = [value for value in _listed({word: schema[word]}) if value != int(value)]
            yield at in values if at is not None else None if values else False
        for word in _BOUNDS.keys() & schema.keys():
            yield _BOUNDS[word](at, schema[word]) if at is not None else None
        if "multipleOf" in schema:
            yield False if Fraction(str(schema["multipleOf"])).denominator == 1 else None
        if "$ref" in schema:
            yield self.fractions(self._definitions[schema["$ref"]], at)
        yield from (self.fractions(each, at) for each in schema.get("allOf", ()))
        if "anyOf" in schema:
            yield any_of(self.fractions(each, at) for each in schema["anyOf"])
        if "oneOf" in schema:
            yield one_of([self.fractions(each, at) for each in schema["oneOf"]])
        if "not" in schema:
            yield contrary(self.fractions(schema["not"], at))
        if "if" in schema:
            yield chosen(*(self.fractions(schema.get(word, True), at) for word in ("if", "then", "else")))


def _names(schema: SchemaMap) -> set[str]:
    return {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])


class _NumberSet:
    """The integers that one schema takes, by stretch and remainder, and whether it takes others, by their sign."""

    def __init__(self, teller: _Teller, schema: Schema, places: list[Fraction]) -> None:
        self._cuts = teller.cuts
        self._period = teller.period
        near = {negative: _samples(places, negative=negative) for negative in (False, True)}
        self._fractions = {
            negative: alike([teller.fractions(schema, at) for at in samples]) for negative, samples in near.items()
        }
        taken = np.broadcast_to(teller.integers(schema), (len(teller.cuts) + 1, teller.period))
        self._all, self._none = bool(taken.all()), not taken.any()
        self._taken, self._refused = _sums(taken), _sums(~taken)
        self._marks = sorted({mark for cut in teller.cuts for mark in (abs(cut), abs(cut) + 1)})
        self._beyond = max(map(abs, teller.cuts), default=0) + 1

    def verdict(self, text: bytes, digits: bytes) -> Verdict:
        """What is said of the numbers that begin with `text`; `digits` are those of it."""
        fractions = self._fractions[digits != text] if text else alike(list(self._fractions.values()))
        if fractions is False and (self._none or not self._any(self._taken, text, digits)):
            return False
        if fractions is True and (self._all or not self._any(self._refused, text, digits)):
            return True
        return None

    def _any(self, sums: npt.NDArray[np.int32], text: bytes, digits: bytes) -> bool:
        """Whether some integer that begins with `text` is among those that are counted."""
        if not text:
            return bool(sums[:, -1].any())
        negative = digits != text
        for low, high in self._ranges(digits):
            if negative:
                low, high = -high, -low
            while low <= high:
                stretch = bisect_right(self._cuts, low)
                end = min(high, self._cuts[stretch] - 1) if stretch < len(self._cuts) else high
                if self._counted(sums[stretch], low, end):
                    return True
                low = end + 1
        return False

    def _ranges(self, digits: bytes) -> Iterator[tuple[int, int]]:
        """Where the integers lie that begin with some digits, by length: up to where all that is further is alike."""
        if not digits:
            yield 0, self._beyond + self._period
            return
        low = high = int(digits)
        length = len(digits)
        yield low, high
        while low and (low <= self._beyond or high - low < self._period):
            more = self._further(low, high, length)
            low, high, length = low * 10**more, (high + 1) * 10**more - 1, length + more
            yield low, high

    def _further(self, low: int, high: int, length: int) -> int:
        """How many digits more something else may be said of than of those from `low` to `high`, which have `length`."""
        at = bisect_right(self._marks, high)
        if at == len(self._marks) or high - low + 1 < self._period or (at and self._marks[at - 1] > low):
            return 1
        return max(1, int((self._marks[at].bit_length() - 1) * _DIGITS_PER_BIT) - length)

    def _counted(self, sums: npt.NDArray[np.int32], low: int, high: int) -> bool:
        """Whether some integer of a stretch, from `low` to `high`, is counted."""
        if high - low + 1 >= self._period:
            return bool(sums[-1])
        start, length = low % self._period, high - low + 1
        wrapped = max(0, start + length - self._period)
        return bool(sums[start + length - wrapped] - sums[start] + sums[wrapped])


def _samples(places: list[Fraction], *, negative: bool) -> list[Fraction | None]:
    """Numbers of one sign, one of each stretch between some places and those that are no integers; None where they are many."""
    if not places or len(places) > _MOST_SAMPLED:
        return [None]
    edges = [min(places[0], Fraction(0)) - 2, *places, max(places[-1], Fraction(0)) + 2]
    found = [(low + high) / 2 for low, high in pairwise(edges) if (low < 0 if negative else high > 0)]
    return [*found, *(place for place in places if place.denominator > 1 and (place < 0) == negative)]


def _sums(table: _Table) -> npt.NDArray[np.int32]:
    """Running sums along each row, 0 first: int32 [stretches, period + 1]."""
    return np.pad(np.cumsum(table, axis=1, dtype=np.int32), ((0, 0), (1, 0)))
