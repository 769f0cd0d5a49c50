"""Context-free grammars over characters: what `gbnf.py` and `tags.py` read, `lexemes.py` cuts and `lark.py` writes.

The language is that of the characters, with every way to read a text; no lexer has a say in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from branchpoint.constrained.charset import CharSet
from branchpoint.constrained.errors import EmptyLanguage, LimitExceeded
from branchpoint.constrained.regex import Chars, Choice, Node, Repeat, Series

__all__ = [
    "Alt",
    "Cfg",
    "Chars",
    "Lit",
    "Part",
    "Raw",
    "Ref",
    "Rep",
    "Seq",
    "Term",
    "children",
    "from_regex",
    "prune",
    "recursive",
    "renamed",
    "rule_users",
]

_MAX_DEPTH = 200  # nested parts of one rule, which are walked by recursion


@dataclass(frozen=True, slots=True, eq=False)
class Lit:
    """The text itself."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """Parts one after the other; without any, the empty text."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """One of several branches."""

    branches: tuple["Part", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rep:
    """`body` from `low` to `high` times (None: without end)."""

    body: "Part"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """An expression in the engine's own words, known by what it may begin with; it cuts its own lexemes."""

    lark: str
    first: CharSet
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """A lexeme by its number: what `lexemes.py` puts where a regular part stood."""

    number: int


Part = Lit | Chars | Seq | Alt | Rep | Ref | Raw | Term


@dataclass(frozen=True, slots=True)
class Cfg:
    """Rules by name. A sentence is what `start` derives; `follow` are characters that may come right after it."""

    rules: Mapping[str, Part]
    start: str
    follow: CharSet = ()


def children(part: Part) -> tuple[Part, ...]:
    """The parts that a part is made of."""
    match part:
        case Seq(parts) | Alt(parts):
            return parts
        case Rep(body):
            return (body,)
        case _:
            return ()


def from_regex(node: Node) -> Part:
    """A pattern's tree as a part."""
    match node:
        case Series(parts):
            return Seq(tuple(map(from_regex, parts)))
        case Choice(branches):
            return Alt(tuple(map(from_regex, branches)))
        case Repeat(body, low, high):
            return Rep(from_regex(body), low, high)
        case Chars():
            return node


def renamed(cfg: Cfg, prefix: str) -> Cfg:
    """The grammar with `prefix.` before the name of every rule, so that it may stand beside others."""

    def rename(part: Part) -> Part:
        match part:
            case Ref(name):
                return Ref(f"{prefix}.{name}")
            case Seq(parts):
                return Seq(tuple(map(rename, parts)))
            case Alt(branches):
                return Alt(tuple(map(rename, branches)))
            case Rep(body, low, high):
                return Rep(rename(body), low, high)
            case _:
                return part

    return Cfg({f"{prefix}.{name}": rename(part) for name, part in cfg.rules.items()}, f"{prefix}.{cfg.start}", cfg.follow)


def _leaves(part: Part) -> Iterator[Part]:
    waiting = [part]
    while waiting:
        at = waiting.pop()
        below = children(at)
        if below:
            waiting.extend(below)
        else:
            yield at


def _references(part: Part) -> set[str]:
    return {leaf.name for leaf in _leaves(part) if isinstance(leaf, Ref)}


def rule_users(rules: Mapping[str, Part]) -> dict[str, set[str]]:
    """By rule: the rules that refer to it."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, part in rules.items():
        for other in _references(part):
            users[other].add(name)
    return users


def recursive(rules: Mapping[str, Part]) -> frozenset[str]:
    """The rules that are no regular expression as written: those on a cycle or with a Raw, and all that refer to them."""
    users = rule_users(rules)
    missing = {name: len(_references(part)) for name, part in rules.items()}
    raw = {name for name, part in rules.items() if any(isinstance(leaf, Raw) for leaf in _leaves(part))}
    ready = [name for name, count in missing.items() if not count and name not in raw]
    regular = set(ready)
    while ready:
        for user in users[ready.pop()]:
            missing[user] -= 1
            if not missing[user] and user not in raw:
                regular.add(user)
                ready.append(user)
    return frozenset(rules) - regular


def prune(cfg: Cfg) -> Cfg:
    """The grammar without what derives nothing and what is never reached. Raises EmptyLanguage, LimitExceeded."""
    users = rule_users(cfg.rules)
    kept: dict[str, Part] = {}
    waiting = dict.fromkeys(cfg.rules)
    while waiting:  # a rule is kept as soon as one way through it ends; its other branches are looked at again below
        name, _ = waiting.popitem()
        part = _living(cfg.rules[name], kept, 0)
        if part is not None and name not in kept:
            kept[name] = part
            waiting |= dict.fromkeys(user for user in users[name] if user not in kept)
    if cfg.start not in kept:
        endless = ", ".join(list(dict.fromkeys(name for name in cfg.rules if name not in kept))[:5])
        raise EmptyLanguage(
            f"Nothing satisfies this grammar: the rule {cfg.start!r} never comes to an end (nor do: {endless}); each rule "
            "needs an alternative that does not lead back to itself."
        )
    reached: dict[str, Part] = {}
    names = [cfg.start]
    while names:
        name = names.pop()
        if name not in reached:
            part = _living(cfg.rules[name], kept, 0)
            assert part is not None, "a rule that was kept has a way through it"
            reached[name] = part
            names.extend(_references(part))
    return replace(cfg, rules={name: reached[name] for name in cfg.rules if name in reached})


def _living(part: Part, alive: Mapping[str, Part], depth: int) -> Part | None:
    """The part without branches that derive nothing; None where nothing is left."""
    if depth > _MAX_DEPTH:
        raise LimitExceeded(f"A grammar's rule may nest {_MAX_DEPTH} parts; give some of them names of their own.")
    match part:
        case Lit(text):
            return part if text else Seq(())
        case Chars(chars):
            return part if chars else None
        case Ref(name):
            return part if name in alive else None
        case Seq(parts):
            flat: list[Part] = []
            for each in parts:
                living = _living(each, alive, depth + 1)
                if living is None:
                    return None
                flat += living.parts if isinstance(living, Seq) else (living,)
            return flat[0] if len(flat) == 1 else Seq(tuple(flat))
        case Alt(branches):
            found = [living for each in branches if (living := _living(each, alive, depth + 1)) is not None]
            return (found[0] if len(found) == 1 else Alt(tuple(found))) if found else None
        case Rep(body, low, high):
            inner = _living(body, alive, depth + 1)
            if inner is None and low:
                return None
            if inner is None or high == 0 or (isinstance(inner, Seq) and not inner.parts):
                return Seq(())
            return inner if low == high == 1 else Rep(inner, low, high)
        case _:
            return part
