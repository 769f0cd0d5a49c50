"""The Qwen2 family (Qwen2, Qwen2.5): Llama's layers with biases on q, k and v. Listed in `registry`."""

from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.family import Family
from branchpoint.runtime.models.huggingface import Fields

__all__ = ["QWEN2"]


def _read(fields: Fields) -> ModelConfig:
    active = fields.flag("use_sliding_window", default=False)
    fields.refuse_window(fields.integer("sliding_window", 4096) if active else None)
    return fields.dense_config("qwen2", attention_bias=True, tied=fields.flag("tie_word_embeddings", default=False))


QWEN2 = Family(
    name="qwen2",
    huggingface={"Qwen2ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32}},
    gguf=("qwen2",),
    read=_read,
    qkv_bias=True,
)
