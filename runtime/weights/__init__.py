"""From the name of a model to its weights.

`loader.load_model(EngineConfig, device)` returns a `LoadedModel`. On the way: `resolve` finds it, `safetensors`, `gguf` or
`dummy` open it as a `checkpoint.Checkpoint`, whose `Stored` tensors are read when the model asks for them.
"""
