"""A grammar that is cut into lexemes, in the words of the engine's Lark dialect. Last step before `engines/llguidance.py`."""

import json
from collections.abc import Mapping

from branchpoint.constrained.cfg import Alt, Chars, Lit, Part, Raw, Ref, Rep, Seq, Term
from branchpoint.constrained.lexemes import Lexemes
from branchpoint.constrained.regex import write_regex

__all__ = ["write_lark"]

_MARKS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def write_lark(lexemes: Lexemes) -> str:
    """The text of the grammar; its first rule is `start`."""
    rule_names = {name: f"r{at}" for at, name in enumerate(lexemes.rules)}
    lines = [f"start: {rule_names[lexemes.start]}"]
    lines += [f"{rule_names[name]}: {_write(part, rule_names)}" for name, part in lexemes.rules.items()]
    used: dict[str, None] = {}
    terminal_names = {name: f"G{at}" for at, name in enumerate(lexemes.regular)}
    for at, part in enumerate(lexemes.terms):
        lines.append(f"T{at}: {_write(part, terminal_names)}")
        used |= _references(part)
    waiting = list(used)
    while waiting:
        part = lexemes.regular[waiting.pop()]
        for name in _references(part):
            if name not in used:
                used[name] = None
                waiting.append(name)
    lines += [f"{terminal_names[name]}: {_write(lexemes.regular[name], terminal_names)}" for name in used]
    return "\n".join(lines) + "\n"


def _write(part: Part, names: Mapping[str, str]) -> str:
    match part:
        case Term(number):
            return f"T{number}"
        case Raw(lark):
            return lark
        case Ref(name):
            return names[name]
        case Lit(text):
            return json.dumps(text, ensure_ascii=False)
        case Chars():
            return f"/{write_regex(part)}/"
        case Seq(parts):
            return " ".join(_inner(each, names) for each in parts) or '""'
        case Alt(branches):
            return " | ".join(_inner(each, names) for each in branches)
        case Rep(body, low, high):
            return _inner(body, names) + _MARKS.get((low, high), f"{{{low},{'' if high is None else high}}}")


def _inner(part: Part, names: Mapping[str, str]) -> str:
    return f"({_write(part, names)})" if isinstance(part, Seq | Alt | Rep) else _write(part, names)


def _references(part: Part) -> dict[str, None]:
    match part:
        case Ref(name):
            return {name: None}
        case Seq(parts) | Alt(parts):
            return {name: None for each in parts for name in _references(each)}
        case Rep(body):
            return _references(body)
        case _:
            return {}
