"""The dense Qwen3 family: Llama's layers with an RMS norm over each head of q and k, before rope. Listed in `registry`."""

from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.family import Family
from branchpoint.runtime.models.huggingface import Fields

__all__ = ["QWEN3"]


def _read(fields: Fields) -> ModelConfig:
    active = fields.flag("use_sliding_window", default=False)
    fields.refuse_window(fields.integer("sliding_window", 4096) if active else None)
    bias = fields.flag("attention_bias", default=False)
    return fields.dense_config(
        "qwen3",
        attention_bias=bias,
        output_bias=bias,
        qk_norm=True,
        tied=fields.flag("tie_word_embeddings", default=False),
    )


QWEN3 = Family(
    name="qwen3",
    huggingface={"Qwen3ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128}},
    gguf=("qwen3",),
    read=_read,
    qk_norm=True,
)
