"""From timings to figures: rates, means and percentiles, as JSON for machines and as a table for people."""

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from branchpoint.runtime.bench.timing import Timing

__all__ = ["Summary", "percentile", "summary", "table"]

Summary = dict[str, float | int | dict[str, float] | dict[str, int]]

_PERCENTILES = (50, 90, 95, 99)
_MILLI = 1000.0
_NAMES = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time an output token",
    "itl_ms": "between outputs",
    "e2e_ms": "whole request",
}


def percentile(values: Sequence[float], percent: float) -> float:
    """Of at least one value, with straight lines between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(timings: Sequence[Timing], seconds: float) -> Summary:
    """Counts, rates a second over `seconds`, and for each kind of time mean, percentiles and maximum in milliseconds."""
    good = [timing for timing in timings if not timing.error]
    prompt, output = sum(timing.prompt_tokens for timing in good), sum(timing.output_tokens for timing in good)
    told: Summary = {
        "completed": len(good),
        "failed": len(timings) - len(good),
        "seconds": seconds,
        "prompt_tokens": prompt,
        "cached_tokens": sum(timing.cached_tokens for timing in good),
        "output_tokens": output,
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": output / seconds,
        "tokens_per_second": (prompt + output) / seconds,
    }
    times = {
        "ttft_ms": [timing.first for timing in good],
        "tpot_ms": [timing.each for timing in good if timing.each is not None],
        "itl_ms": [gap for timing in good for gap in timing.gaps],
        "e2e_ms": [timing.ended - timing.began for timing in good],
    }
    told |= {name: _spread(values) for name, values in times.items() if values}
    errors = [timing.error for timing in timings if timing.error]
    return told | ({"errors": {each: errors.count(each) for each in dict.fromkeys(errors)}} if errors else {})


def _spread(values: Sequence[float]) -> dict[str, float]:
    told = {"mean": statistics.fmean(values), **{f"p{percent}": percentile(values, percent) for percent in _PERCENTILES}}
    return {name: value * _MILLI for name, value in (told | {"max": max(values)}).items()}


def table(told: Summary, title: str) -> Table:
    """For people: the rates, and a row for each kind of time."""
    made = Table(title=title, title_justify="left", caption=_caption(told), caption_justify="left")
    for name in ("ms", "mean", *(f"p{percent}" for percent in _PERCENTILES), "max"):
        made.add_column(name, justify="left" if name == "ms" else "right")
    for key, name in _NAMES.items():
        row = told.get(key)
        if isinstance(row, Mapping):
            made.add_row(name, *(f"{value:,.1f}" for value in row.values()))
    return made


def _caption(told: Summary) -> str:
    rates = f"{told['requests_per_second']:.2f} requests, {told['output_tokens_per_second']:,.1f} output tokens"
    cached = f"{told['prompt_tokens']:,} prompt tokens, {told['cached_tokens']:,} of them cached"
    lines = [
        f"{told['completed']} completed, {told['failed']} failed in {told['seconds']:.1f} s",
        f"{rates}, {told['tokens_per_second']:,.1f} tokens a second",
        f"{cached}; {told['output_tokens']:,} output tokens",
    ]
    errors = told.get("errors")
    if isinstance(errors, Mapping):
        lines += [f"failed {count}×: {error}" for error, count in errors.items()]
    return "\n".join(lines)
