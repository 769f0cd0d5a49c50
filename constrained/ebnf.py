"""Grammars as text: tells Lark from GBNF, translates GBNF, and refuses what would step around this room's own rules.

Used by the compiler before llguidance sees the text.
"""

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from branchpoint.constrained.errors import InvalidGrammar, LimitExceeded, shorten

__all__ = ["normalise_ebnf"]

_MAX_LENGTH = 262_144
_MAX_DEPTH = 60
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*')
_LARK_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_PIECES = re.compile(rf"{_QUOTED.pattern}|(?P<bar>\s*\n\s*\|)")
_IGNORED = re.compile(r"\w\s*\[[^\]]*\b(temperature|capture)\b")
_ESCAPE = re.compile(r"\\\\|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")


def normalise_ebnf(text: str) -> str:
    """The grammar in llguidance's Lark dialect. Raises InvalidGrammar or LimitExceeded."""
    if len(text) > _MAX_LENGTH:
        raise LimitExceeded(f"A grammar may have {_MAX_LENGTH:,} characters, got {len(text):,}.")
    if not text.strip():
        raise InvalidGrammar("Expected a grammar in Lark or GBNF syntax, got an empty text.")
    is_gbnf = "::=" in _QUOTED.sub("", text)
    bare = (_QUOTED if is_gbnf else _LARK_QUOTED).sub("", text)
    _check_depth(bare)
    if is_gbnf:
        return _from_gbnf(text)
    for forbidden, why in (
        ("%json", "give the schema as a JSON schema constraint"),
        ("<", "special tokens never match text"),
        ("@", "a grammar stands for itself here"),
    ):
        if forbidden in bare:
            raise InvalidGrammar(f"Expected rules over text only, got {forbidden!r} outside of quotes: {why}.")
    if ignored := _IGNORED.search(bare):
        raise InvalidGrammar(
            f"Expected rules that say what is valid, got the attribute {ignored[1]!r}, which says something else."
        )
    return text


def _check_depth(bare: str) -> None:
    deepest = depth = 0
    for char in bare:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise LimitExceeded(f"A grammar may nest {_MAX_DEPTH} groups, got {deepest:,}.")


def _from_gbnf(text: str) -> str:
    try:
        return str(gbnf_to_lark(_ESCAPE.sub(_spell, _join_alternatives(text))))
    except RecursionError as error:
        raise LimitExceeded("The grammar nests too deep to translate.") from error
    except Exception as error:  # the library's translator raises bare Exception for every mistake in the text
        raise InvalidGrammar(f"Expected a grammar in GBNF syntax: {shorten(error)}") from error


def _join_alternatives(text: str) -> str:
    """Alternatives on lines of their own, `\\n | x`, drawn up to their rule: people write them, the translator doesn't."""
    return _PIECES.sub(_join, text)


def _join(piece: re.Match[str]) -> str:
    if piece["bar"]:
        return " |"
    return "" if piece[0].startswith("#") else piece[0]


def _spell(escape: re.Match[str]) -> str:
    """A `\\uXXXX` escape as the character itself; the translator drops its leading zeros."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise InvalidGrammar(f"Expected a Unicode scalar value, got the escape {escape[0]}.")
    return chr(code)
