r"""Patterns of all strings in which another pattern finds nothing: what `not: {pattern}` and negative look-aheads ask for.

By way of a deterministic automaton, turned over and written as a pattern again. Bounded: what would become large is None.
"""

from collections.abc import Iterable
from functools import lru_cache

from branchpoint.constrained.automaton import Positions, read_positions
from branchpoint.constrained.charset import ANY, CharSet, complement, union
from branchpoint.constrained.ecma import has_branches, python_pattern
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.regex import Chars, Choice, Node, Repeat, Series, parse_regex, write_regex

__all__ = ["complement_pattern"]

_MAX_STATES = 40
_MAX_LENGTH = 8_000
_ANYTHING = Repeat(Chars(ANY), 0, None)
_Edges = dict[int, CharSet]


@lru_cache(maxsize=256)
def complement_pattern(pattern: str) -> str | None:
    r"""An ECMA pattern, from `^` to `$`, of what `pattern` finds nothing in; None where it can't be had (or would be large)."""
    node = _search(pattern)
    positions = read_positions(node, _MAX_STATES * 10) if node is not None else None
    if positions is None:
        return None
    found = _determinise(positions)
    if found is None:
        return None
    edges, accepting = _minimised(*found)
    written = _write(edges, accepting)
    return written if written is not None and len(written) <= _MAX_LENGTH else None


def _search(pattern: str) -> Node | None:
    """The whole strings in which a pattern finds something. None for what only a searching matcher knows."""
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = python_pattern(pattern[starts : len(pattern) - ends])
    if body is None or ((starts or ends) and has_branches(body)):
        return None  # an anchor would belong to one branch only
    try:
        fenced = parse_regex(f"\\x00(?:{body})\\x00")  # so that an anchor within is refused
    except GrammarError:
        return None
    if not isinstance(fenced, Series):
        return None
    inner = Series(fenced.parts[1:-1])
    return Series((*(() if starts else (_ANYTHING,)), inner, *(() if ends else (_ANYTHING,))))


def _determinise(positions: Positions) -> tuple[list[_Edges], set[int]] | None:
    """A complete automaton over ranges of characters, start first, whose accepting states are those that match."""
    blocks = _blocks(positions.chars)
    members = [[position for position, chars in enumerate(positions.chars) if _within(block, chars)] for block in blocks]
    start = frozenset({-1})
    numbers = {start: 0}
    waiting = [start]
    edges: list[_Edges] = []
    while waiting:
        state = waiting.pop(0)
        reached = set().union(*(positions.follow[at] if at >= 0 else positions.first for at in state)) if state else set()
        out: dict[int, list[tuple[int, int]]] = {}
        for block, inside in zip(blocks, members, strict=True):
            following = frozenset(reached.intersection(inside))
            if following not in numbers:
                if len(numbers) >= _MAX_STATES:
                    return None
                numbers[following] = len(numbers)
                waiting.append(following)
            out.setdefault(numbers[following], []).extend(block)
        edges.append({to: union(ranges) for to, ranges in out.items()})
    last = positions.last
    accepting = {number for state, number in numbers.items() if state & last or (positions.nullable and -1 in state)}
    return edges, accepting


def _blocks(sets: Iterable[CharSet]) -> list[CharSet]:
    """Disjoint sets of characters, all of them together, none split by a set that is given."""
    blocks: list[CharSet] = [ANY]
    for chars in dict.fromkeys(sets):
        outside = complement(chars)
        blocks = [part for block in blocks for part in (_meet(block, chars), _meet(block, outside)) if part]
    return blocks


def _meet(one: CharSet, other: CharSet) -> CharSet:
    return union((max(low, start), min(high, end)) for low, high in one for start, end in other if low <= end and start <= high)


def _within(block: CharSet, chars: CharSet) -> bool:
    return any(low <= block[0][0] <= high for low, high in chars)


def _minimised(edges: list[_Edges], accepting: set[int]) -> tuple[list[_Edges], set[int]]:
    """The smallest equal automaton, start first (Moore's refinement)."""
    group = [int(state in accepting) for state in range(len(edges))]
    while True:
        shapes: dict[tuple[int, tuple[tuple[int, CharSet], ...]], int] = {}
        after = [
            shapes.setdefault((group[state], tuple(sorted(_merged(out, group).items()))), len(shapes))
            for state, out in enumerate(edges)
        ]
        if len(shapes) == len(set(group)):
            break
        group = after
    order = list(dict.fromkeys(group))
    number = {old: new for new, old in enumerate(order)}
    first = {number[each]: state for state, each in reversed(list(enumerate(group)))}
    return (
        [{number[to]: chars for to, chars in _merged(edges[first[new]], group).items()} for new in range(len(order))],
        {number[group[state]] for state in accepting},
    )


def _merged(out: _Edges, group: list[int]) -> _Edges:
    found: dict[int, list[tuple[int, int]]] = {}
    for to, chars in out.items():
        found.setdefault(group[to], []).extend(chars)
    return {to: union(ranges) for to, ranges in found.items()}


def _write(edges: list[_Edges], accepting: set[int]) -> str | None:
    """A pattern for what the automaton does not accept, by taking out state after state."""
    count = len(edges)
    start, end = count, count + 1
    paths: dict[tuple[int, int], Node] = {(start, 0): Series(())}
    for state, out in enumerate(edges):
        for to, chars in out.items():
            paths[state, to] = Chars(chars)
        if state not in accepting:
            paths[state, end] = Series(())
    for state in sorted(range(count), key=lambda each: sum(each in pair for pair in paths)):
        loop = paths.pop((state, state), None)
        between: tuple[Node, ...] = () if loop is None else (Repeat(loop, 0, None),)
        into = [(pair[0], paths.pop(pair)) for pair in list(paths) if pair[1] == state]
        out_of = [(pair[1], paths.pop(pair)) for pair in list(paths) if pair[0] == state]
        for come, before in into:
            for go, after in out_of:
                made = Series((before, *between, after))
                known = paths.get((come, go))
                paths[come, go] = made if known is None else Choice((known, made))
        if sum(map(_size, paths.values())) > _MAX_LENGTH:
            return None
    whole = paths.get((start, end))
    return None if whole is None else f"^(?:{write_regex(whole)})$".replace("\\x{", "\\u{")


def _size(node: Node) -> int:
    match node:
        case Chars(chars):
            return 8 * len(chars)
        case Series(parts) | Choice(parts):
            return 4 + sum(map(_size, parts))
        case Repeat(body):
            return 6 + _size(body)
