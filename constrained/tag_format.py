"""The JSON of a structural tag, read once into nodes; what is unknown in it is refused by its JSON pointer.

Two shapes are known: `{"structures": [{begin, schema, end}], "triggers": [...]}`, and `{"format": {"type": ..., ...}}`.
`tags.py` makes the grammar.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from branchpoint.constrained.errors import InvalidGrammar, LimitExceeded, shorten

__all__ = [
    "Const",
    "FreeText",
    "Grammar",
    "Many",
    "Node",
    "OneOf",
    "Pattern",
    "Row",
    "Schema",
    "Tag",
    "Triggered",
    "read_tag",
    "wrong",
]

_MAX_LENGTH = 1 << 20
_MAX_TAGS = 1024


@dataclass(frozen=True, slots=True)
class FreeText:
    """Any text up to what follows, without `excludes`."""

    at: str
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Const:
    """The text itself."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Schema:
    """One JSON value under a schema (JSON text)."""

    at: str
    schema: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a regex matches in full."""

    at: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A sentence of a grammar in GBNF or Lark."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """Parts one after the other."""

    at: str
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the parts."""

    at: str
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Many:
    """A part from `low` to `high` times, with `separator` between."""

    at: str
    body: "Node"
    low: int
    high: int | None
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, a content, and one of `ends`."""

    at: str
    begin: str
    content: "Node"
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Triggered:
    """Free text in which each trigger begins one of the tags that begin with it.

    `at_least_one`: the output begins with a tag, at once. `stop_after_first`: nothing comes after the first tag.
    """

    at: str
    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


_Item = TypeVar("_Item")
Node = FreeText | Const | Schema | Pattern | Grammar | Row | OneOf | Many | Tag | Triggered
Form = Mapping[str, Any]


def wrong(at: str, expected: str) -> InvalidGrammar:
    """What is wrong with a structural tag, and where in it."""
    return InvalidGrammar(f"Expected {expected}, at {at or '/'} of the structural tag.")


def read_tag(text: str) -> Node:
    """The nodes of a structural tag. Raises InvalidGrammar with a JSON pointer, LimitExceeded."""
    if len(text) > _MAX_LENGTH:
        raise LimitExceeded(f"A structural tag may have {_MAX_LENGTH:,} characters, got {len(text):,}.")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"Expected a structural tag as JSON: {shorten(error)}") from error
    if not isinstance(whole, dict):
        raise wrong("", "a JSON object")
    if "structures" in whole:
        form = _fields(whole, "", ("structures", "triggers"), ("type",))
        structures = _list(form["structures"], "/structures", _structure)
        return Triggered("", _strings(form["triggers"], "/triggers"), structures)
    form = _fields(whole, "", ("format",), ("type",))
    return _node(form["format"], "/format")


def _structure(value: object, at: str) -> Tag:
    form = _fields(value, at, ("begin", "schema", "end"))
    return Tag(
        at, _text(form["begin"], f"{at}/begin"), Schema(f"{at}/schema", json.dumps(form["schema"])), _ends(form["end"], at)
    )


def _node(value: object, at: str) -> Node:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _READERS:
        raise wrong(f"{at}/type", f"one of {', '.join(_READERS)}, got {shorten(repr(kind))}")
    return _READERS[kind](value, at)


def _tag(value: object, at: str) -> Tag:
    form = _fields(value, at, ("begin", "content", "end"), ("type",))
    if form.get("type", "tag") != "tag":
        raise wrong(f"{at}/type", "a tag here")
    begin = _text(form["begin"], f"{at}/begin", empty=True)
    return Tag(at, begin, _node(form["content"], f"{at}/content"), _ends(form["end"], at))


def _triggered(value: object, at: str) -> Triggered:
    form = _fields(value, at, ("triggers", "tags"), ("type", "excludes", "at_least_one", "stop_after_first"))
    return Triggered(
        at,
        _strings(form["triggers"], f"{at}/triggers"),
        _list(form["tags"], f"{at}/tags", _tag),
        _flag(form, "at_least_one", at),
        _flag(form, "stop_after_first", at),
        _strings(form.get("excludes") or [], f"{at}/excludes"),
    )


def _separated(value: object, at: str) -> Node:
    form = _fields(value, at, ("tags", "separator"), ("type", "at_least_one", "stop_after_first"))
    tags = OneOf(f"{at}/tags", _list(form["tags"], f"{at}/tags", _tag))
    high = 1 if _flag(form, "stop_after_first", at) else None
    return Many(at, tags, int(_flag(form, "at_least_one", at)), high, _text(form["separator"], f"{at}/separator", empty=True))


def _free(value: object, at: str) -> FreeText:
    form = _fields(value, at, (), ("type", "excludes"))
    return FreeText(at, _strings(form.get("excludes") or [], f"{at}/excludes"))


def _schema(value: object, at: str) -> Schema:
    form = _fields(value, at, ("json_schema",), ("type",))
    return Schema(f"{at}/json_schema", json.dumps(form["json_schema"]))


def _repeated(low: int, high: int | None) -> Callable[[object, str], Node]:
    def read(value: object, at: str) -> Node:
        form = _fields(value, at, ("content",), ("type",))
        return Many(at, _node(form["content"], f"{at}/content"), low, high)

    return read


def _worded(key: str, make: Callable[[str, str], Node], *, empty: bool = False) -> Callable[[object, str], Node]:
    def read(value: object, at: str) -> Node:
        form = _fields(value, at, (key,), ("type",))
        return make(at, _text(form[key], f"{at}/{key}", empty=empty))

    return read


def _listed(make: Callable[[str, tuple[Node, ...]], Node]) -> Callable[[object, str], Node]:
    def read(value: object, at: str) -> Node:
        form = _fields(value, at, ("elements",), ("type",))
        return make(at, _list(form["elements"], f"{at}/elements", _node))

    return read


_READERS: Mapping[str, Callable[[object, str], Node]] = {
    "any_text": _free,
    "const_string": _worded("value", Const, empty=True),
    "grammar": _worded("grammar", Grammar),
    "json_schema": _schema,
    "optional": _repeated(0, 1),
    "or": _listed(OneOf),
    "plus": _repeated(1, None),
    "regex": _worded("pattern", Pattern),
    "sequence": _listed(Row),
    "star": _repeated(0, None),
    "tag": _tag,
    "tags_with_separator": _separated,
    "triggered_tags": _triggered,
}


def _fields(value: object, at: str, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> Form:
    if not isinstance(value, dict):
        raise wrong(at, "a JSON object")
    for key in needed:
        if key not in value:
            raise wrong(at, f"the field {key!r}")
    for key in value:
        if key not in needed and key not in others:
            raise wrong(f"{at}/{shorten(key)}", f"no other fields than {', '.join((*needed, *others))}")
    return value


def _list(value: object, at: str, read: Callable[[object, str], _Item]) -> tuple[_Item, ...]:
    if not isinstance(value, list) or not value:
        raise wrong(at, "a list of at least one")
    if len(value) > _MAX_TAGS:
        raise LimitExceeded(f"A structural tag may have {_MAX_TAGS:,} parts in a list, got {len(value):,} at {at}.")
    return tuple(read(each, f"{at}/{number}") for number, each in enumerate(value))


def _strings(value: object, at: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong(at, "a list of texts")
    return tuple(_text(each, f"{at}/{number}") for number, each in enumerate(value))


def _text(value: object, at: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise wrong(at, "a text" if empty else "a text that isn't empty")
    return value


def _ends(value: object, at: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (_text(value, f"{at}/end", empty=True),)
    return tuple(_text(each, f"{at}/end/{number}", empty=True) for number, each in enumerate(value)) or ("",)


def _flag(form: Form, key: str, at: str) -> bool:
    value = form.get(key, False)
    if not isinstance(value, bool):
        raise wrong(f"{at}/{key}", "true or false")
    return value
