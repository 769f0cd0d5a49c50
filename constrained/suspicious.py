"""Classes of characters in a pattern that are rarely meant as written: ranges over two alphabets, bars, names in brackets.

Asked by the language's lint; nothing is refused for it.
"""

import re
from collections.abc import Iterator
from re import _constants as op  # type: ignore[attr-defined]  # the parser's own names, not in typeshed
from re import _parser  # type: ignore[attr-defined]  # the parser that defines the dialect; not in typeshed
from typing import Any

__all__ = ["suspicious_classes"]

_NAMED = re.compile(r"\[\^?:[a-z]+:\]")


def suspicious_classes(pattern: str) -> tuple[str, ...]:
    """What may not be meant, one text for each; empty too where `re` doesn't read the pattern."""
    try:
        tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError, ValueError):
        return ()
    why = "any one of these characters; names of classes such as \\d or \\w are written with a backslash"
    named = [f"{found} is {why}" for found in _NAMED.findall(pattern)]
    return tuple(dict.fromkeys([*named, *_of_tree(list(tree))]))


def _of_tree(at: Any) -> Iterator[str]:
    if isinstance(at, tuple) and len(at) == 2 and at[0] is op.IN:
        yield from _of_class(at[1])
    elif isinstance(at, list | tuple | _parser.SubPattern):
        for each in at:
            yield from _of_tree(each)


def _of_class(items: list[tuple[Any, Any]]) -> Iterator[str]:
    for kind, value in items:
        if kind is op.RANGE and (between := _between(*map(chr, value))):
            yield f"{chr(value[0])}-{chr(value[1])} in brackets has {between} too"
    written = "".join(chr(value) for kind, value in items if kind is op.LITERAL)
    if "|" in written[1:-1] and written.replace("|", "").isalnum():
        yield f"[{written}] has the character | too; alternatives are written (…|…), or in brackets without it"


def _between(low: str, high: str) -> str:
    """What else lies in a range whose ends are letters or digits of different kinds."""
    if not (low + high).isascii() or not (low + high).isalnum() or _kind(low) == _kind(high):
        return ""
    others = "".join(char for char in map(chr, range(ord(low), ord(high))) if not char.isalnum())
    return f"{others!r}"


def _kind(char: str) -> str:
    return "digit" if char.isdigit() else "capital" if char.isupper() else "small"
