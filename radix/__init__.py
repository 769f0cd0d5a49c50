"""Which pages hold which prefix. Standard library only; knows tokens and pages, no model and no request.

`BlockPool` counts references to pages. `PrefixKey` names a prefix: namespace and tokens. `RadixTree.match` finds the longest
cached prefix and answers with a `Handle`, which holds its pages until released; `insert` keeps a finished sequence's pages;
`evict` gives pages back, least recently used first. `pin`, `expect` and `last_use` say what comes next. With a `HostTier` evicted
pages stay known in host memory: `Handle.host` tells which, `restore` plans to bring them back, `take_swaps` hands out the copies.
`check_balance` holds pool, tree and running sequences against each other. `find_lost_reuse` tells why prompts don't share more.
"""

from branchpoint.radix.check import check_balance
from branchpoint.radix.diagnosis import LostReuse, find_lost_reuse
from branchpoint.radix.handle import Handle, HostStretch
from branchpoint.radix.hints import Standing
from branchpoint.radix.host import CopyCost, HostTier, Swap
from branchpoint.radix.key import PrefixKey
from branchpoint.radix.picture import DumpOptions, NodeDump, TreeDump
from branchpoint.radix.pool import BlockPool, OutOfPages
from branchpoint.radix.tree import RadixTree

__all__ = [
    "BlockPool",
    "CopyCost",
    "DumpOptions",
    "Handle",
    "HostStretch",
    "HostTier",
    "LostReuse",
    "NodeDump",
    "OutOfPages",
    "PrefixKey",
    "RadixTree",
    "Standing",
    "Swap",
    "TreeDump",
    "check_balance",
    "find_lost_reuse",
]
