"""What a JSON value under a schema still needs, told from its text so far: guesses at the shortest way to its end.

Asked by `completion.py`, which tries them on the grammar itself: so they may be wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.guide_rest import Rests
from branchpoint.constrained.guide_values import rest_of_number, written
from branchpoint.constrained.json_at import Frame, JsonAt, JsonReader
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.variants import Variants, known_values

__all__ = ["Guide", "JsonPlace", "json_place"]

_LITERALS = (b"true", b"false", b"null")


class Guide:
    """For one normalised schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._variants = Variants(Definitions(root.get("$defs", {}) if isinstance(root, dict) else {}))
        self._reader = JsonReader(self._variants)
        self._rests = Rests(self._variants, self._reader)

    def start(self) -> JsonAt:
        """Before the first byte."""
        return JsonAt("v", None, ((self._root,),))

    def after(self, place: JsonAt, text: bytes) -> JsonAt:
        """The place after some more text, which the grammar takes."""
        return self._reader.after(place, text)

    def rest(self, place: JsonAt) -> bytes | None:
        """A short text to the end of the value; None where none is known."""
        return self._rests.rest(place)

    def guesses(self, place: JsonAt) -> Iterator[bytes]:
        """Texts that may come next: to the end, then to less."""
        of = self._rests.rest
        rests = of(place), of(place, lacking=True), of(place, longer=True)
        yield from dict.fromkeys(rest for rest in rests if rest is not None)
        match place.at:
            case "v":
                yield from [b"]"] if place.opened else []
                yield from self._rests.values(place.asks)
                yield from (b"0", b'"', b"{", b"[")
            case "k":
                yield from [b"}"] if place.opened else []
                yield from self._members(place.frame, b'"')
            case "q":
                yield from self._members(place.frame, place.text)
                yield b'":'
            case "c":
                yield b":"
            case "s":
                yield from self._strings(place)
            case "n":
                yield from (each[len(place.text) :] for each in _LITERALS if each.startswith(place.text) and each != place.text)
                parts = (part for variant in self._variants.all(place.asks) for part in variant)
                yield from (rest for part in parts if (rest := rest_of_number(part, place.text)))
                yield from self._ends(place.frame)
            case "a":
                yield from self._ends(place.frame)

    def _ends(self, frame: Frame | None) -> Iterator[bytes]:
        if frame is None:
            return
        yield b"}" if frame.is_object else b"]"
        more = self._members(frame, b'"') if frame.is_object else self._rests.values(self._reader.items(frame))
        yield from (b"," + each for each in more)
        yield b","

    def _strings(self, place: JsonAt) -> Iterator[bytes]:
        whole = b'"' + place.text
        for variant in self._variants.all(place.asks):
            texts = map(written, known_values(variant) or ())
            yield from (text[len(whole) :] for text in texts if text.startswith(whole))
        yield b'"'

    def _members(self, frame: Frame | None, begun: bytes) -> Iterator[bytes]:
        """Members that an object lacks, as they go on from what is begun of a key; with their values where these are known."""
        if frame is None:
            return
        for name in self._lacking(frame):
            key = b'"' + written_key(name) + b'":'
            whole = begun if begun == b'"' else b'"' + begun
            if not key.startswith(whole):
                continue
            rest = key if begun == b'"' else key[len(whole) :]
            yield from (rest + value for value in self._rests.values(self._reader.members(frame, name))[:1])
            yield rest

    def _lacking(self, frame: Frame) -> dict[str, None]:
        """Keys that an object doesn't have yet: those it must have, those it may have to, the others."""
        found: dict[str, None] = {}
        parts: list[SchemaMap] = [part for variant in self._variants.all(frame.asks) for part in variant]
        for part in parts:
            needed = set(part.get("required", ()))
            for name, others in part.get("dependentRequired", {}).items():
                needed |= set(others) if name in frame.names else set()
            found |= dict.fromkeys(name for name in part.get("properties", {}) if name in needed)
            found |= dict.fromkeys(name for name in part.get("required", ()))
            found |= dict.fromkeys(sorted(needed))
        for part in parts:
            found |= dict.fromkeys(part.get("properties", {}))
        return {name: None for name in found if name not in frame.names}


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """Where a text stands, as `guide` reads it."""

    guide: Guide
    at: JsonAt

    def after(self, text: bytes) -> "JsonPlace":
        """The place after some more text, which the grammar takes."""
        return JsonPlace(self.guide, self.guide.after(self.at, text))

    def guesses(self) -> Iterator[bytes]:
        """Texts that may come next, those that lead to the end soonest first."""
        return self.guide.guesses(self.at)


def json_place(root: Schema) -> JsonPlace:
    """The place before a value under a normalised schema."""
    guide = Guide(root)
    return JsonPlace(guide, guide.start())
