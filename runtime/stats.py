"""What an engine can say of itself at any moment; read by metrics, reports and tests."""

import msgspec

from branchpoint.radix import LostReuse, TreeDump
from branchpoint.runtime.messages import DrafterStats, Usage

__all__ = ["AdapterUse", "CacheDump", "EngineStats", "GrammarCounts"]


class GrammarCounts(msgspec.Struct, frozen=True):
    """Calls' grammars since the start: `hits` were there when the call came, `compiled` had to be waited for."""

    hits: int = 0
    compiled: int = 0
    refused: int = 0


class AdapterUse(msgspec.Struct, frozen=True):
    """The names of adapters that sequences run or wait with, in order; at most `most` run at once."""

    most: int
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot. Sequences by where they stand, pages by who has them, and totals since the start.

    `pages_free + pages_cached + pages_held` are all pages; `pages_cached` are those that the tree alone has. `totals` sums the
    usage of all calls, those under way and those that failed included. `computed_tokens` counts the forward passes' tokens,
    drafts included; `drafters` tell of each drafter of the chain, `adapters` of those in use where the engine takes any.
    """

    running: int
    waiting: int
    compiling: int
    pages_free: int
    pages_cached: int
    pages_held: int
    steps: int
    computed_tokens: int
    completed_calls: int
    failed_calls: int
    totals: Usage
    grammars: GrammarCounts = GrammarCounts()
    drafters: tuple[DrafterStats, ...] = ()
    adapters: AdapterUse | None = None


class CacheDump(msgspec.Struct, frozen=True):
    """What the radix tree holds (of each node the first tokens, without text), and why prompts of late don't share more."""

    tree: TreeDump
    lost: tuple[LostReuse, ...] = ()
