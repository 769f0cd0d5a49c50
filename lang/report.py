"""What a run cost: each call's record, and the report by source line that `run.report()` gives.

The counts are the engine's own (`Usage`), so that totals equal its counters.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from branchpoint.lang.errors import Origin
from branchpoint.runtime.messages import DrafterStats, Usage

__all__ = ["Cost", "Record", "Report"]


class Record(msgspec.Struct, frozen=True):
    """One call that is over. `kind` is `gen`, or `select` with its method; `wasted` where nothing came of it."""

    origin: Origin
    name: str | None
    kind: str
    branch: tuple[int, ...]
    usage: Usage
    seconds: float
    wasted: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of tokens, and seconds that requests took (added up: what ran at once counts each time).

    `wasted` are the output tokens, counted among the others too, of calls that were cancelled, cut, rolled back, or failed.
    """

    calls: int = 0
    prefilled: int = 0
    reused: int = 0
    forced: int = 0
    decoded: int = 0
    drafted: int = 0
    accepted: int = 0
    wasted: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0
    mask_seconds: float = 0.0

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Cost":
        """The cost of these calls together."""
        records = tuple(records)
        usages = [record.usage for record in records]
        return cls(
            calls=len(records),
            prefilled=sum(usage.prefilled_tokens for usage in usages),
            reused=sum(usage.cached_tokens for usage in usages),
            forced=sum(usage.forced_tokens for usage in usages),
            decoded=sum(usage.completion_tokens - usage.forced_tokens - usage.accepted_tokens for usage in usages),
            drafted=sum(usage.drafted_tokens for usage in usages),
            accepted=sum(usage.accepted_tokens for usage in usages),
            wasted=sum(record.usage.completion_tokens for record in records if record.wasted),
            seconds=sum(record.seconds for record in records),
            queue_seconds=sum(usage.queue_seconds for usage in usages),
            mask_seconds=sum(usage.mask_seconds for usage in usages),
        )


_COLUMNS = ("prefilled", "reused", "forced", "decoded", "drafted", "wasted")
_TIMES = ("queue s", "mask s", "seconds")


@dataclass(frozen=True, slots=True)
class Report:
    """A run's records. `str()` is the table; `seconds` is the whole run's time on the clock."""

    program: str
    seed: int
    seconds: float
    records: tuple[Record, ...]

    @property
    def total(self) -> Cost:
        """The cost of the run."""
        return Cost.of(self.records)

    def by_line(self) -> dict[tuple[Origin, str | None, str], Cost]:
        """The cost of each (line, variable, kind), in the order in which they first finished."""
        groups: dict[tuple[Origin, str | None, str], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record.origin, record.name, record.kind), []).append(record)
        return {key: Cost.of(records) for key, records in groups.items()}

    @property
    def drafting(self) -> str | None:
        """What guessing tokens ahead came to, and a line for each drafter that is told of; None where nothing was guessed."""
        cost = self.total
        drafters = sum((record.usage for record in self.records), Usage()).drafters
        if not cost.drafted:
            return None
        share = cost.accepted / cost.drafted
        steps = (cost.decoded + cost.accepted + cost.forced) / max(1, cost.decoded)
        poor = DrafterStats("", drafted=cost.drafted, accepted=cost.accepted).is_poor
        told = f"drafting: {cost.accepted} of {cost.drafted} guesses held ({share:.0%}), {steps:.2f} output tokens for each step"
        lines = [f"{told}; it doesn't pay here" if poor else told]
        lines += [f"  {each}; it doesn't pay here: leave it out" if each.is_poor else f"  {each}" for each in drafters]
        return "\n".join(lines)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: the names of its columns, a row for each line, and the totals."""
        rows: list[tuple[str, ...]] = [("line", "variable", "call", "calls", *_COLUMNS, *_TIMES)]
        for (origin, name, kind), cost in self.by_line().items():
            rows.append((str(origin), name or "-", kind, *_cells(cost, cost.seconds)))
        rows.append(("total", "", "", *_cells(self.total, self.seconds)))
        return rows

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from branchpoint.lang.page import table_of

        return table_of(self)

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 3 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        rule = "-" * len(lines[0])
        told = [self.drafting] if self.drafting else []
        return "\n".join([f"{self.program} (seed {self.seed})", lines[0], rule, *lines[1:-1], rule, lines[-1], *told])


def _cells(cost: Cost, seconds: float) -> tuple[str, ...]:
    times = [f"{each:.3f}" for each in (cost.queue_seconds, cost.mask_seconds, seconds)]
    return (str(cost.calls), *(str(getattr(cost, column)) for column in _COLUMNS), *times)
