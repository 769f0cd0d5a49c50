"""Low-rank adapters (Hu et al. 2021, LoRA): small matrices beside a model's own, another set for each sequence of a batch.

`adapter.Adapter` is what a sequence knows of its own; `registry.Adapters` finds them by name; `peft.read_adapter` reads a folder
that PEFT saved; `placed.PlacedAdapters` has their matrices on the device and applies them to their rows of a step.
"""
