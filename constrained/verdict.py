"""Verdicts on values that aren't complete, and what the rules of `judge_rules.py` and `judge_containers.py` share.

True: valid whatever follows. False: invalid whatever follows. None: that depends.
"""

import json
from collections.abc import Callable, Iterable
from typing import Protocol

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.partial import Node, Open, kind_of, unfinished, written_key
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Rule", "Verdict", "Verdicts", "alike", "all_of", "any_of", "chosen", "contrary", "may_become", "one_of"]

Verdict = bool | None


class Verdicts(Protocol):
    """What the rules ask of the judge."""

    definitions: Definitions

    def verdict(self, schema: Schema, value: Open | Node, depth: int = 0) -> Verdict:
        """What a schema says of a value."""

    def is_valid(self, schema: Schema, node: Node) -> bool:
        """What a schema says of a complete value."""

    def property_schemas(self, schema: SchemaMap, name: str) -> list[Schema]:
        """The subschemas for a property."""

    def names_property(self, schema: SchemaMap, name: str) -> bool:
        """Whether a schema names a property, or has a pattern for it."""


Rule = Callable[[Verdicts, SchemaMap, Open, int], Verdict]


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """False where one is, None where one is open, else True."""
    result: Verdict = True
    for each in verdicts:
        if each is False:
            return False
        if each is None:
            result = None
    return result


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """True where one is, None where one is open, else False."""
    result: Verdict = False
    for each in verdicts:
        if each is True:
            return True
        if each is None:
            result = None
    return result


def one_of(found: list[Verdict]) -> Verdict:
    """Whether exactly one is True."""
    if found.count(True) > 1:
        return False
    return None if None in found else found.count(True) == 1


def chosen(condition: Verdict, then: Verdict, otherwise: Verdict) -> Verdict:
    """What a condition makes of the verdicts of its branches."""
    if condition is None:
        return then if then == otherwise else None
    return then if condition else otherwise


def alike(found: list[Verdict]) -> Verdict:
    """What all of some cases say, None where they differ."""
    return found[0] if len(set(found)) == 1 else None


def contrary(verdict: Verdict) -> Verdict:
    """What `not` makes of a verdict."""
    return None if verdict is None else not verdict


def may_become(value: Open, target: object) -> bool:
    """Whether what is written so far may be the beginning of `target`."""
    if kind_of(target) != value.kind:
        return False
    if value.kind == "string" and isinstance(target, str):
        return target.startswith(value.decoded) and _may_go_on(unfinished(value.text), target[len(value.decoded) :])
    if value.kind == "number":
        return json.dumps(target).startswith(value.text.decode())
    return True


def _may_go_on(begun: bytes, rest: str) -> bool:
    """Whether what is begun of a character may become the first of `rest`, as it is written or by its code."""
    if not begun or not rest:
        return not begun
    code = f"\\u{ord(rest[0]):04x}".encode() if rest[0] < " " else b""
    return written_key(rest[0]).startswith(begun) or code.startswith(begun.lower())
