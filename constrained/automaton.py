"""How large a regex's automaton is, found before an engine builds it: a bounded subset construction over character classes.

The compiler asks it whether a pattern fits a precomputed index; a hostile pattern costs at most the budget given.
"""

from dataclasses import dataclass, field

from branchpoint.constrained.charset import CharSet
from branchpoint.constrained.regex import Chars, Choice, Node, Repeat, Series

__all__ = ["Positions", "count_states", "read_positions"]


@dataclass(slots=True)
class Positions:
    """Glushkov's automaton: one position per character of the (expanded) pattern.

    `chars` and `follow` go by position; `first`, `last` and `nullable` are of the whole, once it is built.
    """

    limit: int
    chars: list[CharSet] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class _Part:
    first: frozenset[int]
    last: frozenset[int]
    nullable: bool


class _TooLarge(Exception):
    """The pattern expands to more positions than the budget has."""


def count_states(node: Node, limit: int) -> int | None:
    """States of the deterministic automaton of `node` before it is minimised, or None where they exceed `limit`."""
    positions = read_positions(node, limit)
    if positions is None:
        return None
    letters = _letters(positions.chars)
    start = frozenset({-1})
    seen = {start}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        reached: set[int] = set()
        for position in state:
            reached |= positions.first if position < 0 else positions.follow[position]
        by_letter: dict[int, set[int]] = {}
        for position in reached:
            for letter in letters[position]:
                by_letter.setdefault(letter, set()).add(position)
        for following in map(frozenset, by_letter.values()):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
                if len(seen) > limit:
                    return None
    return len(seen)


def read_positions(node: Node, limit: int) -> Positions | None:
    """The automaton of positions, None where there would be more than `limit`."""
    positions = Positions(limit)
    try:
        whole = _build(node, positions)
    except _TooLarge:
        return None
    positions.first, positions.last, positions.nullable = whole.first, whole.last, whole.nullable
    return positions


def _letters(chars: list[CharSet]) -> list[tuple[int, ...]]:
    """For each position, numbers of the blocks it reads; characters that no class tells apart share a block."""
    distinct = list(dict.fromkeys(chars))
    edges = sorted({edge for ranges in distinct for low, high in ranges for edge in (low, high + 1)})
    at_edge = {edge: number for number, edge in enumerate(edges)}
    members: list[list[int]] = [[] for _ in edges]
    for index, ranges in enumerate(distinct):
        for low, high in ranges:
            for slot in range(at_edge[low], at_edge[high + 1]):
                members[slot].append(index)
    signatures = {tuple(found): None for found in members if found}
    blocks: dict[CharSet, list[int]] = {ranges: [] for ranges in distinct}
    for number, signature in enumerate(signatures):
        for index in signature:
            blocks[distinct[index]].append(number)
    return [tuple(blocks[ranges]) for ranges in chars]


def _build(node: Node, positions: Positions) -> _Part:
    match node:
        case Chars(chars):
            if len(positions.chars) >= positions.limit:
                raise _TooLarge
            positions.chars.append(chars)
            positions.follow.append(set())
            here = frozenset({len(positions.chars) - 1})
            return _Part(here, here, False)
        case Series(parts):
            return _join([_build(part, positions) for part in parts], positions)
        case Choice(branches):
            built = [_build(branch, positions) for branch in branches]
            return _Part(
                frozenset().union(*(part.first for part in built)),
                frozenset().union(*(part.last for part in built)),
                any(part.nullable for part in built),
            )
        case Repeat(body, low, high):
            return _repeat(body, low, high, positions)


def _repeat(body: Node, low: int, high: int | None, positions: Positions) -> _Part:
    copies: list[_Part] = []
    for number in range(low if high is None else high):
        if number > positions.limit:
            raise _TooLarge
        part = _build(body, positions)
        copies.append(part if number < low else _Part(part.first, part.last, True))
    if high is None:
        part = _build(body, positions)
        for position in part.last:
            positions.follow[position] |= part.first
        copies.append(_Part(part.first, part.last, True))
    return _join(copies, positions)


def _join(parts: list[_Part], positions: Positions) -> _Part:
    whole = _Part(frozenset(), frozenset(), True)
    for part in parts:
        for position in whole.last:
            positions.follow[position] |= part.first
        whole = _Part(
            whole.first | part.first if whole.nullable else whole.first,
            whole.last | part.last if part.nullable else part.last,
            whole.nullable and part.nullable,
        )
    return whole
