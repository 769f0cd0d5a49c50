"""Builds what an engine drafts with: the drafters that its configuration names, in that order, and who decides over them.

Called once, when the engine is made; without drafters there is nothing, and drafting costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.config import DrafterName, EngineConfig
from branchpoint.runtime.drafting.drafter import Drafter
from branchpoint.runtime.drafting.drawn import DrawnDrafter
from branchpoint.runtime.drafting.grammar import GrammarDrafter
from branchpoint.runtime.drafting.model import ModelSource
from branchpoint.runtime.drafting.ngram import NgramDrafter
from branchpoint.runtime.drafting.radix import RadixDrafter
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.suffix import SuffixDrafter
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.plan import Runner

__all__ = ["DraftModel", "make_speculation"]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A small model of the same vocabulary, whose context holds `context_length` tokens."""

    runner: Runner
    context_length: int


def make_speculation(
    config: EngineConfig, table: TokenTable, cache: KVCache, draft_model: DraftModel | None = None
) -> Speculation | None:
    """The chain of `config.drafters`, None where there are none."""

    rejected = config.draft_verify == "rejection"

    def model() -> Drafter:
        assert draft_model is not None, "a configuration with the drafter `model` names a model"
        source = ModelSource(
            draft_model.runner,
            draft_model.context_length,
            config.max_batch_tokens,
            share=config.radix_cache,
            own_noise=rejected,
        )
        return DrawnDrafter("model", source, table.size, table.eos, rejected=rejected)

    makers: dict[DrafterName, Callable[[], Drafter]] = {
        "grammar": lambda: GrammarDrafter(table.size, table.bytes_of),
        "ngram": lambda: NgramDrafter(config.ngram_min, config.ngram_max),
        "suffix": SuffixDrafter,
        "radix": lambda: RadixDrafter(cache.read_ahead),
        "model": model,
    }
    if not config.drafters:
        return None
    chain = tuple(makers[name]() for name in config.drafters)
    return Speculation(chain, most=config.draft_tokens, ends=table.eos, adaptive=config.draft_adaptive)
