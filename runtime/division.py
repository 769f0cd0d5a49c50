"""How several models share one machine's memory: each says what it may keep for KV, and together they must fit.

Asked by `serving.launch` before anything is loaded; what one engine takes is measured later, by `capacity`.
"""

from collections.abc import Sequence

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import CapacityError, InvalidRequest
from branchpoint.runtime.machine import available_memory
from branchpoint.runtime.sizing import FORMS, Form
from branchpoint.runtime.weights.loader import model_shape, pick_device

__all__ = ["check_division"]

GIB = 2**30


def check_division(configs: Sequence[EngineConfig]) -> None:
    """Refuse models that don't say how they divide the memory (InvalidRequest), or need more than there is (CapacityError).

    Weights count as the smallest form that they may take; a model's own engine measures what is left when its turn comes.
    """
    for config in configs:
        if config.kv_memory_gib is None and config.num_pages is None:
            raise InvalidRequest(
                f"{len(configs)} models share this machine's memory, so each must say what it may take for KV: give "
                f"kv_memory_gib (or num_pages) for all, or for {_name(config)} alone.",
                param="kv_memory_gib",
            )
    for kind in {pick_device(config).type for config in configs}:
        sharing = [config for config in configs if pick_device(config).type == kind]
        needs = {_name(config): _need(config, kind) for config in sharing}
        free = available_memory(pick_device(sharing[0]))
        if (total := sum(map(sum, needs.values()))) > free:
            each = "; ".join(f"{name} {_gib(weights)} of weights and {_gib(kv)} of KV" for name, (weights, kv) in needs.items())
            raise CapacityError(
                f"The models need at least {_gib(total)} together, but {_gib(free)} are free ({each}). "
                "Lower kv_memory_gib of one, or serve fewer models.",
                param="kv_memory_gib",
            )


def _need(config: EngineConfig, kind: str) -> tuple[int, int]:
    """Bytes of weights, and of KV, a draft model's among the weights."""
    form = _form(config, kind)
    shapes = [model_shape(config)]
    if config.draft_model is not None:
        shapes.append(model_shape(EngineConfig(model=config.draft_model)))
    page = form.token_bytes(shapes[0]) * config.page_size
    kv = int(config.kv_memory_gib * GIB) if config.kv_memory_gib is not None else (config.num_pages or 0) * page
    return sum(form.weight_bytes(shape) for shape in shapes), kv


def _form(config: EngineConfig, kind: str) -> Form:
    """The smallest form in which the weights may be held."""
    if kind == "cuda":
        weights = "float32" if config.dtype == "float32" else "bfloat16"
    elif config.dtype in ("bfloat16", "float16"):
        weights = "bfloat16"
    else:
        weights = "int4" if config.cpu_weights == "auto" else config.cpu_weights
    return next(form for form in FORMS if form.weights == weights)


def _name(config: EngineConfig) -> str:
    return config.served_name or config.model


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
