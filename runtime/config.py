"""How an engine is set up: one frozen object, from command line or keyword arguments down to every part that needs it.

The descriptions of the fields are the command line's help too.
"""

import math
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.lora.adapter import check_name

__all__ = ["CpuWeights", "DrafterName", "EngineConfig", "KvCacheDtype", "Policy"]

CpuWeights = Literal["auto", "float32", "int8", "int4"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
KvCacheDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
Policy = Literal["fcfs", "lpm", "program"]
Verify = Literal["exact", "rejection"]
DrafterName = Literal["grammar", "ngram", "suffix", "radix", "model", "head"]

_LONGEST_NAME = 256
_BOUNDS = {
    "page_size": (1, 128),
    "max_batch_tokens": (1, 2**20),
    "max_sequences": (1, 2**16),
    "max_queued": (1, 2**24),
    "grammar_workers": (1, 256),
    "draft_tokens": (1, 64),
    "draft_branches": (1, 16),
    "ngram_min": (1, 64),
    "ngram_max": (1, 64),
    "seed": (-(2**63), 2**64 - 1),
    "max_loras": (1, 1024),
    "max_lora_rank": (1, 2**16),
}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an engine. Sizes in tokens unless said otherwise.

    `model` is a Hugging Face folder, a GGUF file, the name of an installed demo model (`smollm2`), or `dummy:ARCH`.
    `kv_memory_gib=None` sizes the pool from the memory that is free. Raises InvalidRequest naming the option.
    """

    model: Annotated[str, Meta(description="Hugging Face folder, GGUF file, `smollm2`, or `dummy:ARCH`.")]
    served_name: Annotated[str | None, Meta(description="The model's name to clients.")] = None
    dtype: Annotated[Dtype, Meta(description="Type of weights and activations.")] = "auto"
    device: Annotated[Device, Meta(description="Where the model runs.")] = "auto"
    cpu_weights: Annotated[CpuWeights, Meta(description="Form of the linear layers' weights on a CPU.")] = "auto"
    threads: Annotated[
        int | None, Meta(description="CPU threads; where left out, the cores this process may use (a container's share).")
    ] = None
    context_length: Annotated[
        int | None, Meta(description="Longest prompt and output together; the model's own where left out.")
    ] = None
    page_size: Annotated[int, Meta(description="Tokens in a page of KV, 1 to 128.")] = 16
    num_pages: Annotated[int | None, Meta(description="Pages of KV; sized from memory where left out.")] = None
    kv_memory_gib: Annotated[float | None, Meta(description="Memory for KV in GiB; what is free where left out.")] = None
    gpu_memory_utilization: Annotated[
        float, Meta(description="Share of a GPU's memory that weights, activations and KV may take together.")
    ] = 0.9
    kv_cache_dtype: Annotated[
        KvCacheDtype, Meta(description="Type of cached keys and values; fp8 (e4m3) is for GPUs, auto follows the model.")
    ] = "auto"
    host_kv_memory_gib: Annotated[
        float, Meta(description="Host memory in GiB for KV that has to leave the device; 0 for none.")
    ] = 0.0
    max_batch_tokens: Annotated[int, Meta(description="Tokens that one step computes at most; others wait for it.")] = 512
    max_step_seconds: Annotated[
        float, Meta(description="Seconds that prompts, as measured, may make a step last beside running streams; 0 for any.")
    ] = 0.5
    max_sequences: Annotated[int, Meta(description="Sequences that run at once.")] = 128
    max_queued: Annotated[int, Meta(description="Requests that may wait; more are answered 429.")] = 4096
    policy: Annotated[Policy, Meta(description="Who is admitted next.")] = "program"
    radix_cache: Annotated[bool, Meta(description="Reuse the KV of shared prefixes.")] = True
    await_prefixes: Annotated[bool, Meta(description="Let calls wait for a prefix that another one is computing.")] = True
    shared_attention: Annotated[bool, Meta(description="Read KV that sequences of a step share once for all of them.")] = True
    grammar_workers: Annotated[int, Meta(description="Workers that compile grammars.")] = 2
    drafters: Annotated[
        tuple[DrafterName, ...],
        Meta(description="Who guesses tokens ahead: grammar, radix, suffix, ngram, model, head; the first given is asked first."),
    ] = ()
    draft_model: Annotated[
        str | None, Meta(description="A small model of the same vocabulary, for the drafter `model`; named as the model is.")
    ] = None
    draft_tokens: Annotated[int, Meta(description="Guesses that a step verifies for one sequence at most.")] = 6
    draft_branches: Annotated[
        int, Meta(description="Tokens that grammar, radix, suffix and ngram may guess for one place, all verified in one pass.")
    ] = 1
    draft_adaptive: Annotated[bool, Meta(description="Guess less where it doesn't pay, as measured, down to nothing.")] = True
    draft_head: Annotated[
        str | None, Meta(description="Folder of an EAGLE head that was trained for the model, for the drafter `head`.")
    ] = None
    draft_verify: Annotated[
        Verify,
        Meta(description="`exact` keeps the text; `rejection` keeps its distribution only, and accepts more of what is drawn."),
    ] = "exact"
    ngram_min: Annotated[int, Meta(description="Shortest tail that the drafter `ngram` looks up, in tokens.")] = 2
    ngram_max: Annotated[int, Meta(description="Longest tail that the drafter `ngram` looks up, in tokens.")] = 4
    seed: Annotated[int | None, Meta(description="Seed of requests that bring none; random where left out.")] = None
    adapters: Annotated[
        dict[str, str], Meta(description="LoRA adapters as NAME=FOLDER, in PEFT's safetensors form; each is served as a model.")
    ] = {}
    enable_lora: Annotated[bool, Meta(description="Let adapters be loaded while it runs, where none is named at the start.")] = (
        False
    )
    max_loras: Annotated[
        int, Meta(description="Adapters that have their weights on the device, and that one step computes with.")
    ] = 8
    max_lora_rank: Annotated[int, Meta(description="Highest rank of an adapter.")] = 64

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"{name} must be in [{low}, {high}], got {value!r:.40}.", param=name)
        for name in ("threads", "context_length", "num_pages", "kv_memory_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidRequest(
                    f"{name} must be above 0 and finite, got {value!r:.40}; leave it out to let the engine choose.", param=name
                )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest(
                f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization!r:.40}.",
                param="gpu_memory_utilization",
            )
        for name in ("host_kv_memory_gib", "max_step_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidRequest(f"{name} must be finite and at least 0, got {value!r:.40}.", param=name)
        self._check_drafting()
        for name in self.adapters:
            check_name(name)
        if self.num_pages is not None and self.kv_memory_gib is not None:
            raise InvalidRequest("num_pages and kv_memory_gib both size the KV pool; give one of them.", param="kv_memory_gib")
        if self.served_name is not None and not (self.served_name.isprintable() and 0 < len(self.served_name) <= _LONGEST_NAME):
            raise InvalidRequest(
                f"served_name must have 1 to {_LONGEST_NAME} printable characters, got {self.served_name!r:.40}.",
                param="served_name",
            )

    @property
    def takes_adapters(self) -> bool:
        """Whether calls may name adapters."""
        return self.enable_lora or bool(self.adapters)

    def _check_drafting(self) -> None:
        known = get_args(DrafterName)
        for name in self.drafters:
            if name not in known or self.drafters.count(name) > 1:
                raise InvalidRequest(
                    f"drafters must be different ones of {', '.join(known)}, got {', '.join(map(str, self.drafters))!r:.80}.",
                    param="drafters",
                )
        for name, option in (("model", self.draft_model), ("head", self.draft_head)):
            if (option is None) == (name in self.drafters):
                raise InvalidRequest(
                    f"The drafter {name!r} guesses with what draft_{name} names, and nobody else does: give both or neither.",
                    param=f"draft_{name}",
                )
        if self.draft_branches > 1 and "head" in self.drafters:
            raise InvalidRequest(
                f"draft_branches must be 1 beside the drafter 'head', which follows one line of text, got {self.draft_branches}.",
                param="draft_branches",
            )
        if self.draft_verify == "rejection" and not {"model", "head"}.intersection(self.drafters):
            raise InvalidRequest(
                "draft_verify 'rejection' is a rule for guesses that are drawn: it needs the drafter 'model' or 'head'.",
                param="draft_verify",
            )
        if self.ngram_min > self.ngram_max:
            raise InvalidRequest(
                f"ngram_min must be at most ngram_max={self.ngram_max}, got {self.ngram_min}.", param="ngram_min"
            )
