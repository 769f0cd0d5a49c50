"""The whole rest of a JSON value under a schema: what is begun is finished, then what is around it, from the innermost out.

A guess, for `guide.py`: each container is finished by that of its variants that takes least.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from branchpoint.constrained.characters import missing_bytes
from branchpoint.constrained.guide_values import LONGEST, ShortValues, merged, pattern_of, rest_of_number, written
from branchpoint.constrained.json_at import Frame, JsonAt, JsonReader
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.shortest import Patterns
from branchpoint.constrained.variants import Asked, Variant, Variants, kinds_of, known_values

__all__ = ["Rests"]

_ESCAPES = (b"", b"n", b"0", b"00", b"000", b"0000")
"""What may be missing of an escape at the end of a string."""

_LITERALS = (b"true", b"false", b"null")
_MOST_WRITTEN = 1 << 16
_MOST_KEYS = 4
_FRESH = ("", "a", "aa", "aaa")
"""What makes keys of what is begun of them."""


class Rests:
    """Of values under one schema."""

    def __init__(self, variants: Variants, reader: JsonReader) -> None:
        self._variants = variants
        self._reader = reader
        self._patterns = Patterns()
        self._values = ShortValues(variants, self._patterns)

    def values(self, asks: Iterable[Asked]) -> list[bytes]:
        """Short whole values, the shortest first."""
        return sorted({text for asked in asks for text in self._values.under(asked)}, key=lambda text: (len(text), text))

    def rest(self, place: JsonAt, *, lacking: bool = False, longer: bool = False) -> bytes | None:
        """A short text to the end of the value; None where none is known.

        If `lacking`, the open array has nothing yet of what it must contain; if `longer`, a number doesn't end as it stands.
        """
        frame, opened = place.frame, place.opened
        match place.at:
            case "v" if not opened:
                present = [text for _, text in frame.scalars] if frame and not frame.is_object else []
                values = self.values(place.asks)
                head = _least(value for value in values if value not in present) or _least(values)
            case "c":
                head = self._member(frame, frame.key) if frame else None
            case "q" if frame is not None:
                return self._another_member(frame, place.text)
            case "k" if frame is not None and not opened:
                rest = self._another_member(frame)
                return None if rest is None else b'"' + rest
            case "s":
                head = self._string(place)
            case "n":
                head = self._scalar(place, longer=longer)
            case _:
                return self._closed(b"", frame, opened=opened, lacking=lacking)
        if head is None or frame is None:
            return head
        begun = b'"' + place.text if place.at == "s" else place.text
        return self._closed(head, frame.with_another(_unwrapped(begun + head.removeprefix(b":"))), lacking=lacking)

    def _closed(self, head: bytes, frame: Frame | None, *, opened: bool = False, lacking: bool = False) -> bytes | None:
        """`head`, and all that closes what is open."""
        texts = [head]
        while frame is not None:
            found = self._close(frame, lacking=lacking)
            if found is None:
                return None
            texts += [b"," if found[:-1] and not opened else b"", found]
            frame, opened, lacking = frame.above.with_another() if frame.above else None, False, False
        whole = b"".join(texts)
        return whole if len(whole) <= _MOST_WRITTEN else None

    def _close(self, frame: Frame, *, lacking: bool) -> bytes | None:
        """What one open container still needs, and its bracket."""
        found = list[bytes]()
        for variant in self._reader.variants(frame):
            parts = (
                self._values.missing_members(variant, frame.names, self._values.under)
                if frame.is_object
                else self._values.missing_items(variant, frame, self._values.under, lacking=lacking)
            )
            if parts is not None:
                found.append(b",".join(parts) + (b"}" if frame.is_object else b"]"))
        return _least(found)

    def _another_member(self, frame: Frame, begun: bytes = b"") -> bytes | None:
        """Behind a comma, or in a key: what is missing of it, and all that must come then."""
        found = list[bytes | None]()
        for name, rest in self._keys(frame, begun):
            inner = replace(frame, names=frame.names | {name}, key=name)
            value = self._member(inner, name)
            if value is not None:
                found.append(self._closed(rest + b'"' + value, inner.with_another(_unwrapped(value[1:]))))
        return _least(text for text in found if text is not None)

    def _keys(self, frame: Frame, begun: bytes) -> Iterator[tuple[str, bytes]]:
        """Some keys that may come next in an object, with what is missing of them; also one that nothing declares."""
        variants = self._reader.variants(frame)
        declared = ((name, written_key(name)) for variant in variants for name in _declared(variant, frame.names))
        fitting = {name: key[len(begun) :] for name, key in declared if key.startswith(begun) and name not in frame.names}
        yield from itertools.islice(fitting.items(), _MOST_KEYS)
        text, missing = _decoded(begun)
        patterns = {pattern: None for variant in variants for part in variant for pattern in part.get("patternProperties", {})}
        for pattern in itertools.islice(patterns, _MOST_KEYS):
            rest = self._patterns.rest(pattern, text)
            if rest is not None and text + rest not in frame.names:
                yield text + rest, missing + written_key(rest)
        yield from ((text + fresh, missing + fresh.encode()) for fresh in _FRESH if text + fresh not in frame.names)

    def _member(self, frame: Frame, name: str) -> bytes | None:
        value = _least(self.values(self._reader.members(frame, name)))
        return None if value is None else b":" + value

    def _string(self, place: JsonAt) -> bytes | None:
        """What is missing of a string that is begun."""
        text, missing = _decoded(place.text)
        rests = (self._rest_of_string(variant, place.text, text) for variant in self._variants.all(place.asks))
        rest = _least(rest for rest in rests if rest is not None)
        return None if rest is None else missing + rest

    def _rest_of_string(self, variant: Variant, begun: bytes, text: str) -> bytes | None:
        kinds, named = kinds_of(variant), known_values(variant)
        if kinds is not None and "string" not in kinds:
            return None
        if named is not None:
            whole = b'"' + begun
            return _least(each[len(whole) :] for each in map(written, named) if each.startswith(whole))
        rest = ""
        for part in variant:
            pattern = pattern_of(part)
            found = self._patterns.rest(pattern, text) if pattern is not None else rest
            if found is None:
                return None
            rest = found
        least = min(merged(variant).get("minLength", 0), LONGEST)
        return written(rest + "a" * (least - len(text) - len(rest)))[1:]

    def _scalar(self, place: JsonAt, *, longer: bool) -> bytes | None:
        """What is missing of a number or literal that is begun."""
        text = place.text
        for literal in _LITERALS:
            if literal.startswith(text):
                return literal[len(text) :]
        if longer and text[-1:].isdigit():
            return b"1" if b"." in text else b".1"
        if text.removeprefix(b"-").isdigit() or text == b"-":
            rests = (rest_of_number(merged(variant), text) for variant in self._variants.all(place.asks))
            return _least(rest for rest in rests if rest is not None)
        return b"1" if text[-1:] in b".eE+-" else b""


def _declared(variant: Variant, present: Collection[str]) -> Iterator[str]:
    """Keys that may be written behind those that an object has: up to the first that it needs, which comes first here."""
    needed = {name: None for part in variant for name in part.get("required", ())}
    declared = list(dict.fromkeys(name for part in variant for name in part.get("properties", {})))
    last = max((at for at, name in enumerate(declared) if name in present), default=-1)
    first = next((at for at in range(last + 1, len(declared)) if declared[at] in needed), len(declared) - 1)
    yield from reversed(declared[last + 1 : first + 1])
    yield from (name for name in needed if name not in declared)


def _decoded(begun: bytes) -> tuple[str, bytes]:
    """The text of a string that is cut anywhere, and bytes that make its last character whole."""
    missing = missing_bytes(begun)
    for escape in _ESCAPES:
        try:
            return str(json.loads(b'"' + begun + missing + escape + b'"', strict=False)), missing + escape
        except ValueError:
            continue
    return "", b""


def _unwrapped(text: bytes) -> bytes:
    """A value that is no container; else nothing."""
    return b"" if text[:1] in b"[{" else text


def _least(texts: Iterable[bytes]) -> bytes | None:
    return min(texts, key=len, default=None)
