"""What cached prefixes say after one of them: the tokens that earlier runs put behind this very prefix.

Read only; asked by the drafter `radix`. Counts as no use of what it reads.
"""

from branchpoint.radix.branches import Branches
from branchpoint.radix.key import PrefixKey
from branchpoint.radix.node import Node

__all__ = ["continuation"]


def continuation(branches: Branches, key: PrefixKey, count: int) -> tuple[int, ...]:
    """Up to `count` tokens that are cached behind the whole of `key`; none where it isn't cached to its end.

    At each fork the branch that was used most often goes on, of equals the one used last; host memory is looked at too.
    """
    path, length = branches.walk(key, None)
    if length < len(key):
        return ()
    node = path[-1] if path else branches.roots.get(key.namespace)
    if node is None:
        return ()
    found = list(node.tokens[length - node.start : length - node.start + count]) if path else []
    while len(found) < count:
        below = [*node.children.values(), *node.cold.values()]
        if not below:
            break
        node = max(below, key=_weight)
        found += node.tokens[: count - len(found)]
    return tuple(found)


def _weight(node: Node) -> tuple[int, float]:
    return node.hits, node.last_used
