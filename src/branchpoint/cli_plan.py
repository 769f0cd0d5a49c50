"""`branchpoint plan`: KV arithmetic for a model, without loading it. Added to the application by `cli`."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from branchpoint.runtime.models.config import ModelConfig
    from branchpoint.runtime.sizing import Fit

__all__ = ["plan"]

_GIB = 2**30
_LENGTHS = (512, 2048, 8192, 32768)


def plan(
    model: Annotated[str, typer.Argument(help="Hugging Face folder, GGUF file, `smollm2`, or `dummy:path/to/config.json`.")],
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory for weights and KV in GiB; 90 % of what is free here where left out.")
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Length of sequences, prompt and output together; may be given several times.")
    ] = None,
    shared_prefix: Annotated[int, typer.Option(min=0, help="Tokens at the start of all sequences that are the same.")] = 0,
    page_size: Annotated[int, typer.Option(min=1, max=128, help="Tokens in a page of KV.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say how many sequences of which length fit, and what another form of weights or KV would change."""
    from branchpoint.runtime.config import EngineConfig
    from branchpoint.runtime.errors import InvalidRequest
    from branchpoint.runtime.machine import available_memory
    from branchpoint.runtime.sizing import fits
    from branchpoint.runtime.weights.loader import model_shape

    if memory_gib is not None and not 0 < memory_gib < float("inf"):
        raise InvalidRequest(f"memory_gib must be above 0 and finite, got {memory_gib}.", param="memory_gib")
    shape = model_shape(EngineConfig(model=model))
    memory = round(memory_gib * _GIB) if memory_gib is not None else int(available_memory() * 0.9)
    lengths = length or sorted(
        {*(each for each in _LENGTHS if shared_prefix < each < shape.context_length), shape.context_length}
    )
    found = fits(shape, memory, lengths, page_size=page_size, shared=shared_prefix)
    if as_json:
        forms = [_row(each, shape, lengths) for each in found]
        typer.echo(json.dumps({"model": model, "memory_bytes": memory, "context_length": shape.context_length, "forms": forms}))
        return
    about = f"{model}: {shape.num_parameters / 1e6:,.0f} million weights, context {shape.context_length:,}"
    shared = f", {shared_prefix:,} of them the same in all" if shared_prefix else ""
    told = f"{about}. In {memory / _GIB:.2f} GiB fit sequences of so many tokens{shared}, at once:"
    Console(highlight=False).print(told, _table(found, shape, lengths))


def _row(found: "Fit", shape: "ModelConfig", lengths: Sequence[int]) -> dict[str, object]:
    """For machines."""
    return {
        "weights": found.form.weights,
        "kv": found.form.kv,
        "where": found.form.where,
        "weight_bytes": found.weight_bytes,
        "kv_bytes": max(0, found.kv_bytes),
        "kv_bytes_per_token": found.form.token_bytes(shape),
        "tokens": found.tokens,
        "sequences": {str(length): count for length, count in zip(lengths, found.sequences, strict=True)},
    }


def _table(fits: "Iterable[Fit]", shape: "ModelConfig", lengths: Sequence[int]) -> Table:
    """For people."""
    table = Table("weights", "KV", "on", "GiB weights", "KiB a token", "tokens of KV", *(f"× {each:,}" for each in lengths))
    for each in fits:
        counts = [f"{count:,}" for count in each.sequences] if each.kv_bytes > 0 else ["–"] * len(lengths)
        sizes = (f"{each.weight_bytes / _GIB:.2f}", f"{each.form.token_bytes(shape) / 1024:.1f}", f"{each.tokens:,}")
        table.add_row(each.form.weights, each.form.kv, each.form.where, *sizes, *counts)
    return table
