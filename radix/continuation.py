"""What cached prefixes say after one of them: the tokens that earlier runs put behind this very prefix.

Read only; asked by the drafter `radix`. Counts as no use of what it reads.
"""

from collections.abc import Iterator

from branchpoint.radix.branches import Branches
from branchpoint.radix.key import PrefixKey
from branchpoint.radix.node import Node

__all__ = ["continuation", "forks"]


def continuation(branches: Branches, key: PrefixKey, count: int) -> tuple[int, ...]:
    """Up to `count` tokens that are cached behind the whole of `key`; none where it isn't cached to its end.

    At each fork the branch that was used most often goes on, of equals the one used last; host memory is looked at too.
    """
    found: list[int] = []
    for tokens, _ in _way(branches, key):
        found += tokens[: count - len(found)]
        if len(found) == count:
            break
    return tuple(found)


def forks(branches: Branches, key: PrefixKey, count: int, width: int, reach: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """What `continuation` leaves aside: behind how many of its tokens there are other branches, and up to `reach` tokens of each.

    Of each fork at most `width` are told, those that were used most often first.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    at = 0
    for tokens, beside in _way(branches, key):
        if at >= count:
            break
        for node in beside[:width]:
            way: list[int] = []
            for more in _down(node):
                way += more.tokens[: reach - len(way)]
                if len(way) == reach:
                    break
            found.append((at, tuple(way)))
        at += len(tokens)
    return tuple(found)


def _way(branches: Branches, key: PrefixKey) -> Iterator[tuple[list[int], list[Node]]]:
    """Stretches of tokens behind `key`, on the likeliest branch, each with the other branches at its beginning."""
    path, length = branches.walk(key, None)
    node = path[-1] if path else branches.roots.get(key.namespace)
    if length < len(key) or node is None:
        return
    if path and length < node.end:
        yield list(node.tokens[length - node.start :]), []
    while below := _below(node):
        node, *beside = below
        yield list(node.tokens), beside


def _down(node: Node) -> Iterator[Node]:
    """`node` and the likeliest nodes below it."""
    yield node
    while below := _below(node):
        node = below[0]
        yield node


def _below(node: Node) -> list[Node]:
    """The branches behind a node, those that were used most often first, of equals the one used last."""
    below = [*node.children.values(), *node.cold.values()]
    return sorted(below, key=lambda each: (each.hits, each.last_used), reverse=True) if len(below) > 1 else below
