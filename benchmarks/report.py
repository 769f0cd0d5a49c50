"""How a benchmark speaks: a line of JSON for each figure as it is taken, and a table for people at the end."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "Report"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside the peer's on the same work. `ratio` above 1 means Branchpoint is better."""

    bench: str
    case: str
    unit: str
    branchpoint: float
    peer: str | None = None
    peer_value: float | None = None
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer; None without one."""
        if not self.peer_value or not self.branchpoint:
            return None
        ratio = self.branchpoint / self.peer_value
        return 1 / ratio if self.lower_is_better else ratio


class Report:
    """Collects figures; `add` prints each as JSON, `close` prints the table unless `json_only`. What is printed as JSON is also
    written to the file `kept`, anew.
    """

    def __init__(self, *, json_only: bool, kept: Path | None = None) -> None:
        self._json_only = json_only
        self._kept = kept
        if kept is not None:
            kept.write_text("", encoding="utf-8")
        self._figures: list[Figure] = []

    def add(self, figure: Figure) -> None:
        """Print and keep one figure."""
        self._figures.append(figure)
        line = {name: value for name, value in asdict(figure).items() if name != "lower_is_better"} | {"ratio": figure.ratio}
        rounded = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in line.items()}
        self._tell(rounded)

    def skip(self, bench: str, peer: str, why: str) -> None:
        """Name a peer that could not be measured."""
        self._tell({"bench": bench, "peer": peer, "skipped": why})

    def _tell(self, entry: dict[str, object]) -> None:
        line = json.dumps(entry)
        print(line, flush=True)
        if self._kept is not None:
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def close(self) -> None:
        """Print the table."""
        if self._json_only:
            return
        table = Table("case", "unit", "Branchpoint", "peer", "peer's", "ratio")
        for figure in self._figures:
            peer_value = "" if figure.peer_value is None else f"{figure.peer_value:.4g}"
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
            table.add_row(figure.case, figure.unit, f"{figure.branchpoint:.4g}", figure.peer or "", peer_value, ratio)
        Console(width=110).print(table)
