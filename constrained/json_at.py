"""Where a text stands in a JSON value, with the subschemas of what is open; reads on byte by byte, whatever comes.

What `guide.py` goes by. Everything is immutable and shares its past.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from branchpoint.constrained.variants import Asked, Variant, Variants, kinds_of, known_values

__all__ = ["Frame", "JsonAt", "JsonReader"]

_SPACE = frozenset(b" \t\r\n")
_LONGEST_KEPT = 64
_MOST_KEPT = 32
_MOST_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Frame:
    """An open container: what it may be asked for, the keys it has (or the key whose value comes), how many members.

    `scalars` are the first short members that are no containers, by their keys, as they are written: they tell branches apart.
    """

    above: "Frame | None"
    is_object: bool
    asks: tuple[Asked, ...]
    names: frozenset[str] = frozenset()
    key: str = ""
    count: int = 0
    scalars: tuple[tuple[str, bytes], ...] = ()

    def with_another(self, scalar: bytes = b"") -> "Frame":
        """With one more member, which may be a scalar."""
        kept = ((self.key, scalar),) if 0 < len(scalar) <= _LONGEST_KEPT and len(self.scalars) < _MOST_KEPT else ()
        return replace(self, count=self.count + 1, scalars=self.scalars + kept)


@dataclass(frozen=True, slots=True)
class JsonAt:
    """Where a text stands: `at` says what comes next, `text` is the string, key or number that is being written.

    `at`: v(alue), k(ey), c(olon), s(tring), q(uoted key), n(umber or literal), a(fter a value), e(nd). `asks` are what the value
    that comes or is written may be asked for.
    """

    at: str
    frame: Frame | None
    asks: tuple[Asked, ...] = ()
    text: bytes = b""
    opened: bool = False


class JsonReader:
    """Of values under one schema; only remembers what it found."""

    def __init__(self, variants: Variants) -> None:
        self._variants = variants
        self._fitting: dict[tuple[object, ...], list[Variant]] = {}

    def after(self, place: JsonAt, text: bytes) -> JsonAt:
        """The place after some more text."""
        at = 0
        while at < len(text):
            if place.at in "sq":
                end = _closing_quote(place.text, text, at)
                if end is None:
                    return replace(place, text=place.text + text[at:])
                place = self._string(place, place.text + text[at:end])
                at = end + 1
            else:
                place = self._byte(place, text[at : at + 1])
                at += 1
        return place

    def _byte(self, place: JsonAt, byte: bytes) -> JsonAt:
        if place.at == "n":
            if byte[0] in _SPACE or byte in b",]}":
                return self._byte(_done(place.frame, place.text), byte)
            return replace(place, text=place.text + byte)
        if byte[0] in _SPACE:
            return place
        frame = place.frame
        if byte in b"}]":
            return _done(frame.above if frame else None)
        if byte == b'"':
            return JsonAt("q", frame) if place.at == "k" else JsonAt("s", frame, place.asks)
        if byte in b"{[":
            frame = Frame(frame, byte == b"{", place.asks)
            return JsonAt("k" if frame.is_object else "v", frame, self._following(frame), opened=True)
        if byte == b":":
            return JsonAt("v", frame, self.members(frame, frame.key) if frame else ())
        if byte == b",":
            return JsonAt("k" if frame and frame.is_object else "v", frame, self._following(frame))
        return JsonAt("n", frame, place.asks, byte)

    def _following(self, frame: Frame | None) -> tuple[Asked, ...]:
        return () if frame is None or frame.is_object else self.items(frame)

    def _string(self, place: JsonAt, text: bytes) -> JsonAt:
        if place.at == "s" or place.frame is None:
            return _done(place.frame, b'"' + text + b'"')
        try:
            key = str(json.loads(b'"' + text + b'"'))
        except ValueError:
            key = ""
        return JsonAt("c", replace(place.frame, names=place.frame.names | {key}, key=key))

    def variants(self, frame: Frame) -> list[Variant]:
        """What an open container may be, as far as its members tell; all that it might, where they fit none."""
        key = frame.is_object, frame.scalars, *(tuple(map(id, asked)) for asked in frame.asks)
        fitting = self._fitting.get(key)
        if fitting is None:
            every = self._variants.all(frame.asks)
            fitting = [variant for variant in every if self._fits(variant, frame)] if len(every) > 1 else every
            if len(self._fitting) >= _MOST_REMEMBERED:
                self._fitting.clear()
            fitting = self._fitting[key] = fitting or every
        return fitting

    def _fits(self, variant: Variant, frame: Frame) -> bool:
        kinds = kinds_of(variant)
        if kinds is not None and ("object" if frame.is_object else "array") not in kinds:
            return False
        scalars = frame.scalars if frame.is_object else ()
        return all(self._allows(self._variants.member(variant, name), text) for name, text in scalars)

    def _allows(self, asked: Asked, text: bytes) -> bool:
        """Whether a member may be a scalar, as far as named values tell."""
        try:
            value = json.loads(text)
        except ValueError:
            return True
        named = [known_values(variant) for variant in self._variants.of(asked)]
        return any(values is None or value in values for values in named)

    def members(self, frame: Frame, name: str) -> tuple[Asked, ...]:
        """What a member of an open object may be asked for."""
        return _distinct(self._variants.member(variant, name) for variant in self.variants(frame))

    def items(self, frame: Frame) -> tuple[Asked, ...]:
        """What the next item of an open array may be asked for."""
        return _distinct(self._variants.item(variant, frame.count) for variant in self.variants(frame))


def _distinct(asks: Iterable[Asked]) -> tuple[Asked, ...]:
    return tuple({tuple(map(id, asked)): asked for asked in asks}.values())


def _done(frame: Frame | None, scalar: bytes = b"") -> JsonAt:
    """A value is complete."""
    return JsonAt("e", None) if frame is None else JsonAt("a", frame.with_another(scalar))


def _closing_quote(before: bytes, text: bytes, start: int) -> int | None:
    escaped = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1
    for at in range(start, len(text)):
        if escaped:
            escaped = False
        elif text[at] == 0x5C:
            escaped = True
        elif text[at] == 0x22:
            return at
    return None
