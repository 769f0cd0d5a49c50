"""Where a schema's references lead: the schema itself, documents that were given beforehand, and the drafts' own meta-schemas.

Used by `normalise.py`. Nothing is ever fetched. Identifiers, anchors and dynamic scope are the `referencing` library's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema_specifications import REGISTRY as META_SCHEMAS  # type: ignore[import-untyped]  # shipped without types
from referencing import Anchor, Registry, Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012, Schema, lookup_recursive_ref

from branchpoint.constrained.errors import InvalidSchema, shorten

__all__ = ["Documents", "Place"]

_DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_NEWEST = 2020
_ANCHOR: Any = Anchor  # classes of attrs, whose constructors mypy doesn't see
_SPECIFICATION: Any = Specification
_FAULTS = (AttributeError, KeyError, TypeError, ValueError)  # what the library meets in JSON that is no schema


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema, the draft it is written in, whether that was said, and what its references are relative to."""

    contents: Any
    draft: int
    dated: bool
    resolver: Any

    def enter(self, contents: Any) -> "Place":
        """A subschema of this one, which may have an identifier of its own."""
        if not isinstance(contents, dict) or not ({"$id", "id", "$schema"} & contents.keys()):
            return Place(contents, self.draft, self.dated, self.resolver)
        draft, dated = _draft(contents, self.draft), self.dated or "$schema" in contents
        name = contents.get("id" if draft == 4 else "$id")
        if isinstance(name, str) and not name.startswith("#"):
            return Place(contents, draft, dated, self.resolver.in_subresource(_resource(contents, draft)))
        return Place(contents, draft, dated, self.resolver)

    def follow(self, keyword: str, reference: str) -> "Place | None":
        """What `$ref`, `$dynamicRef` or `$recursiveRef` names, None where it is nothing that is known."""
        try:
            found = lookup_recursive_ref(self.resolver) if keyword == "$recursiveRef" else self.resolver.lookup(reference)
            whole = found.resolver.lookup("#").contents
        except Unresolvable:
            return None
        except _FAULTS as error:
            raise InvalidSchema(f"Expected a reference that can be followed, got {shorten(repr(reference))}.") from error
        dated = self.dated or (isinstance(whole, dict) and "$schema" in whole)
        return Place(found.contents, _draft(found.contents, _draft(whole, self.draft)), dated, found.resolver)

    def scope(self) -> tuple[str, ...]:
        """The documents passed on the way here, which decide where dynamic references lead."""
        outermost = dict.fromkeys(reversed([str(uri) for uri, _ in self.resolver.dynamic_scope()]))
        return tuple(outermost)


class Documents:
    """Documents by URI that any schema may refer to. Immutable; made once for a compiler."""

    def __init__(self, documents: Mapping[str, object] | None = None) -> None:
        given = [(uri, _resource(contents, _draft(contents, _NEWEST))) for uri, contents in (documents or {}).items()]
        registry: Registry[Schema] = META_SCHEMAS.with_resources(given)
        self._registry = registry.crawl()

    def root(self, schema: object) -> Place:
        """The place at the root of `schema`. Raises InvalidSchema where it can't be read as one."""
        try:
            return self._rooted(schema, _draft(schema, _NEWEST))
        except _FAULTS:  # below a part that names a draft of its own the library minds what that draft has not
            try:
                return self._rooted(_of_one_draft(schema), _draft(schema, _NEWEST))
            except _FAULTS as error:
                raise InvalidSchema(f"Expected a schema whose parts are schemas: {shorten(error)}") from error

    def _rooted(self, schema: object, draft: int) -> Place:
        resource = _resource(schema, draft)
        identifier = resource.id() or ""
        resolver = self._registry.with_resource(identifier, resource).crawl().resolver(identifier)
        return Place(schema, draft, isinstance(schema, dict) and "$schema" in schema, resolver)


def _of_one_draft(at: object) -> object:
    """A copy in which no part names a draft of its own."""
    if isinstance(at, dict):
        return {key: _of_one_draft(value) for key, value in at.items() if key != "$schema" or not isinstance(value, str)}
    return [_of_one_draft(each) for each in at] if isinstance(at, list) else at


def _draft(contents: object, default: int) -> int:
    """The draft that `$schema` names; `default` where there is none, or one of nobody's."""
    name = contents.get("$schema") if isinstance(contents, dict) else None
    if not isinstance(name, str):
        return default
    return _DRAFTS.get(name.rstrip("#").split("://", 1)[-1], default)


def _resource(contents: Any, draft: int) -> "Resource[Any]":
    made: Resource[Any] = _SPECIFICATIONS[draft].create_resource(contents)
    return made


def _lenient(inner: "Specification[Any]") -> Any:
    """The draft's rules, deaf to values that can't be what they should."""

    def identifier(contents: Any) -> str | None:
        found = inner.id_of(contents) if _is_named(contents) else None
        return found if isinstance(found, str) and not found.startswith("#") else None

    def subresources(contents: Any) -> Iterable[Any]:
        return (each for each in inner.subresources_of(contents) if isinstance(each, dict)) if isinstance(contents, dict) else ()

    def anchors(specification: "Specification[Any]", contents: Any) -> Iterable[Any]:
        if not _is_named(contents):
            return
        yield from inner.anchors_in(contents)
        if inner in (DRAFT201909, DRAFT202012) and contents.get("$id", "").startswith("#"):  # as drafts 6 and 7 wrote anchors
            yield _ANCHOR(name=contents["$id"][1:], resource=specification.create_resource(contents))

    return _SPECIFICATION(
        name=inner.name,
        id_of=identifier,
        subresources_of=subresources,
        anchors_in=anchors,
        maybe_in_subresource=inner.maybe_in_subresource,
    )


def _is_named(contents: object) -> bool:
    if not isinstance(contents, dict):
        return False
    return all(isinstance(contents.get(word, ""), str) for word in ("$id", "id", "$anchor", "$dynamicAnchor"))


_SPECIFICATIONS = {
    4: _lenient(DRAFT4),
    6: _lenient(DRAFT6),
    7: _lenient(DRAFT7),
    2019: _lenient(DRAFT201909),
    2020: _lenient(DRAFT202012),
}
