"""From a configuration to an engine ready to be driven: model, tokenizer, grammar compiler and engine, joined.

Called by `process.py`'s hosts, in the process that will run the engine. torch is loaded here, and nowhere before.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.chain import DraftHead, DraftModel, Guessers
from branchpoint.runtime.drafting.cost import SIZES
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.loop import HostedEngine
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import ModelInfo
from branchpoint.runtime.progress import PROGRESS
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.step_timing import time_steps
from branchpoint.runtime.tokenizer import Tokenizer, load_tokenizer
from branchpoint.runtime.weights.resolve import locate

if TYPE_CHECKING:
    from branchpoint.runtime.loading import LoadedRunner
    from branchpoint.runtime.runner import TorchRunner
    from branchpoint.runtime.weights.loader import LoadedModel

__all__ = ["LoadedEngine", "build_engine", "tokenizer_of"]

_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, what a client must know of it, and the tokenizer that it was made with."""

    engine: HostedEngine
    info: ModelInfo
    tokenizer: Tokenizer
    compiler: GrammarCompiler | None = None
    model: "LoadedModel | None" = None

    def close(self) -> None:
        """End what works beside the engine; the engine itself is closed by its loop."""
        if self.compiler is not None:
            self.compiler.close()


def build_engine(config: EngineConfig, model: "LoadedModel | None" = None) -> LoadedEngine:
    """Load the model, or take that of another engine, and make its engine. Raises ModelError, CapacityError or InvalidRequest.

    Engines that share a model say the same: under `auto` weights, each load takes the forms that were fastest then.
    """
    locate(config.model)  # a model that isn't there is told before torch is loaded
    from branchpoint.runtime.loading import load_runner
    from branchpoint.runtime.lora.peft import read_adapter

    loaded = load_runner(config, model)
    runner, model = loaded.runner, loaded.model
    if config.drafters and config.draft_adaptive:
        PROGRESS.info("Timing steps, for the drafters to know what they cost.")
        for each in (runner, runner.head, loaded.draft_runner):
            if each is not None:
                each.step_seconds = time_steps(each, SIZES, config.max_sequences, each.num_pages)
    shape = model.config
    PROGRESS.info("Loading the tokenizer.")
    tokenizer = load_tokenizer(model.tokenizer_source, shape.vocabulary_size, shape.eos_token_ids)
    guessers = _guessers(loaded, tokenizer)
    compiler = GrammarCompiler(tokenizer.vocabulary, workers=config.grammar_workers)
    eos = frozenset(tokenizer.eos_token_ids)
    table = TokenTable(shape.vocabulary_size, eos, tokenizer.special_ids, tokenizer.token_bytes)
    read = partial(read_adapter, config=shape, max_rank=config.max_lora_rank) if config.takes_adapters else None
    adapters = Adapters(read, config.max_loras)
    for name, folder in config.adapters.items():
        PROGRESS.info("Reading the adapter %s.", ascii(name))
        adapters.load(name, folder)
    engine = Engine(
        config,
        runner,
        compiler,
        table,
        shape.context_length,
        host=runner.host,
        copy_cost=runner.copy_cost,
        guessers=guessers,
        adapters=adapters,
    )
    return LoadedEngine(engine, _info(model, runner, tokenizer), tokenizer, compiler, model)


def tokenizer_of(info: ModelInfo) -> Tokenizer:
    """The tokenizer of a model that runs in another process."""
    return load_tokenizer(Path(info.path) if info.path else None, info.vocabulary_size, info.eos_token_ids)


def _guessers(loaded: "LoadedRunner", tokenizer: Tokenizer) -> Guessers:
    """What the drafters `model` and `head` guess with. Raises ModelError where the draft model has another vocabulary."""
    from branchpoint.runtime.draft_model import check_vocabulary

    model = head = None
    if loaded.draft_model is not None and loaded.draft_runner is not None:
        source, shape = loaded.draft_model.tokenizer_source, loaded.draft_model.config
        check_vocabulary(load_tokenizer(source, shape.vocabulary_size, shape.eos_token_ids), tokenizer)
        model = DraftModel(loaded.draft_runner, shape.context_length)
    if loaded.runner.head is not None:
        head = DraftHead(loaded.runner.head, loaded.model.config.context_length, loaded.runner.head.scratch_pages)
    return Guessers(model, head)


def _info(model: "LoadedModel", runner: "TorchRunner", tokenizer: Tokenizer) -> ModelInfo:
    source = model.tokenizer_source
    return ModelInfo(
        name=model.name,
        path="" if source is None else str(source),
        architecture=model.config.architecture,
        vocabulary_size=model.config.vocabulary_size,
        context_length=model.config.context_length,
        num_pages=runner.num_pages,
        page_size=runner.page_size,
        eos_token_ids=tokenizer.eos_token_ids,
        sampling_defaults=_sampling_defaults(source),
        hidden_size=model.config.hidden_size,
    )


def _sampling_defaults(source: Path | None) -> dict[str, float | int]:
    """What the model's makers advise, from generation_config.json; empty where they say nothing, or nothing that can be used."""
    file = source / "generation_config.json" if source is not None and source.is_dir() else None
    if file is None or not file.is_file():
        return {}
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # advice only: a damaged one is none
        return {}
    found = {name: entries.get(name) for name in _DEFAULTS} if isinstance(entries, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and _is_usable(name, value)}


def _is_usable(name: str, value: float) -> bool:
    try:
        msgspec.convert({name: value}, SamplingParams)
    except msgspec.ValidationError:
        return False
    return True
