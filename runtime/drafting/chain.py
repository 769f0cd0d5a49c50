"""Builds what an engine drafts with: the drafters that its configuration names, in that order, and who decides over them.

Called once, when the engine is made; without drafters there is nothing, and drafting costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.config import DrafterName, EngineConfig
from branchpoint.runtime.drafting.cost import StepCost, TimedRunner
from branchpoint.runtime.drafting.drafter import Drafter
from branchpoint.runtime.drafting.drawn import DrawnDrafter, GuessSource
from branchpoint.runtime.drafting.grammar import GrammarDrafter
from branchpoint.runtime.drafting.head import HeadSource
from branchpoint.runtime.drafting.model import ModelSource
from branchpoint.runtime.drafting.ngram import NgramDrafter
from branchpoint.runtime.drafting.price import Price
from branchpoint.runtime.drafting.radix import RadixDrafter
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.suffix import SuffixDrafter
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.plan import Runner

__all__ = ["DraftHead", "DraftModel", "Guessers", "make_speculation"]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A small model of the same vocabulary, whose context holds `context_length` tokens."""

    runner: Runner
    context_length: int


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head that follows the model, whose context holds `context_length` tokens; the `spare` pages are for its guesses."""

    runner: Runner
    context_length: int
    spare: range


@dataclass(frozen=True, slots=True)
class Guessers:
    """What computes guesses, as far as a configuration names it."""

    model: DraftModel | None = None
    head: DraftHead | None = None


def make_speculation(
    config: EngineConfig, table: TokenTable, cache: KVCache, runner: Runner, guessers: Guessers | None = None
) -> Speculation | None:
    """The chain of `config.drafters`, None where there are none; what `runner` has measured says when they pay."""
    computed = guessers or Guessers()
    rejected = config.draft_verify == "rejection"

    def drawn(name: str, source: GuessSource) -> Drafter:
        return DrawnDrafter(name, source, table.size, table.eos, rejected=rejected)

    def model() -> Drafter:
        small = computed.model
        assert small is not None, "a configuration with the drafter `model` names a model"
        most, share = config.max_batch_tokens, config.radix_cache
        length = small.context_length
        source = ModelSource(small.runner, length, most, verifier=runner, share=share, own_noise=rejected)
        return drawn("model", source)

    def head() -> Drafter:
        learned = computed.head
        assert learned is not None, "a configuration with the drafter `head` names a head"
        return drawn("head", HeadSource(learned.runner, learned.context_length, learned.spare, own_noise=rejected))

    width = config.draft_branches
    makers: dict[DrafterName, Callable[[], Drafter]] = {
        "grammar": lambda: GrammarDrafter(table.size, table.bytes_of, width),
        "ngram": lambda: NgramDrafter(config.ngram_min, config.ngram_max, width),
        "suffix": lambda: SuffixDrafter(branches=width),
        "radix": lambda: RadixDrafter(cache.read_ahead, cache.read_forks, width),
        "model": model,
        "head": head,
    }
    if not config.drafters:
        return None
    cost = StepCost(_measured(runner))
    computing = {"model": computed.model, "head": computed.head}
    return Speculation(
        tuple(makers[name]() for name in config.drafters),
        most=config.draft_tokens,
        ends=table.eos,
        adaptive=config.draft_adaptive,
        replays="radix" in config.drafters and config.cpu_weights == "auto",
        cost=cost,
        prices={name: Price(StepCost(_measured(each.runner)), cost) for name, each in computing.items() if each is not None},
    )


def _measured(runner: Runner) -> Mapping[int, float] | None:
    """What its steps take, where it knows that."""
    return runner.step_seconds if isinstance(runner, TimedRunner) else None
