"""Builds what an engine drafts with: the drafters that its configuration names, in that order, and who decides over them.

Called once, when the engine is made; without drafters there is nothing, and drafting costs nothing.
"""

from collections.abc import Callable

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.config import DrafterName, EngineConfig
from branchpoint.runtime.drafting.drafter import Drafter
from branchpoint.runtime.drafting.grammar import GrammarDrafter
from branchpoint.runtime.drafting.ngram import NgramDrafter
from branchpoint.runtime.drafting.radix import RadixDrafter
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.suffix import SuffixDrafter
from branchpoint.runtime.generation import TokenTable

__all__ = ["make_speculation"]


def make_speculation(config: EngineConfig, table: TokenTable, cache: KVCache) -> Speculation | None:
    """The chain of `config.drafters`, None where there are none."""
    makers: dict[DrafterName, Callable[[], Drafter]] = {
        "grammar": lambda: GrammarDrafter(table.size, table.bytes_of),
        "ngram": lambda: NgramDrafter(config.ngram_min, config.ngram_max),
        "suffix": SuffixDrafter,
        "radix": lambda: RadixDrafter(cache.read_ahead),
    }
    if not config.drafters:
        return None
    chain = tuple(makers[name]() for name in config.drafters)
    return Speculation(chain, most=config.draft_tokens, ends=table.eos, adaptive=config.draft_adaptive)
