"""`branchpoint bench`: the commands that measure. What they load, they load when they run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from branchpoint.cli_options import MODEL, filled, number, options, takes
from branchpoint.runtime.bench.options import LoadOptions, OutputOptions
from branchpoint.runtime.bench.workload import WorkloadOptions
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from branchpoint.runtime.bench.figures import Summary
    from branchpoint.runtime.bench.timing import Timing

__all__ = ["bench"]

bench: Final = typer.Typer(help="Measure a server, or an engine in this process.", no_args_is_help=True)

_ENGINE = options(EngineConfig, ("model", "served_name", "adapters", "enable_lora", "max_loras", "max_lora_rank"))


def _serve(**given: Any) -> None:
    """Send requests to a running server of OpenAI's API and time what comes back."""
    import asyncio

    from branchpoint.runtime.bench.client import Target, arrivals, drive, first_model
    from branchpoint.runtime.bench.figures import summary
    from branchpoint.runtime.bench.workload import make_sessions

    load, work = filled(LoadOptions, given), filled(WorkloadOptions, given)
    sessions = make_sessions(work)
    starts = arrivals(len(sessions), load.rate, load.burstiness, work.seed)
    url = load.url.rstrip("/").removesuffix("/v1")
    model = load.served_model or first_model(url, load.key)
    chat = load.chat or work.workload == "turns"
    target = Target(url, model, load.key, chat, load.ignore_eos, load.concurrency, load.timeout)
    timings, seconds = asyncio.run(drive(target, sessions, starts))
    told = summary(timings, seconds)
    _tell(told, timings, f"{work.workload} on {model} at {url}", filled(OutputOptions, given))
    if told["failed"]:
        raise typer.Exit(1)


def _throughput(model: str, **given: Any) -> None:
    """Hand an engine in this process all requests at once and time the whole."""
    from branchpoint.runtime.bench.figures import summary
    from branchpoint.runtime.bench.local import LocalBench
    from branchpoint.runtime.bench.workload import make_sessions

    work = filled(WorkloadOptions, given)
    sessions = make_sessions(work)
    with LocalBench(filled(EngineConfig, given, model=model)) as local:
        timings, seconds = local.throughput(sessions)
    _tell(summary(timings, seconds), timings, f"{work.workload} on {model} in process", filled(OutputOptions, given))


def _latency(
    model: str,
    input_tokens: int,
    output_tokens: int,
    batch: int,
    warmup: int,
    iterations: int,
    json_file: str | None,
    **given: Any,
) -> None:
    """Run one batch again and again on an engine in this process; nothing is cached between."""
    import statistics

    from branchpoint.runtime.bench.figures import percentile
    from branchpoint.runtime.bench.local import LocalBench

    with LocalBench(filled(EngineConfig, given, model=model)) as local:
        seconds = local.latency(input_tokens, output_tokens, batch, warmup=warmup, iterations=iterations)
    told = {"mean": statistics.fmean(seconds), **{f"p{each}": percentile(seconds, each) for each in (10, 50, 90, 99)}}
    if json_file != "-":
        typer.echo(f"{model}, {batch} × ({input_tokens} + {output_tokens}) tokens: mean {told['mean']:.3f} s")
        typer.echo("  ".join(f"{name} {value:.3f} s" for name, value in told.items()))
    if json_file is not None:
        _write(json_file, {"seconds": told, "runs": seconds, "output_tokens_per_second": batch * output_tokens / told["mean"]})


def _tell(told: "Summary", timings: "list[Timing]", title: str, output: OutputOptions) -> None:
    from rich.console import Console

    from branchpoint.runtime.bench.figures import table
    from branchpoint.runtime.bench.plot import plot_svg

    if output.json_file != "-":
        Console(highlight=False).print(table(told, title))
    if output.json_file is not None:
        _write(output.json_file, {"title": title, **told})
    if output.plot_file is not None:
        _save(output.plot_file, plot_svg(timings, title))


def _write(path: str, value: object) -> None:
    import json

    text = json.dumps(value, indent=1, ensure_ascii=False)
    typer.echo(text) if path == "-" else _save(path, text + "\n")


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}.") from error


_SERVE = [*options(LoadOptions), *options(WorkloadOptions), *options(OutputOptions)]
_THROUGHPUT = [MODEL, *options(WorkloadOptions, ("seed",)), *options(OutputOptions), *_ENGINE]
_LATENCY = [
    MODEL,
    number("input_tokens", 32, "Tokens of each prompt."),
    number("output_tokens", 128, "Tokens of each output."),
    number("batch", 8, "Prompts at once."),
    number("warmup", 2, "Runs before those that count."),
    number("iterations", 10, "Runs that count."),
    *options(OutputOptions, ("plot_file",)),
    *_ENGINE,
]
bench.command("serve")(takes(_serve, _SERVE))
bench.command("throughput")(takes(_throughput, _THROUGHPUT))
bench.command("latency")(takes(_latency, _LATENCY))
