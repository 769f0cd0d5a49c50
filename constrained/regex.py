r"""From a pattern in Python's dialect to one that every engine reads the same way; what none can express is refused.

The compiler normalises each pattern here before an engine sees it, so `\w`, `(?i)` or `$` mean what `re.fullmatch` means by
them. The tree has three kinds of node only, so questions about the language (is it empty?) are answered on it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]  # the parser's own names, not in typeshed
from re import _parser  # type: ignore[attr-defined]  # the parser that defines the dialect; not in typeshed
from typing import Any

from branchpoint.constrained.charset import ANY, NEWLINE, CharSet, category, complement, fold_case, union
from branchpoint.constrained.errors import EmptyLanguage, InvalidRegex, LimitExceeded, shorten

__all__ = ["Chars", "Choice", "Node", "Repeat", "Series", "literal", "normalise_regex", "parse_regex", "write_regex"]

_MAX_LENGTH = 32_768
_MAX_DEPTH = 100
_MAX_EXPANDED = 100_000
_MAX_RANGES = 100_000


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set; the empty set matches nothing."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Series:
    """Parts one after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several branches."""

    branches: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body` from `low` to `high` times (None: without end)."""

    body: "Node"
    low: int
    high: int | None


Node = Chars | Series | Choice | Repeat

_CATEGORIES = {
    op.CATEGORY_DIGIT: ("digit", False),
    op.CATEGORY_NOT_DIGIT: ("digit", True),
    op.CATEGORY_SPACE: ("space", False),
    op.CATEGORY_NOT_SPACE: ("space", True),
    op.CATEGORY_WORD: ("word", False),
    op.CATEGORY_NOT_WORD: ("word", True),
}
_REFUSED = {
    op.ASSERT: "look-around",
    op.ASSERT_NOT: "look-around",
    op.GROUPREF: "a back-reference",
    op.GROUPREF_EXISTS: "a conditional group",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_STARTS = {op.AT_BEGINNING, op.AT_BEGINNING_STRING}
_ENDS = {op.AT_END, op.AT_END_STRING}


def normalise_regex(pattern: str) -> str:
    """The pattern in the common subset: characters, classes, groups, `|` and bounded repeats; matched in full.

    Raises InvalidRegex, LimitExceeded, or EmptyLanguage where it matches nothing.
    """
    return write_regex(parse_regex(pattern))


def parse_regex(pattern: str) -> Node:
    """The pattern's tree, without parts that match nothing. Raises InvalidRegex, LimitExceeded, EmptyLanguage."""
    if len(pattern) > _MAX_LENGTH:
        raise LimitExceeded(f"A pattern may have {_MAX_LENGTH:,} characters, got {len(pattern):,}.")
    if _depth(pattern) > _MAX_DEPTH:
        raise LimitExceeded(f"A pattern may nest {_MAX_DEPTH} groups, got {_depth(pattern):,}.")
    try:
        tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise InvalidRegex(
            f"Expected a pattern as Python's re reads it, got {shorten(repr(pattern))}: {shorten(error)}."
        ) from error
    node = _Reader(pattern).sequence(list(tree), tree.state.flags, at_start=True, at_end=True)
    if node is None:
        raise EmptyLanguage(f"No text matches the pattern {shorten(repr(pattern))}.")
    if (ranges := _ranges(node)) > _MAX_RANGES:
        raise LimitExceeded(f"A pattern's classes may have {_MAX_RANGES:,} ranges of characters in all, got {ranges:,}.")
    if (size := _expanded(node)) > _MAX_EXPANDED:
        raise LimitExceeded(f"A pattern may stand for {_MAX_EXPANDED:,} characters with its repeats written out, got {size:,}.")
    return node


def _expanded(node: Node) -> int:
    """Characters of the pattern with every bounded repeat written out."""
    match node:
        case Chars():
            return 1
        case Series(parts) | Choice(parts):
            return sum(map(_expanded, parts))
        case Repeat(body, low, high):
            return _expanded(body) * max(1, low if high is None else high)


def _ranges(node: Node) -> int:
    """Ranges of all classes, each as often as it is written."""
    match node:
        case Chars(chars):
            return len(chars)
        case Series(parts) | Choice(parts):
            return sum(map(_ranges, parts))
        case Repeat(body):
            return _ranges(body)


def _depth(pattern: str) -> int:
    """An upper bound of how deep groups nest (brackets in classes and escapes count too, which only makes it larger)."""
    deepest = depth = 0
    for char in pattern:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")" and depth:
            depth -= 1
    return deepest


class _Reader:
    """Walks the parser's tree; None stands for a part that matches nothing."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._sets: dict[tuple[str, int], CharSet] = {}

    def sequence(self, items: Sequence[Any], flags: int, *, at_start: bool, at_end: bool) -> Node | None:
        parts: list[Node] = []
        solid = [at for at, (code, _) in enumerate(items) if code is not op.AT]
        first, last = (solid[0], solid[-1]) if solid else (len(items), -1)
        for at, item in enumerate(items):
            part = self._item(item, flags, at_start and at <= first, at_end and at >= last)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _item(self, item: tuple[Any, Any], flags: int, at_start: bool, at_end: bool) -> Node | None:
        code, value = item
        if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN, op.CATEGORY):
            name = (repr(item), flags)
            if name not in self._sets:
                self._sets[name] = self._chars(item, flags)
            return Chars(self._sets[name]) if self._sets[name] else None
        if code is op.BRANCH:
            read = [self.sequence(list(branch), flags, at_start=at_start, at_end=at_end) for branch in value[1]]
            alive = tuple(branch for branch in read if branch is not None)
            return Choice(alive) if alive else None
        if code is op.SUBPATTERN:
            _, added, removed, body = value
            return self.sequence(list(body), (flags | added) & ~removed, at_start=at_start, at_end=at_end)
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = value
            read_body = self.sequence(list(body), flags, at_start=False, at_end=False)
            if read_body is None:
                return None if low else Series(())
            return Repeat(read_body, int(low), None if high is op.MAXREPEAT else int(high))
        if code is op.AT:
            return self._anchor(value, at_start, at_end)
        if code is op.FAILURE or (code is op.ASSERT_NOT and not list(value[1])):  # `(?!)`, which newer parsers call a failure
            return None
        raise self._refuse(_REFUSED.get(code, str(code)))

    def _anchor(self, where: object, at_start: bool, at_end: bool) -> Node:
        if (where in _STARTS and at_start) or (where in _ENDS and at_end):
            return Series(())
        raise self._refuse("a word boundary" if where not in _STARTS | _ENDS else "an anchor inside the text")

    def _refuse(self, what: str) -> InvalidRegex:
        return InvalidRegex(
            f"{shorten(repr(self._pattern))} uses {what}, which no automaton of this engine expresses; "
            "write it without (the whole output is matched, anchors are not needed)."
        )

    def _chars(self, item: tuple[Any, Any], flags: int) -> CharSet:
        code, value = item
        ascii_only = bool(flags & re.ASCII)
        if code is op.ANY:
            return ANY if flags & re.DOTALL else complement(NEWLINE)
        if code is op.CATEGORY:
            return self._category(value, ascii_only)
        members = value if code is op.IN else [(op.LITERAL, value)]
        negated = code is op.NOT_LITERAL or members[0][0] is op.NEGATE
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[int, int]] = []  # these know no case: `(?i)\w` is what `\w` is
        for kind, member in members:
            if kind is op.LITERAL:
                ranges.append((member, member))
            elif kind is op.RANGE:
                ranges.append(tuple(member))
            elif kind is op.CATEGORY:
                categories.extend(self._category(member, ascii_only))
        chars = union(ranges)
        if flags & re.IGNORECASE:
            chars = fold_case(chars, ascii_only=ascii_only)
        chars = union([*chars, *categories])
        return complement(chars) if negated else chars

    def _category(self, code: object, ascii_only: bool) -> CharSet:
        name, negated = _CATEGORIES[code]
        chars = category(name, ascii_only=ascii_only)
        return complement(chars) if negated else chars


def literal(text: str) -> tuple[Node, ...]:
    """Nodes that match exactly `text`."""
    return tuple(Chars(((ord(char), ord(char)),)) for char in text)


def write_regex(node: Node) -> str:
    """The tree as a pattern that Rust's regex family reads: `\\x{…}` classes, `(?:…)` groups, counted repeats."""
    match node:
        case Chars(chars):
            return _write_chars(chars)
        case Series(parts):
            return "".join(f"(?:{write_regex(part)})" if isinstance(part, Choice) else write_regex(part) for part in parts)
        case Choice(branches):
            return "|".join(write_regex(branch) for branch in branches)
        case Repeat(body, low, high):
            return f"(?:{write_regex(body)}){_write_bounds(low, high)}"


def _write_bounds(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    return short or f"{{{low},{'' if high is None else high}}}"


def _write_chars(chars: CharSet) -> str:
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _write_char(chars[0][0])
    pieces = (_write_char(low) if low == high else f"{_write_char(low)}-{_write_char(high)}" for low, high in chars)
    return f"[{''.join(pieces)}]"


def _write_char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"
