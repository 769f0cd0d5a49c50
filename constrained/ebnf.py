"""Grammars as text: tells Lark from GBNF, translates GBNF, and refuses what would step around this room's own rules.

Used by the compiler before llguidance sees the text.
"""

import re

from branchpoint.constrained.cfg import Cfg, prune
from branchpoint.constrained.errors import InvalidGrammar, LimitExceeded
from branchpoint.constrained.gbnf import read_gbnf
from branchpoint.constrained.lark import write_lark
from branchpoint.constrained.lexemes import cut_lexemes

__all__ = ["normalise_ebnf", "read_ebnf"]

_MAX_LENGTH = 262_144
_MAX_DEPTH = 60
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*')
_LARK_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_IGNORED = re.compile(r"\w\s*\[[^\]]*\b(temperature|capture)\b")


def normalise_ebnf(text: str) -> str:
    """The grammar in llguidance's Lark dialect. Raises InvalidGrammar, EmptyLanguage or LimitExceeded."""
    read = read_ebnf(text)
    return read if isinstance(read, str) else write_lark(cut_lexemes(prune(read)))


def read_ebnf(text: str) -> Cfg | str:
    """A grammar in GBNF as rules, one in Lark as the text that it is. Raises InvalidGrammar or LimitExceeded."""
    if len(text) > _MAX_LENGTH:
        raise LimitExceeded(f"A grammar may have {_MAX_LENGTH:,} characters, got {len(text):,}.")
    if not text.strip():
        raise InvalidGrammar("Expected a grammar in Lark or GBNF syntax, got an empty text.")
    is_gbnf = "::=" in _QUOTED.sub("", text)
    bare = (_QUOTED if is_gbnf else _LARK_QUOTED).sub("", text)
    _check_depth(bare)
    if is_gbnf:
        return read_gbnf(text)
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
