"""Short whole JSON values under a schema, read from the schema alone: guesses, for `guide.py`.

Found for all subschemas at once, the shorter from the shorter, so that those that refer to themselves come to an end.
"""

import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

from branchpoint.constrained.formats import USUAL_PATTERNS
from branchpoint.constrained.json_at import Frame
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.shortest import Patterns
from branchpoint.constrained.variants import Asked, Variant, Variants, kinds_of, known_values

__all__ = ["LONGEST", "ShortValues", "merged", "pattern_of", "rest_of_number", "written"]

LONGEST = 10_000
"""Characters of a text up to which it is written out."""

_MOST_TEXTS = 6
_MOST_DIGITS = 40
_MOST_READ = 4000  # digits of a number: Python reads and writes few more
_LARGEST = 10**_MOST_READ
_MOST_ITEMS = 1000
_MOST_ASKED = 60_000  # texts of members and items that are looked up for one schema, in all
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_HIGHEST = ("maximum", "exclusiveMaximum")
_Key = tuple[int, ...]
_Find = Callable[[Asked], tuple[bytes, ...]]


class ShortValues:
    """For subschemas of one schema; only remembers what it found."""

    def __init__(self, variants: Variants, patterns: Patterns) -> None:
        self._variants = variants
        self._patterns = patterns
        self._texts: dict[_Key, tuple[bytes, ...]] = {}
        self._left = _MOST_ASKED

    def under(self, asked: Asked) -> tuple[bytes, ...]:
        """Short whole values under subschemas that apply together, the shortest first."""
        key = tuple(map(id, asked))
        if key not in self._texts:
            self._settle(key, asked)
        return self._texts[key]

    def _settle(self, key: _Key, asked: Asked) -> None:
        """Find the texts of these subschemas and all that they need: again and again, as long as shorter ones come of it."""
        found = dict[_Key, tuple[bytes, ...]]()
        users = dict[_Key, dict[_Key, Asked]]()
        waiting = OrderedDict({key: asked})
        while waiting and self._left > 0:
            at, these = waiting.popitem(last=False)
            needed = dict[_Key, Asked]()

            def find(inner: Asked, needed: dict[_Key, Asked] = needed) -> tuple[bytes, ...]:
                self._left -= 1
                name = tuple(map(id, inner))
                needed[name] = inner
                return self._texts.get(name) or found.get(name, ())

            texts = {text for variant in self._variants.of(these) for text in self._written(variant, find)}
            shortest = tuple(sorted(texts, key=lambda text: (len(text), text)))[:_MOST_TEXTS]
            for name, inner in needed.items():
                users.setdefault(name, {})[at] = these
                if name not in found and name not in self._texts:
                    found[name] = ()
                    waiting[name] = inner
            if shortest != found.get(at, ()):
                found[at] = shortest
                waiting |= users.get(at, {})
            found.setdefault(at, ())
        self._texts |= found or {key: ()}

    def _written(self, variant: Variant, find: _Find) -> Iterator[bytes]:
        known = known_values(variant)
        if known is not None:
            yield from sorted(map(written, known), key=len)[:_MOST_TEXTS]
            return
        kinds = kinds_of(variant)
        for kind in ["integer"] if kinds is None else kinds:
            text = self._kind(kind, variant, find)
            if text is not None and len(text) <= LONGEST:
                yield text

    def _kind(self, kind: str, variant: Variant, find: _Find) -> bytes | None:
        match kind:
            case "null":
                return b"null"
            case "boolean":
                return b"true"
            case "integer" | "number":
                return _number(merged(variant))
            case "string":
                return self._string(variant)
            case "array":
                items = self.missing_items(variant, Frame(None, False, ()), find)
                return None if items is None else b"[" + b",".join(items) + b"]"
            case _:
                members = self.missing_members(variant, (), find)
                return None if members is None else b"{" + b",".join(members) + b"}"

    def _string(self, variant: Variant) -> bytes | None:
        text = ""
        for part in variant:
            pattern = pattern_of(part)
            if pattern is not None:
                rest = self._patterns.rest(pattern)
                if rest is None:
                    return None
                text = rest
        return written(text + "a" * (min(merged(variant).get("minLength", 0), LONGEST) - len(text)))

    def missing_items(self, variant: Variant, frame: Frame, find: _Find, *, lacking: bool = False) -> list[bytes] | None:
        """The items that an open array still needs; None where one is unknown. If `lacking`, it has nothing special yet."""
        wanted = [(part["contains"], part.get("minContains", 1)) for part in variant if "contains" in part]
        special = (
            [schema for schema, least in wanted for _ in range(min(least, _MOST_ITEMS))] if lacking or not frame.count else []
        )
        distinct = any(part.get("uniqueItems") for part in variant)
        items = [text for _, text in frame.scalars] if distinct else []
        present = len(items)
        least = min(merged(variant).get("minItems", 0), _MOST_ITEMS) - frame.count
        for at, texts in enumerate(self._texts_of_items(variant, frame.count, special, least, find)):
            text = next((text for text in texts if not (distinct and text in items)), None)
            if text is None or (at + 1) * len(text) > LONGEST:
                return None
            items.append(text)
        return items[present:]

    def _texts_of_items(
        self, variant: Variant, start: int, special: Sequence[Schema], least: int, find: _Find
    ) -> list[tuple[bytes, ...]]:
        """Of each item from `start` on; all are asked for, whether or not the first are known."""
        asks = [self._variants.item(variant, start + at) for at in range(max(least, len(special)))]
        return [find((*asked, special[at]) if at < len(special) else asked) for at, asked in enumerate(asks)]

    def missing_members(self, variant: Variant, present: Collection[str], find: _Find) -> list[bytes] | None:
        """The members that an object still needs, in order, each with its key; None where one of them is unknown."""
        names = self._missing_names(variant, present, find)
        texts = [find(self._variants.member(variant, name)) for name in names]
        if not all(texts):
            return None
        return [b'"' + written_key(name) + b'":' + each[0] for name, each in zip(names, texts, strict=True)]

    def _missing_names(self, variant: Variant, present: Collection[str], find: _Find) -> list[str]:
        needed = dict.fromkeys(name for part in variant for name in part.get("required", ()))
        for part in variant:
            for name, others in part.get("dependentRequired", {}).items():
                needed |= dict.fromkeys(others) if name in present or name in needed else {}
        missing = [name for name in needed if name not in present]
        declared = list(dict.fromkeys(name for part in variant for name in part.get("properties", {})))
        last = max((at for at, name in enumerate(declared) if name in present), default=-1)
        spare = (name for name in declared[last + 1 :] if name not in needed)
        least = min(merged(variant).get("minProperties", 0), _MOST_ITEMS) - len(present)
        missing += itertools.islice(
            (name for name in spare if find(self._variants.member(variant, name))), max(0, least - len(missing))
        )
        missing += [f"a{number}" for number in range(least - len(missing))]
        places = {name: at for at, name in enumerate(declared)}
        return sorted(missing, key=lambda name: places.get(name, len(places)))


def pattern_of(part: SchemaMap) -> str | None:
    """The pattern of a string, its own or its format's."""
    found: str | None = part.get("pattern", USUAL_PATTERNS.get(part.get("format", "")))
    return found


def merged(variant: Variant) -> SchemaMap:
    """The bounds that parts give together."""
    found: SchemaMap = {}
    for part in variant:
        for word in _LEAST:
            if word in part:
                found[word] = max(part[word], found.get(word, part[word]))
        for word in _HIGHEST:
            if word in part:
                found[word] = min(part[word], found.get(word, part[word]))
        if part.get("multipleOf", 0) >= 1:
            found["multipleOf"] = min(math.lcm(int(part["multipleOf"]), found.get("multipleOf", 1)), _LARGEST)
    return found


def rest_of_number(schema: SchemaMap, text: bytes) -> bytes | None:
    """The digits that an integer which is begun still needs to come within its bounds, None where none will do."""
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1)
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1)
    digits = text.removeprefix(b"-")
    if digits != text:
        low, high = -high, -low
    step = schema.get("multipleOf", 1)
    step = int(step) if step == int(step) else 1
    least = _multiple(max(low, 0), step) if low < math.inf else 0
    if not digits:
        return _digits(max(least, step)) if max(least, step) <= high else None
    if not digits.isdigit() or len(digits) > _MOST_READ:
        return b"" if digits.isdigit() else None
    for more in range(1 if digits.startswith(b"0") else _MOST_DIGITS):
        first = int(digits) * 10**more
        found = max(_multiple(first, step), least)
        if found <= min(first + 10**more - 1, high):
            whole = _digits(found)
            return None if whole is None else whole[len(digits) :]
    return None


def _multiple(number: float, step: int) -> int:
    """The least multiple of `step` from a number on."""
    return -(-math.ceil(number) // step) * step


def _digits(number: int) -> bytes | None:
    return str(number).encode() if abs(number) < _LARGEST else None


def _number(schema: SchemaMap) -> bytes | None:
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    if low < 0 < high or (low == 0 and schema.get("exclusiveMinimum") != 0) or low == -math.inf == -high:
        return b"0"
    edge = low if low > 0 or high == math.inf else high
    if edge in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")):
        edge = math.floor(edge) + 1 if edge == low else math.ceil(edge) - 1
    step = schema.get("multipleOf", 0)
    if step:
        edge = _multiple(edge, step) if edge > 0 else -_multiple(-edge, step)
    return written(edge) if abs(edge) < _LARGEST else None


def written(value: object) -> bytes:
    """A value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
