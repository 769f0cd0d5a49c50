"""Reads an adapter out of a folder that PEFT saved: adapter_config.json and adapter_model.safetensors, nothing else.

What would need other arithmetic than W x + scale B (A x) is refused by name, as is every tensor that doesn't fit the model.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.lora.adapter import CONFIG, WEIGHTS, Adapter
from branchpoint.runtime.lora.files import read_file, shown
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.linears import layer_linears

__all__ = ["LoraAdapter", "LoraPair", "largest_adapter", "read_adapter"]

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_HEADER_BYTES = 2**24  # more than names and shapes of any adapter's tensors take
_CONFIG_BYTES = 2**20
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?model\.layers\.(\d{1,6})\.(\w+)\.(\w+)\.lora_([AB])(?:\.default)?\.weight", re.ASCII
)
_MOST_ALPHA = 1e6
_SHOWN = 3

_READ = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights"})
_INERT = frozenset({"task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"})
_INERT |= {"exclude_modules", "lora_dropout", "layers_to_transform", "layers_pattern", "megatron_core", "loftq_config"}
_INERT |= {"eva_config", "qalora_group_size", "runtime_config"}
"""Fields that tell of the training, or what the tensors tell themselves."""
_NEUTRAL: tuple[object, ...] = (None, False, "none", {}, [])
"""Values with which any other field asks for nothing."""
_OTHER_BASE = ("pissa", "olora", "corda", "loftq", "mica", "lora_ga")
"""Ways to begin a training that change the model's own weights too: what was trained fits only those."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The matrices of one of the model's [N, K]: `down` [r, K] and `up` [N, r], as they are stored."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter(Adapter):
    """An adapter in host memory: its matrices by layer and name, q_proj say; their product counts `scale` times."""

    scale: float
    pairs: dict[tuple[int, str], LoraPair]


def largest_adapter(config: ModelConfig, rank: int) -> int:
    """Numbers in an adapter of this rank for all matrices of a model of this shape."""
    sizes = [(size, linear.inputs) for linear in layer_linears(config).values() for size in linear.outputs.values()]
    return config.num_layers * rank * sum(size + inputs for size, inputs in sizes)


def read_adapter(name: str, folder: str, config: ModelConfig, max_rank: int, *, within: tuple[str, ...] = ()) -> LoraAdapter:
    """The adapter in `folder` for a model of this shape, of `max_rank` at most; nothing is read from outside of `within`, where
    that names folders. Raises ModelError telling what doesn't fit.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ModelError(f"{folder!r:.200} must be a folder with {CONFIG} and {WEIGHTS}, as PEFT saves an adapter.")
    rank, scale = _read_config(read_file(path / CONFIG, _CONFIG_BYTES, within), shown(path / CONFIG), max_rank)
    most = largest_adapter(config, max_rank) * max(_DTYPE_BYTES.values()) + _HEADER_BYTES
    data, where = read_file(path / WEIGHTS, most, within), shown(path / WEIGHTS)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that torch has no name for
        raise ModelError(f"{where} can't be read, it may be truncated or corrupt: {error!r:.200}.") from error
    pairs = _pairs(tensors, config, rank, where)
    digest = hashlib.sha256(f"{scale!r} ".encode() + data).hexdigest()[:16]
    return LoraAdapter(name, digest, scale, pairs)


def _read_config(told: bytes, where: str, max_rank: int) -> tuple[int, float]:
    """Rank and scale. Raises ModelError for what asks for other arithmetic."""
    try:
        fields = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} must hold a JSON object: {error}.") from error
    if not isinstance(fields, dict) or fields.get("peft_type") != "LORA":
        kind = fields.get("peft_type") if isinstance(fields, dict) else None
        raise ModelError(f"{where}: peft_type must be LORA, got {kind!r:.40}.")
    for name, value in fields.items():
        if name not in _READ and name not in _INERT and value not in _NEUTRAL:
            raise ModelError(f"{where}: {name!r:.60} = {value!r:.80} is not implemented; only plain LoRA matrices are served.")
    begun = fields.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_OTHER_BASE):
        raise ModelError(
            f"{where}: with init_lora_weights {begun!r:.40} the model's own weights were changed too; "
            "save it as a plain LoRA (PEFT's path_initial_model_for_weight_conversion)."
        )
    rank, alpha, rooted = fields.get("r"), fields.get("lora_alpha"), fields.get("use_rslora", False)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= max_rank:
        raise ModelError(f"{where}: r must be a whole number in [1, max_lora_rank={max_rank}], got {rank!r:.40}.")
    if (
        isinstance(alpha, bool)
        or not isinstance(alpha, int | float)
        or not abs(alpha) <= _MOST_ALPHA
        or not isinstance(rooted, bool)
    ):
        raise ModelError(
            f"{where}: lora_alpha must be a number of at most {_MOST_ALPHA:g} and use_rslora a truth value, "
            f"got {alpha!r:.40} and {rooted!r:.40}."
        )
    return rank, float(alpha / (math.sqrt(rank) if rooted else rank))


def _pairs(tensors: dict[str, Tensor], config: ModelConfig, rank: int, where: str) -> dict[tuple[int, str], LoraPair]:
    """The tensors, two and two. Raises ModelError where one is none of the model's, is alone, or has another shape."""
    linears = layer_linears(config).values()
    shapes = {(shape.module, name): (size, shape.inputs) for shape in linears for name, size in shape.outputs.items()}
    found: dict[tuple[int, str], dict[str, Tensor]] = {}
    foreign = []
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        shape = shapes.get((match[2], match[3])) if match else None
        if match is None or shape is None or int(match[1]) >= config.num_layers:
            foreign.append(name)
            continue
        expected = (rank, shape[1]) if match[4] == "A" else (shape[0], rank)
        if tuple(tensor.shape) != expected:
            raise ModelError(f"{where}: {name} must have shape {list(expected)} for this model, got {list(tensor.shape)}.")
        if str(tensor.dtype).removeprefix("torch.") not in _DTYPE_BYTES:
            raise ModelError(f"{where}: {name} is stored as {tensor.dtype}; supported are {', '.join(_DTYPE_BYTES)}.")
        found.setdefault((int(match[1]), match[3]), {})[match[4]] = tensor
    if foreign:
        shown = ", ".join(f"{name:.120}" for name in sorted(foreign)[:_SHOWN])
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        known = ", ".join(name for _, name in shapes)
        raise ModelError(
            f"{where}: {shown}{more} can't be applied: served are lora_A and lora_B of {known} in layers 0 to "
            f"{config.num_layers - 1}."
        )
    for (layer, name), pair in found.items():
        if len(pair) < 2:
            raise ModelError(f"{where}: {name} of layer {layer} has lora_{next(iter(pair))} alone; both A and B are needed.")
    if not found:
        raise ModelError(f"{where} holds no tensors.")
    return {place: LoraPair(pair["A"], pair["B"]) for place, pair in found.items()}
