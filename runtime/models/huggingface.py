"""Reads a Hugging Face config.json into a `ModelConfig`; each family then states what is its own.

Called by weight loading and by the dummy weights. Fields that would change the result and aren't implemented are refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig, RopeScaling

__all__ = ["Fields", "read_fields"]


class Fields:
    """The fields of a config.json, each asked for by name and type. Errors name the field and the file."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; required where `default` is None."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.where}: {name} must be a whole number, got {value!r}.")
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.where}: {name} must be a number, got {value!r}.")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A number, or None where the field is absent."""
        return None if self.values.get(name) is None else self.number(name, 0.0)

    def flag(self, name: str, default: bool) -> bool:  # reads as the field's default
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {name} must be true or false, got {value!r}.")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelError(f"{self.where}: {name} must be a string, got {value!r}.")
        return value

    def inner(self, name: str) -> "Fields | None":
        """A nested object, or None where the field is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}: {name} must be an object, got {value!r}.")
        return Fields(value, f"{self.where}, {name}")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id or a list of them; empty where absent."""
        value = self.values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise ModelError(f"{self.where}: {name} must be a token id or a list of them, got {value!r}.")
        return tuple(dict.fromkeys(ids))

    def dense_config(self, architecture: str, **own: bool) -> ModelConfig:
        """The `ModelConfig` of a dense decoder; `own` are the family's own flags. Raises ModelError."""
        self._refuse_unknown_shapes()
        heads = self.integer("num_attention_heads")
        hidden = self.integer("hidden_size")
        context = self.integer("max_position_embeddings")
        bos = self.token_ids("bos_token_id")
        theta, scaling = self._rope(context)
        return ModelConfig(
            architecture=architecture,
            hidden_size=hidden,
            num_layers=self.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=self.integer("num_key_value_heads", heads),
            head_dim=self.integer("head_dim", hidden // heads if heads > 0 else 0),
            intermediate_size=self.integer("intermediate_size"),
            vocabulary_size=self.integer("vocab_size"),
            context_length=context,
            rms_eps=self.number("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            eos_token_ids=self.token_ids("eos_token_id"),
            bos_token_id=bos[0] if bos else None,
            **own,
        )

    def refuse_window(self, window: int | None) -> None:
        """Raise ModelError where attention over a sliding window would act within the context."""
        layers = self.values.get("layer_types")
        sliding = isinstance(layers, list) and "sliding_attention" in layers
        if sliding or (window is not None and window < self.integer("max_position_embeddings")):
            raise ModelError(
                f"{self.where}: sliding_window attention (window {window}) is not implemented; "
                "use a model whose layers attend to the whole context."
            )

    def _refuse_unknown_shapes(self) -> None:
        """Raise ModelError for what would silently change the arithmetic."""
        activation = self.text("hidden_act", "silu")
        if activation != "silu":
            raise ModelError(f"{self.where}: hidden_act must be 'silu', got {activation!r}.")
        if self.values.get("quantization_config") is not None:
            raise ModelError(
                f"{self.where}: quantization_config (a checkpoint quantised for another engine) is not supported; "
                "use the float checkpoint or a GGUF file."
            )

    def _rope(self, context: int) -> tuple[float, RopeScaling | None]:
        """Theta and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
        inner = self.inner("rope_parameters") or self.inner("rope_scaling") or Fields({}, self.where)
        theta = inner.number("rope_theta", self.number("rope_theta", 10000.0))
        for fields in (self, inner):
            if fields.number("partial_rotary_factor", 1.0) != 1.0:
                raise ModelError(f"{fields.where}: partial_rotary_factor other than 1 is not implemented.")
        kind = inner.text("rope_type", inner.text("type", "default"))
        original = inner.integer("original_max_position_embeddings", context)
        if kind == "default":
            return theta, None
        if kind == "linear":
            return theta, RopeScaling("linear", factor=inner.number("factor", 1.0))
        if kind == "llama3":
            low, high = inner.number("low_freq_factor", 1.0), inner.number("high_freq_factor", 4.0)
            factor = inner.number("factor", 8.0)
            return theta, RopeScaling("llama3", factor, original, low_freq_factor=low, high_freq_factor=high)
        if kind == "yarn":
            return theta, _yarn(inner, original, context)
        raise ModelError(f"{inner.where}: rope_type {kind!r} is not implemented; supported are default, linear, llama3 and yarn.")


def _yarn(inner: Fields, original: int, context: int) -> RopeScaling:
    for name in ("mscale", "mscale_all_dim"):
        if inner.values.get(name):
            raise ModelError(f"{inner.where}: {name} is not implemented for yarn; state attention_factor instead.")
    return RopeScaling(
        "yarn",
        factor=inner.number("factor", context / original if original > 0 else 0.0),
        original_context=original,
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        attention_factor=inner.optional_number("attention_factor"),
        truncate=inner.flag("truncate", default=True),
    )


def read_fields(path: Path) -> Fields:
    """The fields of a JSON file. Raises ModelError where it is missing or isn't a JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, or no UTF-8
        raise ModelError(f"Cannot read the model's configuration {path}: {error}.") from error
    if not isinstance(values, dict):
        raise ModelError(f"The model's configuration {path} must be a JSON object, got {type(values).__name__}.")
    return Fields(values, path.name)
