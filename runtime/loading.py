"""From a configuration to runners with their pools: the model's, and that of the draft model where there is one.

Called by `build`, before the engine is made; sizes what `capacity` measures, and on CUDA captures the graphs.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from branchpoint.runtime.attention import AttentionBackend, CpuAttention, kv_bytes_per_page
from branchpoint.runtime.capacity import host_slots, size_pool
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.draft_model import load_draft
from branchpoint.runtime.drafting.rejection import OddsSampler, RejectionSampler
from branchpoint.runtime.head_runner import HeadRunner
from branchpoint.runtime.lora.peft import largest_adapter
from branchpoint.runtime.lora.placed import PlacedAdapters
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.models.decoder import Decoder
from branchpoint.runtime.models.head import Head, load_eagle_head
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.progress import PROGRESS
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import MAX_LOGPROBS, SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import LoadedModel, load_model, pick_device

__all__ = ["LoadedRunner", "largest_plan", "load_runner", "make_runner"]

MOST_GRAPHED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A model and what runs it; the same of the model that guesses for it, where there is one."""

    runner: TorchRunner
    model: LoadedModel
    draft_runner: TorchRunner | None = None
    draft_model: LoadedModel | None = None


def largest_plan(most_tokens: int, context_length: int, most_sequences: int, page_size: int) -> StepPlan:
    """A step of as many tokens as there may be, with a row of logits for each sequence that could run, on pages from 0 on."""
    sampling = SamplingParams(logprobs=MAX_LOGPROBS)
    slots: list[Slot] = []
    pages = 0
    for left in range(most_tokens, 0, -context_length):
        count = min(left, context_length)
        needed = -(-count // page_size)
        rows = tuple(range(count - min(count, most_sequences if not slots else 0), count))
        sequence = Sequence("", 0, [0] * count, count, sampling, 0, pages=list(range(pages, pages + needed)))
        slots.append(Slot(sequence, 0, count, rows))
        pages += needed
        if len(slots) == most_sequences:
            break
    return StepPlan(tuple(slots))


def load_runner(config: EngineConfig, model: LoadedModel | None = None) -> LoadedRunner:
    """Load the models that `config` names and give each a KV pool; `model` is taken where it is loaded already. Raises
    ModelError, CapacityError or InvalidRequest.

    Loading runs in a thread of its own. OpenMP gives each thread that computes a team of workers for as long as it lives; where
    all teams together have more of them than there are cores, they sleep between two operations instead of spinning. The
    engine's thread would decode at half its speed for a team that this one no longer needs.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="branchpoint-load") as loading:
        return loading.submit(_load, config, model).result()


def _load(config: EngineConfig, model: LoadedModel | None) -> LoadedRunner:
    device = pick_device(config)
    if model is None:
        PROGRESS.info("Reading the weights of %s.", config.model)
        model = load_model(config, device)
    draft = None if config.draft_model is None else load_draft(config, config.draft_model, model, device)
    head = None if config.draft_head is None else load_eagle_head(config.draft_head, model.model, device, model.dtype)
    return make_runner(config, model, device, draft, head)


def make_runner(
    config: EngineConfig,
    model: LoadedModel,
    device: torch.device,
    draft: LoadedModel | None = None,
    head: Head | None = None,
) -> LoadedRunner:
    """Give loaded models their KV pools, and on CUDA their captured graphs. Raises CapacityError where memory is too small.

    The draft model's pool has as many pages as the model's: what the one can hold, the other can too. A head has its KV in the
    model's pages, and a hidden state beside each token's.
    """
    models = [model] if draft is None else [model, draft]
    if device.type == "cuda":
        PROGRESS.info("Compiling kernels.")
        _compile(config, models, device)
    activations = max(_activations(config, each, device) for each in models) if device.type == "cuda" else 0
    page_bytes = [kv_bytes_per_page(each.config, config.page_size, each.kv_dtype) for each in models]
    shape, beside, scratch = model.config, sum(page_bytes[1:]), 0
    if head is not None:
        shape = replace(shape, num_layers=shape.num_layers + head.num_layers)
        beside += config.page_size * shape.hidden_size * model.dtype.itemsize
        scratch = config.max_sequences * -(-config.draft_tokens // config.page_size)
        activations += scratch * kv_bytes_per_page(shape, config.page_size, model.kv_dtype)
    if config.takes_adapters:
        activations += config.max_loras * largest_adapter(model.config, config.max_lora_rank) * model.dtype.itemsize
    pool = size_pool(config, shape, model.kv_dtype, device, activations, beside)
    own, guessing = _samplers(config, shape.eos_token_ids, device)
    attention = _attention(config, replace(model, config=shape), pool.num_pages, device, scratch)
    runner = TorchRunner(model.model, attention, own, device)
    if config.takes_adapters:
        assert isinstance(model.model, Decoder), "only a draft model is anything else"
        runner.adapters = PlacedAdapters(model.model, config.max_loras, device)
    if head is not None:
        runner.head = HeadRunner(head, model.model, attention, guessing, device, model.dtype)
    small = None
    if draft is not None:
        small = TorchRunner(draft.model, _attention(config, draft, pool.num_pages, device), guessing, device)
    if device.type == "cuda":
        PROGRESS.info("Capturing graphs of steps.")
        for each in (runner, small) if small is not None else (runner,):
            each.capture_steps(min(config.max_batch_tokens, MOST_GRAPHED_TOKENS), config.max_sequences)
    num_slots = host_slots(config, kv_bytes_per_page(shape, config.page_size, model.kv_dtype))
    if num_slots:
        runner.give_host_memory(num_slots)
    return LoadedRunner(runner, model, small, draft)


def _compile(config: EngineConfig, models: list[LoadedModel], device: torch.device) -> None:
    """Have all kernels compiled that engines with these models launch, in threads, before the first is needed."""
    from branchpoint.kernels.compiling import compile_launches  # loads triton

    def launch() -> None:
        for each in models:
            attention = _attention(config, each, 1, device)
            sampler, _ = _samplers(config, each.config.eos_token_ids, device)
            TorchRunner(each.model, attention, sampler, device).warm_up()

    compile_launches(launch, device, usable_cores())


def _activations(config: EngineConfig, loaded: LoadedModel, device: torch.device) -> int:
    """Bytes that the largest step takes on a GPU beside weights and KV, by running it once; what it took is given back."""
    plan = largest_plan(config.max_batch_tokens, loaded.config.context_length, config.max_sequences, config.page_size)
    attention = _attention(
        config, loaded, num_pages=1 + max(page for slot in plan.slots for page in slot.sequence.pages), device=device
    )
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    sampler, _ = _samplers(config, loaded.config.eos_token_ids, device)
    TorchRunner(loaded.model, attention, sampler, device).execute(plan, lambda: None)
    taken = torch.cuda.max_memory_allocated(device) - before
    del attention
    torch.cuda.empty_cache()
    return taken


def _attention(
    config: EngineConfig, loaded: LoadedModel, num_pages: int, device: torch.device, num_scratch: int = 0
) -> AttentionBackend:
    """The attention backend of a device with its pool."""
    if device.type != "cuda":
        shape, share = loaded.config, config.shared_attention
        return CpuAttention(shape, num_pages, config.page_size, loaded.kv_dtype, device, share=share, num_scratch=num_scratch)
    from branchpoint.runtime.tiled_attention import TiledAttention  # loads triton

    attention = TiledAttention(
        loaded.config,
        num_pages,
        config.page_size,
        loaded.kv_dtype,
        device,
        query_dtype=loaded.dtype,
        max_sequences=config.max_sequences,
        share=config.shared_attention,
        num_scratch=num_scratch,
    )
    attention.warm_up(trees=bool(config.drafters) and config.draft_branches > 1)
    return attention


def _samplers(config: EngineConfig, eos: tuple[int, ...], device: torch.device) -> tuple[Sampler, Sampler]:
    """The samplers of a model with these end tokens, and of its draft model."""
    if config.draft_verify == "rejection":
        return RejectionSampler(eos), OddsSampler(eos)
    if device.type != "cuda":
        return Sampler(eos), Sampler(eos)
    from branchpoint.runtime.device_sampler import DeviceSampler  # loads triton

    return DeviceSampler(eos), DeviceSampler(eos)
