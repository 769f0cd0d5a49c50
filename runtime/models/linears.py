"""The linear layers of a decoder layer: which matrices of a checkpoint lie in each, and their sizes.

Read by `decoder`, which builds the layers, and by `lora`, whose adapters name the same matrices.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from branchpoint.runtime.models.config import ModelConfig

__all__ = ["LINEARS", "LayerLinear", "LinearName", "layer_linears"]

LinearName = Literal["qkv", "output", "gate_up", "down"]
LINEARS: tuple[LinearName, ...] = get_args(LinearName)


@dataclass(frozen=True, slots=True)
class LayerLinear:
    """A linear of `inputs` columns. `outputs` are the rows of the matrices in it, which lie one below the other, by the names
    that checkpoints have for them in `module`.
    """

    module: str
    outputs: dict[str, int]
    inputs: int
    bias: bool


def layer_linears(config: ModelConfig) -> dict[LinearName, LayerLinear]:
    """Those of each layer of a model of this shape."""
    hidden, inner, q_size, kv_size = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    return {
        "qkv": LayerLinear("self_attn", qkv, hidden, config.attention_bias),
        "output": LayerLinear("self_attn", {"o_proj": hidden}, q_size, config.output_bias),
        "gate_up": LayerLinear("mlp", {"gate_proj": inner, "up_proj": inner}, hidden, config.mlp_bias),
        "down": LayerLinear("mlp", {"down_proj": hidden}, inner, config.mlp_bias),
    }
