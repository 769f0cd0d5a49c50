"""The models: one dense decoder, and one file for what is particular to each family of architectures.

`config.ModelConfig` is a model's shape, read by `huggingface` (config.json) or `gguf_metadata`. `registry` finds the `Family`
of an architecture's name (`llama`, `qwen2`, `qwen3`). `decoder.load_decoder` builds a `Decoder` out of a checkpoint; `base`
states what the runner sees of it (`Model`) and what it sees of attention (`LayerAttention`).
"""
