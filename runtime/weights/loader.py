"""Loads what `EngineConfig.model` names: finds it, opens its checkpoint, chooses how linears are held, builds the model.

The engine's first step; the runner takes the model, the tokenizer its source.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.layers.linear import LinearMethod, Plain
from branchpoint.runtime.machine import available_memory, use_threads
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.decoder import load_decoder
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.quant.bfloat16 import bfloat16_fast
from branchpoint.runtime.quant.int4 import Int4
from branchpoint.runtime.quant.int8 import Int8
from branchpoint.runtime.quant.measured import Measured
from branchpoint.runtime.weights.checkpoint import Checkpoint
from branchpoint.runtime.weights.dummy import DummyCheckpoint, dummy_config
from branchpoint.runtime.weights.gguf import GgufCheckpoint
from branchpoint.runtime.weights.resolve import Location, locate
from branchpoint.runtime.weights.safetensors import SafetensorsCheckpoint

__all__ = ["LoadedModel", "load_model", "model_shape", "pick_device"]

_FOUR_BIT_FORMS = ("float32", "bfloat16", "int4", "int8")
_FORMS_WITHIN = {
    "Q4_0": _FOUR_BIT_FORMS,
    "Q4_1": _FOUR_BIT_FORMS,
    "Q4_K": _FOUR_BIT_FORMS,
    "Q5_K": ("float32", "bfloat16"),
    "Q6_K": ("float32", "bfloat16"),
    "Q8_0": ("float32", "bfloat16"),
}
_DENSE_FORMS = ("float32", "bfloat16")
_DENSE_SHARE = 0.3  # of the memory that is free: what float copies beside the packed weights may take
_TABLE_SHARE = 0.05  # of the memory that is free: cos and sin of every position
_FLOAT32_BYTES = 4
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `tokenizer_source` is its folder or GGUF file; None for dummy weights, which have no vocabulary.

    `dtype` is that of hidden states, `kv_dtype` that of cached keys and values.
    """

    model: Model
    config: ModelConfig
    tokenizer_source: Path | None
    name: str
    dtype: torch.dtype
    kv_dtype: torch.dtype


def pick_device(config: EngineConfig) -> torch.device:
    """The device asked for; `auto` takes CUDA where there is one. Raises InvalidRequest where CUDA is asked for and missing."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise InvalidRequest("device is 'cuda', but torch finds no CUDA device here; use 'cpu' or 'auto'.", param="device")
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def model_shape(config: EngineConfig) -> ModelConfig:
    """The shape of the model that `config` names, without its weights. Raises ModelError or InvalidRequest."""
    return _limited(_open(locate(config.model), 0).config, config.context_length)


def load_model(config: EngineConfig, device: torch.device) -> LoadedModel:
    """Load the model and, on the CPU, set torch's threads. Raises ModelError, or InvalidRequest naming an option at fault."""
    if device.type == "cpu":
        use_threads(config.threads)
    location = locate(config.model)
    checkpoint = _open(location, config.seed or 0)
    shape = _limited(checkpoint.config, config.context_length)
    dtype = _dtype(config, device, checkpoint)
    with torch.inference_mode():
        method = _method(config, device, dtype, checkpoint)
        model = load_decoder(checkpoint, shape, method, device, dtype, Shard())
    return LoadedModel(
        model, shape, location.path, config.served_name or location.name, dtype, _kv_dtype(config, device, method, dtype)
    )


def _open(location: Location, seed: int) -> GgufCheckpoint | SafetensorsCheckpoint | DummyCheckpoint:
    if location.dummy is not None:
        return DummyCheckpoint(dummy_config(location.dummy), seed)
    assert location.path is not None, "a location is dummy or has a path"
    return SafetensorsCheckpoint(location.path) if location.path.is_dir() else GgufCheckpoint(location.path)


def _limited(shape: ModelConfig, context_length: int | None) -> ModelConfig:
    """The shape with the context cut to what was asked for.

    Raises InvalidRequest for more than the model has, ModelError where the table of rotary positions alone takes too much memory.
    """
    if context_length is not None and context_length > shape.context_length:
        raise InvalidRequest(
            f"context_length must be at most the model's {shape.context_length}, got {context_length}.", param="context_length"
        )
    asked = context_length or shape.context_length
    table = 2 * asked * shape.head_dim * _FLOAT32_BYTES
    if table > available_memory() * _TABLE_SHARE:
        raise ModelError(
            f"A context of {asked} tokens needs {table / 2**30:.1f} GiB for its table of positions alone, more than "
            f"{_TABLE_SHARE:.0%} of the memory that is free; set context_length to what is needed."
        )
    return replace(shape, context_length=asked)


def _dtype(config: EngineConfig, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """The dtype of hidden states: as asked; `auto` is float32 on the CPU, the checkpoint's own (bfloat16 for blocks) on CUDA."""
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type == "cpu":
        return torch.float32
    embedding = checkpoint.find("model.embed_tokens.weight")
    kinds = {"F32": torch.float32, "F16": torch.float16}
    return kinds.get(embedding.kind, torch.bfloat16) if embedding is not None else torch.bfloat16


def _method(config: EngineConfig, device: torch.device, dtype: torch.dtype, checkpoint: Checkpoint) -> LinearMethod:
    """How linears are held. Raises InvalidRequest where `cpu_weights` and the device or dtype contradict each other."""
    asked = config.cpu_weights
    if asked != "auto" and (device.type != "cpu" or dtype != torch.float32):
        raise InvalidRequest(
            f"cpu_weights {asked!r} is for the CPU with dtype float32, got {device.type} with {dtype}; leave one at 'auto'.",
            param="cpu_weights",
        )
    if asked == "int8":
        return Int8()
    if asked == "int4":
        return Int4()
    forms = _forms_within(checkpoint) if asked == "auto" and device.type == "cpu" and dtype == torch.float32 else ()
    return Measured(forms) if forms else Plain(device, dtype)


def _kv_dtype(config: EngineConfig, device: torch.device, method: LinearMethod, dtype: torch.dtype) -> torch.dtype:
    """The dtype of cached keys and values, as asked; `auto` is the model's, or bfloat16 beside four-bit or int8 weights, whose
    error is some ten times its own.

    It halves what each step reads; where the CPU has no instructions for bfloat16, converting it back would cost more than that.
    """
    asked = config.kv_cache_dtype
    if asked == "fp8" and device.type != "cuda":
        raise InvalidRequest("kv_cache_dtype 'fp8' needs a GPU; leave it at 'auto' on a CPU.", param="kv_cache_dtype")
    if device.type == "cuda" and asked not in ("auto", "fp8", str(dtype).removeprefix("torch.")):
        raise InvalidRequest(
            f"On a GPU kv_cache_dtype must be auto, fp8 or the model's dtype, {dtype}; got {asked!r}.", param="kv_cache_dtype"
        )
    if asked != "auto":
        return _DTYPES[asked]
    coarse = method.is_coarse if isinstance(method, Measured) else isinstance(method, Int4 | Int8)
    return torch.bfloat16 if coarse and dtype == torch.float32 and bfloat16_fast() else dtype


def _forms_within(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The forms whose error stays within the rounding of a block-quantised file; none for float checkpoints.

    What the file is quantised to is read off a gate projection: mixtures keep other matrices at more bits.
    """
    stored = checkpoint.find("model.layers.0.mlp.gate_proj.weight")
    kind = stored.kind if stored is not None else ""
    forms = _FORMS_WITHIN.get(kind, ())
    affordable = checkpoint.config.num_parameters * _FLOAT32_BYTES <= available_memory() * _DENSE_SHARE
    return forms if affordable else tuple(form for form in forms if form not in _DENSE_FORMS) or forms
