"""From a schema of any draft to one document in one vocabulary: what draft 2020-12 means by each word, and local references only.

First step of a JSON-schema constraint after `schema.py` parsed it. Annotations are dropped; each place that a reference names
becomes a definition, once for each dynamic scope. `relax.py` turns the result into what the grammar engine can follow.
"""

from collections.abc import Iterator
from typing import Any

from branchpoint.constrained.documents import Documents, Place
from branchpoint.constrained.errors import InvalidSchema, LimitExceeded, UnsupportedKeyword, shorten
from branchpoint.constrained.keywords import CHECKS, FORMATS, KEYWORDS, REFUSED, misspelt
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["normalise_schema"]

_MAX_DEFINITIONS = 10_000
_SCOPED = ("$dynamicRef", "$recursiveRef")
_Key = tuple[int, tuple[str, ...]]


def normalise_schema(schema: Schema, documents: Documents | None = None) -> Schema:
    """The schema as one document whose references are all `#/$defs/N`, in the same order.

    Raises InvalidSchema, UnsupportedKeyword (keyword, pointer), or LimitExceeded.
    """
    return _Normaliser(schema, documents or Documents()).run()


class _Normaliser:
    """Walks what is reachable from the root; what references name is walked when one first does."""

    def __init__(self, root: Schema, documents: Documents) -> None:
        self._root = documents.root(root)
        self._scoped = _mentions_scope(root)
        self._searched: set[str] = set()
        self._names: dict[_Key, str] = {}
        self._pending: list[tuple[str, Place, str]] = []
        self._definitions: dict[str, Schema] = {}

    def run(self) -> Schema:
        result = self._schema(self._root, "")
        while self._pending:
            name, place, pointer = self._pending.pop(0)
            self._definitions[name] = self._schema(place, pointer)
        if isinstance(result, dict) and self._definitions:
            result["$defs"] = self._definitions
        return result

    def _schema(self, place: Place, pointer: str) -> Schema:
        schema = place.contents
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidSchema(
                f"Expected a schema at {pointer or '/'}, an object or a boolean, got {shorten(repr(schema)[:60])}."
            )
        if place.draft <= 7 and isinstance(schema.get("$ref"), str):
            schema = {"$ref": schema["$ref"]}  # its siblings say nothing in these drafts
        if "$ref" in schema and "$id" in schema and pointer and not place.dated:
            why = "drafts differ on what it does beside $ref; say with $schema which one is meant."
            raise UnsupportedKeyword("$id", f"{pointer}/$id", why)
        result: SchemaMap = {}
        for keyword, value in schema.items():
            for kept, normal in self._keyword(keyword, value, place, f"{pointer}/{_escape(keyword)}"):
                result[kept] = normal
        return _settled(result, schema)

    def _keyword(self, keyword: str, value: Any, place: Place, here: str) -> Iterator[tuple[str, Any]]:
        """What stands for one keyword: itself with a normal value, others, or nothing."""
        kind = KEYWORDS.get(keyword)
        if kind is None:
            _check_foreign(keyword, here)
        elif kind == "plain":
            yield from _plain(keyword, value, here)
        elif kind == "reference":
            yield "$ref", self._follow(keyword, value, place, here)
        elif kind == "base":
            if keyword in ("$schema", "$id") and not isinstance(value, str):
                raise InvalidSchema(f"Expected a string at {here}, got {shorten(repr(value)[:60])}.")
            if keyword in ("$defs", "definitions"):
                _check_map(value, here)
        elif kind == "map":
            _check_map(value, here)
            yield keyword, {name: self._schema(place.enter(each), f"{here}/{_escape(name)}") for name, each in value.items()}
        elif kind == "dependencies":
            yield from self._dependencies(value, place, here)
        elif kind == "schemas" or (kind == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise InvalidSchema(f"Expected a list of schemas at {here}, got {shorten(repr(value)[:60])}.")
            listed = [self._schema(place.enter(each), f"{here}/{at}") for at, each in enumerate(value)]
            yield "prefixItems" if kind == "items" else keyword, listed
        elif kind in ("schema", "items"):
            yield keyword, self._schema(place.enter(value), here)

    def _dependencies(self, value: Any, place: Place, here: str) -> Iterator[tuple[str, Any]]:
        _check_map(value, here)
        names = {name: each for name, each in value.items() if isinstance(each, list)}
        yield from _plain("dependentRequired", names, here) if names else ()
        schemas = {name: each for name, each in value.items() if not isinstance(each, list)}
        if schemas:
            yield (
                "dependentSchemas",
                {name: self._schema(place.enter(each), f"{here}/{_escape(name)}") for name, each in schemas.items()},
            )

    def _follow(self, keyword: str, reference: object, place: Place, here: str) -> str:
        """Have what a reference names walked too; returns the reference to it in the result."""
        if not isinstance(reference, str):
            raise InvalidSchema(f"Expected a reference at {here}, a string, got {shorten(repr(reference)[:60])}.")
        found = place.follow(keyword, reference)
        if found is None or not isinstance(found.contents, dict | bool):
            if reference.startswith("#") or found is not None:
                raise InvalidSchema(f"The reference {shorten(reference)!r} at {here} names nothing in the schema.")
            raise UnsupportedKeyword(
                keyword, here, f"{shorten(reference)} is no document that was given beforehand, and nothing is fetched."
            )
        self._look_for_scope(found)
        key = (id(found.contents), found.scope() if self._scoped else ())
        if key not in self._names:
            if len(self._names) >= _MAX_DEFINITIONS:
                raise LimitExceeded(f"A schema's references may lead to {_MAX_DEFINITIONS:,} places, got more.")
            self._names[key] = str(len(self._names))
            self._pending.append((self._names[key], found, reference.removeprefix("#") if reference.startswith("#") else here))
        return f"#/$defs/{self._names[key]}"

    def _look_for_scope(self, place: Place) -> None:
        """Whether dynamic references may lie behind a place: in what its documents hold."""
        for uri, registry in place.resolver.dynamic_scope() if not self._scoped else ():
            if uri not in self._searched:
                self._searched.add(uri)
                self._scoped = self._scoped or _mentions_scope(registry.contents(uri))


def _mentions_scope(at: object) -> bool:
    if isinstance(at, dict):
        return any(word in at for word in _SCOPED) or any(map(_mentions_scope, at.values()))
    return isinstance(at, list) and any(map(_mentions_scope, at))


def _plain(keyword: str, value: Any, here: str) -> Iterator[tuple[str, Any]]:
    holds, expected = CHECKS.get(keyword, (None, ""))
    if holds is not None and not holds(value):
        raise InvalidSchema(f"Expected {expected} at {here}, got {shorten(repr(value)[:60])}.")
    if keyword == "format" and value not in FORMATS:
        return
    whole = isinstance(value, float) and value.is_integer() and keyword not in ("const", "enum")
    yield keyword, int(value) if whole else value


def _check_map(value: object, here: str) -> None:
    if not isinstance(value, dict):
        raise InvalidSchema(f"Expected a map of schemas at {here}, got {shorten(repr(value)[:60])}.")


def _check_foreign(keyword: str, here: str) -> None:
    """A word of nobody's draft says nothing about what is valid, unless it is a slip."""
    meant = None if keyword.startswith("x-") else misspelt(keyword)
    if keyword in REFUSED or meant:
        why = f"it would be ignored; did you mean {meant!r}?" if meant else "it is a word of draft 3; write it in a later one's."
        raise UnsupportedKeyword(keyword, here, why)


def _settled(result: SchemaMap, schema: SchemaMap) -> SchemaMap:
    """One vocabulary for what hangs together: old lists of items, old exclusive bounds, words that act only beside others."""
    listed = isinstance(schema.get("items"), list)
    rest = result.pop("additionalItems", None)
    if listed and rest is not None:
        result["items"] = rest
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(result.get(exclusive), bool) and result.pop(exclusive) and bound in result:
            result[exclusive] = result.pop(bound)
    if "if" not in result:
        result.pop("then", None)
        result.pop("else", None)
    if "contains" not in result:
        result.pop("minContains", None)
        result.pop("maxContains", None)
    return result


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
