"""The best that any prefix cache could do: every token of every prompt seen so far, each once. Used to judge achieved hit rates.

Independent of `branchpoint.radix`: no pages, no eviction, no limits.
"""

from collections.abc import Sequence

__all__ = ["TokenTrie"]

Edge = tuple[int, ...]


class TokenTrie:
    """Token sequences with shared prefixes stored once. `num_tokens` are the distinct (prefix, token) pairs."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._root: dict[int, _Node] = {}

    def add(self, tokens: Sequence[int]) -> int:
        """Remember `tokens`; returns how many of them, from the first on, were known already."""
        tokens = tuple(tokens)
        at, children = 0, self._root
        while at < len(tokens):
            node = children.get(tokens[at])
            if node is None:
                children[tokens[at]] = _Node(tokens[at:])
                self.num_tokens += len(tokens) - at
                return at
            shared = _common(node.edge, tokens, at)
            at += shared
            if shared < len(node.edge):
                node.split(shared)
            children = node.children
        return at


class _Node:
    __slots__ = ("children", "edge")

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.children: dict[int, _Node] = {}

    def split(self, offset: int) -> None:
        lower = _Node(self.edge[offset:])
        lower.children = self.children
        self.edge, self.children = self.edge[:offset], {lower.edge[0]: lower}


def _common(edge: Edge, tokens: Edge, start: int) -> int:
    """How many tokens of `edge` are those of `tokens` from `start` on."""
    low, high = 0, min(len(edge), len(tokens) - start)
    if edge[:high] == tokens[start : start + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if edge[low:middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
