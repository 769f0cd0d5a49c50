"""Small adapters as PEFT saves them, and the same model with one merged into its weights: W + scale B A."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.weights.checkpoint import Checkpoint, Stored

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    config: ModelConfig,
    *,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 16.0,
    modules: Sequence[str] = MODULES,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    **fields: object,
) -> Path:
    """An adapter that changes a model of this shape by about as much as its own weights are; `fields` are its config's."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size, "gate_proj": inner, "up_proj": inner}
    columns = {"o_proj": config.q_size, "down_proj": inner}
    tensors = {}
    for layer in range(config.num_layers) if layers is None else layers:
        for module in modules:
            part = "self_attn" if module[0] in "qkvo" else "mlp"
            name = f"base_model.model.model.layers.{layer}.{part}.{module}"
            n, k = rows.get(module, hidden), columns.get(module, hidden)
            tensors[f"{name}.lora_A.weight"] = (torch.randn(rank, k, generator=generator) * k**-0.5).to(dtype)
            tensors[f"{name}.lora_B.weight"] = (torch.randn(n, rank, generator=generator) * 0.3).to(dtype)
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(modules), "bias": "none", **fields}
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


def products(folder: Path) -> dict[str, Tensor]:
    """What an adapter adds to the weights of each name, float32."""
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    told = json.loads((folder / "adapter_config.json").read_text())
    scale = told["lora_alpha"] / (math.sqrt(told["r"]) if told.get("use_rslora") else told["r"])
    found = {}
    for name in tensors:
        module, _, part = name.removeprefix("base_model.model.").partition(".lora_")
        if part == "A.weight":
            down, up = tensors[name], tensors[name.replace("lora_A", "lora_B")]
            found[f"{module}.weight"] = scale * (up.float() @ down.float())
    return found


class Merged:
    """A checkpoint with an adapter's products added to its weights. See `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._checkpoint = checkpoint
        self._added = products(folder)
        self.config, self.where = checkpoint.config, checkpoint.where

    def find(self, name: str) -> Stored | None:
        stored = self._checkpoint.find(name)
        if stored is None or name not in self._added:
            return stored
        merged = stored.read().float() + self._added[name]
        return Stored(name, stored.shape, "F32", lambda: merged)
