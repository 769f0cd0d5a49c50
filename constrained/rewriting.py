"""Exact rewriting of what a grammar can't say (`not`, overlapping `oneOf`, conditions) into what it can: types, bounds, names.

`relax.py` asks; the algebra of schemas is jsonschema-rs's canonical form, whose answers are equal to what was asked, or none.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs

from branchpoint.constrained.complement import complement_pattern
from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Rewriter", "avoid", "is_plain"]

_MAX_BRANCHES = 40
_MAX_SIZE = 20_000
_MAX_PLACE = 1_000
_BEYOND = {"not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KINDS = jsonschema_rs.canonical.CanonicalKind
_NO = jsonschema_rs.canonical.Satisfiability.NO


class Rewriter:
    """Answers questions about schemas that refer to one set of definitions."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self._forms: dict[str, Any] = {}  # canonical forms by schema text: the walk over a schema comes by more than once

    def exact(self, schema: Schema) -> Schema | None:
        """An equal schema without what a grammar can't say, None where there is none (or it would be huge)."""
        found = self._canonical(schema)
        if found is None or found.kind == _KINDS.RAW:
            return None
        if found.kind in (_KINDS.TRUE, _KINDS.FALSE):
            return bool(found.kind == _KINDS.TRUE)
        written: Any = found.to_json_schema()
        if isinstance(written, dict):
            written = {key: value for key, value in written.items() if key != "$schema"}
            if "$defs" in written or _mentions(written, "$ref"):
                return None
            written = _spelled(written)
        plain: Schema = written
        return plain if is_plain(plain) and len(json.dumps(plain)) <= _MAX_SIZE else None

    def disjoint(self, branches: list[Schema]) -> list[tuple[int, int]]:
        """The pairs of branches that may hold together; empty where it is proven that none can."""
        if len(branches) > _MAX_BRANCHES:
            return list(itertools.combinations(range(len(branches)), 2))
        forms = [self._canonical(branch) for branch in branches]
        return [
            (one, other)
            for one, other in itertools.combinations(range(len(branches)), 2)
            if not self._apart(forms[one], forms[other])
        ]

    def is_empty(self, schema: SchemaMap) -> bool:
        """Whether it is proven that nothing satisfies a schema; not asked of large ones, for which it would take too long."""
        if len(json.dumps(self.definitions.whole(schema))) > _MAX_SIZE:
            return False
        return self._is_empty(schema)

    def is_plainly_empty(self, schema: SchemaMap) -> bool:
        """The same, asked of small schemas that refer to nothing only: it can be asked of many places."""
        return not _mentions(schema, "$ref") and len(json.dumps(schema)) <= _MAX_PLACE and self._is_empty(schema)

    def _is_empty(self, schema: SchemaMap) -> bool:
        found = self._canonical(schema)
        return found is not None and bool(found.satisfiability() == _NO)

    def _apart(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return False
        try:
            return bool(one.intersect(other).satisfiability() == _NO)
        except ValueError:
            return False

    def _canonical(self, schema: Schema) -> Any:
        text = json.dumps(schema)
        if text not in self._forms:
            whole = {"$schema": _DIALECT, **self.definitions.whole(schema)} if isinstance(schema, dict) else schema
            try:
                self._forms[text] = jsonschema_rs.canonicalize(whole, validate_formats=True, offline=True)
            except ValueError:
                self._forms[text] = None
        return self._forms[text]


def _spelled(at: Any) -> Any:
    """With a pattern for each `not` that only names strings, or patterns of them."""
    if isinstance(at, list):
        return [_spelled(each) for each in at]
    if not isinstance(at, dict):
        return at
    if at == {"not": {}}:
        return False
    result = {key: value if key in ("const", "enum") else _spelled(value) for key, value in at.items()}
    if at.get("type") != "string":
        return result
    parts = [*result.pop("allOf", ()), *([{"not": result.pop("not")}] if "not" in result else ())]
    written = [_barred(each) for each in parts]
    if written:
        result["allOf"] = written
    return result


def _barred(part: Any) -> Any:
    """A pattern for `{"not": …}` where there is one, else the part itself."""
    barred = part.get("not") if isinstance(part, dict) and len(part) == 1 else None
    if not isinstance(barred, dict) or len(barred) != 1:
        return part
    if "pattern" in barred:
        other = complement_pattern(barred["pattern"])
        return part if other is None else {"pattern": other}
    values = barred.get("enum", [barred["const"]] if "const" in barred else [])
    return {"pattern": avoid(values)} if values and all(isinstance(value, str) for value in values) else part


def avoid(strings: Sequence[str]) -> str:
    """A pattern of every string but these."""
    trie: dict[str, Any] = {}
    for string in strings:
        at = trie
        for char in string:
            at = at.setdefault(char, {})
        at[""] = {}
    return f"^{_other(trie)}$"


def _other(trie: dict[str, Any]) -> str:
    """What a string may go on with at this point of the trie, so that it ends nowhere where the trie does."""
    heads = [char for char in trie if char]
    listed = "".join(f"\\u{{{ord(char):x}}}" for char in heads)
    branches = [] if "" in trie else [""]
    branches.append(f"[^{listed}][^]*" if heads else "[^]+")
    branches += [f"\\u{{{ord(char):x}}}{_other(trie[char])}" for char in heads]
    return f"(?:{'|'.join(branches)})"


def is_plain(at: object) -> bool:
    """Whether a schema has nothing that a grammar can't say."""
    if isinstance(at, dict):
        if _BEYOND & at.keys() or at.get("uniqueItems"):
            return False
        return all(is_plain(value) for key, value in at.items() if key not in ("const", "enum"))
    return not isinstance(at, list) or all(map(is_plain, at))


def _mentions(at: object, word: str) -> bool:
    if isinstance(at, dict):
        return word in at or any(_mentions(value, word) for value in at.values())
    return isinstance(at, list) and any(_mentions(value, word) for value in at)
