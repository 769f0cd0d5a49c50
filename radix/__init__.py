"""Which pages hold which prefix. Standard library only; knows tokens and pages, no model and no request.

`BlockPool` counts references to pages. `PrefixKey` names a prefix: namespace and tokens. `RadixTree.match` finds the longest
cached prefix and answers with a `Handle`, which holds its pages until released; `insert` keeps a finished sequence's pages;
`evict` gives pages back, least recently used first. `check_balance` holds pool, tree and running sequences against each other.
"""

from branchpoint.radix.check import check_balance
from branchpoint.radix.handle import Handle
from branchpoint.radix.key import PrefixKey
from branchpoint.radix.pool import BlockPool, OutOfPages
from branchpoint.radix.tree import RadixTree

__all__ = ["BlockPool", "Handle", "OutOfPages", "PrefixKey", "RadixTree", "check_balance"]
