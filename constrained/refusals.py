"""From what llguidance says about a schema to errors of ours that name keyword and JSON pointer.

Used by the compiler for what `schema.py` lets through and the engine still refuses, and for whatever else goes wrong.
"""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from branchpoint.constrained.errors import (
    EmptyLanguage,
    GrammarError,
    InvalidSchema,
    LimitExceeded,
    UnsupportedKeyword,
    shorten,
)

__all__ = ["explain_refusal", "only_grammar_errors", "places"]

_Made = TypeVar("_Made")

_UNSUPPORTED = (
    (re.compile(r'Unimplemented keys: \["([^"]+)"'), None, "the grammar engine doesn't know it."),
    (re.compile(r"oneOf constraints are not supported"), "oneOf", "its branches can't be told apart from the start; use anyOf."),
    (
        re.compile(r"min/maxProperties only supported"),
        "minProperties maxProperties",
        "it is counted only where all are required.",
    ),
    (re.compile(r"patternProperty regexes .* are not disjoint"), "patternProperties", "two of its patterns match one key."),
    (
        re.compile(r"circular references"),
        "$ref $dynamicRef $recursiveRef",
        "it comes back to where it stands, on the same value.",
    ),
    (re.compile(r"[Ll]ook-?arounds?|backreferences"), "pattern", "it uses what no automaton expresses."),
)


def only_grammar_errors(compile_it: Callable[[], _Made]) -> _Made:
    """What it returns; whatever it raises is a GrammarError."""
    try:
        return compile_it()
    except GrammarError:
        raise
    except RecursionError as error:
        raise LimitExceeded("The constraint nests too deep to be compiled.") from error
    except Exception as error:  # the boundary of a request: whatever an engine raises becomes its caller's error
        raise GrammarError(f"The constraint could not be compiled: {type(error).__name__}: {shorten(error)}") from error


def explain_refusal(error: GrammarError, schema: object) -> GrammarError:
    """The refusal of a (normalised) schema with the place where it arose, as well as it can be told."""
    if isinstance(error, EmptyLanguage | LimitExceeded):
        return error
    message = str(error)
    for seen, keywords, reason in _UNSUPPORTED:
        found = seen.search(message)
        if found:
            wanted = set((keywords or found[1]).split())
            for keyword, pointer in places(schema, "", wanted):
                return UnsupportedKeyword(keyword, pointer, f"{reason} ({message})")
    return InvalidSchema(f"Expected a JSON schema that can be followed: {message}")


def places(at: object, pointer: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Keyword and JSON pointer of every place in a schema where one of `wanted` stands."""
    if isinstance(at, dict):
        for key, value in at.items():
            here = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if key in wanted:
                yield key, here
            yield from places(value, here, wanted)
    elif isinstance(at, list):
        for index, value in enumerate(at):
            yield from places(value, f"{pointer}/{index}", wanted)
