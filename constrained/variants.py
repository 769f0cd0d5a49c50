"""What subschemas that apply together come to: one variant for each way through their branches, each a tuple of plain parts.

What `guide.py` and `guide_values.py` read a schema by. Only hints: keywords that narrow further are passed over.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.judge_validators import Validators
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Asked", "Variant", "Variants", "kinds_of", "known_values"]

Asked = tuple[Schema, ...]
"""Subschemas that apply together."""

Variant = tuple[SchemaMap, ...]
"""Subschemas that apply together, with all that these bring along."""

_Key = tuple[int, ...]
_MOST = 32
_MOST_FOUND = 256
_DEEPEST = 24
_MOST_PARTS = 48


class Variants:
    """Of one schema, whose definitions these are; only remembers what it found."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._validators = Validators(definitions)
        self._known: dict[_Key, tuple[Variant, ...]] = {}

    def of(self, asked: Asked) -> tuple[Variant, ...]:
        """The variants of subschemas, at most 32; none where one of them is false."""
        key = tuple(map(id, asked))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = tuple(self._found(asked, 0, [_MOST_FOUND]))
        return known

    def _found(self, asked: Asked, depth: int, left: list[int]) -> list[Variant]:
        """The variants, as far as there are any left to look for, and not too deep: branches may stand within themselves."""
        left[0] -= 1
        if left[0] < 0 or depth > _DEEPEST:
            return []
        parts, forks = dict[int, SchemaMap](), list[list[Asked]]()
        waiting = list(reversed(asked))
        while waiting and len(parts) < _MOST_PARTS:
            part = waiting.pop()
            if isinstance(part, bool) or id(part) in parts:
                if part is False:
                    return []
                continue
            parts[id(part)] = part
            waiting += [self._definitions[part["$ref"]]] if "$ref" in part else []
            waiting += reversed(part.get("allOf", ()))
            forks += [[(branch,) for branch in part[word]] for word in ("anyOf", "oneOf") if word in part]
            forks += [[(part["if"], part.get("then", True)), (part.get("else", True),)]] if "if" in part else []
        variants: list[Variant] = [tuple(parts.values())]
        for fork in forks:
            found = (each for branch in fork for each in self._found(branch, depth + 1, left))
            inner = list(itertools.islice(found, _MOST))
            variants = [_joined(variant, each) for variant in variants for each in inner][:_MOST]
        return variants

    def all(self, asks: Iterable[Asked]) -> list[Variant]:
        """The variants of what may be asked for, at most 32."""
        return list(itertools.islice((variant for asked in asks for variant in self.of(asked)), _MOST))

    def member(self, variant: Variant, name: str) -> Asked:
        """The subschemas of a property."""
        return _distinct(schema for part in variant for schema in self._of_member(part, name))

    def _of_member(self, part: SchemaMap, name: str) -> Iterable[Schema]:
        if name in (known := part.get("properties", {})):
            return (known[name],)
        patterns = part.get("patternProperties", {}).items()
        matching = [schema for pattern, schema in patterns if self._validators.matches(pattern, name)]
        return matching or (part.get("additionalProperties", True),)

    def item(self, variant: Variant, at: int) -> Asked:
        """The subschemas of an array's item."""
        return _distinct(_of_item(part, at) for part in variant)


def kinds_of(variant: Variant) -> list[str] | None:
    """The types that a value may have, a number also as an integer; None where it may have any."""
    kinds: list[str] | None = None
    for part in variant:
        if "type" in part:
            these = [part["type"]] if isinstance(part["type"], str) else part["type"]
            these = [*these, "integer"] if "number" in these and "integer" not in these else these
            kinds = [kind for kind in kinds if kind in these] if kinds is not None else list(these)
    return kinds


def known_values(variant: Variant) -> list[Any] | None:
    """The values that a value may have, where parts name them."""
    named = [[part["const"]] if "const" in part else part["enum"] for part in variant if "const" in part or "enum" in part]
    return [value for value in named[0] if all(value in others for others in named[1:])] if named else None


def _of_item(part: SchemaMap, at: int) -> Schema:
    first: Sequence[Schema] = part.get("prefixItems", ())
    return first[at] if at < len(first) else part.get("items", True)


def _joined(one: Variant, other: Variant) -> Variant:
    return tuple({id(part): part for part in (*one, *other)}.values())


def _distinct(schemas: Iterable[Schema]) -> Asked:
    found = {id(schema): schema for schema in schemas if schema is not True}
    return tuple(found.values())
