"""The Llama family: Llama 2 and 3, SmolLM2, Mistral without a sliding window.

Grouped-query attention, RMS norms, gated SiLU; biases where the configuration says so. Listed in `registry`.
"""

from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.family import Family
from branchpoint.runtime.models.huggingface import Fields

__all__ = ["LLAMA"]


def _read(fields: Fields) -> ModelConfig:
    window = fields.integer("sliding_window", -1)
    fields.refuse_window(window if window >= 0 else None)
    bias = fields.flag("attention_bias", default=False)
    return fields.dense_config(
        "llama",
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        tied=fields.flag("tie_word_embeddings", default=False),
    )


LLAMA = Family(
    name="llama",
    huggingface={
        "LlamaForCausalLM": {"max_position_embeddings": 2048},
        "MistralForCausalLM": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    },
    gguf=("llama",),
    read=_read,
    gguf_permuted=True,
)
