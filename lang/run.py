"""A run of a program: what it returned, its variables and text, its streams, and what it cost.

Made by `Program.run`; a streaming one is handed out while its function still runs, and reading its values waits.
"""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from branchpoint.lang.context import RUNNING, RunContext
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.pieces import pieces, read_coming, read_to_end
from branchpoint.lang.report import Report
from branchpoint.lang.result import Meta
from branchpoint.lang.state import State
from branchpoint.lang.stream import Reader, Replay

__all__ = ["Branch", "Run"]

R = TypeVar("R", default=Any)
Branch = tuple[int, ...]
"""The way of forks to a state: the branch number at each fork, () for the program's own state."""


class Run(Generic[R]):
    """One run of one program. `run["x"]`, `text()`, `messages()`, `value` wait for its end and raise what failed."""

    def __init__(self, context: RunContext, state: State, outcome: "Future[R]", clock: Callable[[], float]) -> None:
        self._context = context
        self._state = state
        self._outcome = outcome
        self._clock = clock

    def __repr__(self) -> str:
        how = "running" if not self._outcome.done() else "failed" if self._outcome.exception() is not None else "done"
        return f"<Run of {self._context.program!r}, {how}, variables {list(self._state.variables())}>"

    @property
    def program(self) -> str:
        """The program's name."""
        return self._context.program

    @property
    def context(self) -> RunContext:
        """What belongs to the run, for the package's own use."""
        return self._context

    @property
    def outcome(self) -> "Future[R]":
        """Done when the run is over, with what `value` gives or raises. It can't be cancelled; `cancel()` ends the run."""
        return self._outcome

    @property
    def value(self) -> R:
        """What the function returned."""
        self._check_caller()
        return self._outcome.result()

    @property
    def ret_value(self) -> R:
        """`value` by its other name."""
        return self.value

    @property
    def state(self) -> State:
        """The program's own state. While the run goes on, its variables can be read as they come."""
        return self._state

    @property
    def states(self) -> tuple[State, ...]:
        """All states, forks too, in the order in which they were made."""
        return self._context.states

    @property
    def seed(self) -> int:
        """The seed that every call's seed was derived from."""
        return self._context.seed

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._outcome.done()

    def wait(self) -> "Run[R]":
        """Wait for the end. Raises what failed."""
        self._check_caller()
        self._outcome.result()
        return self

    def sync(self) -> None:
        """`wait` by its other name."""
        self.wait()

    def _check_caller(self) -> None:
        if not self._outcome.done() and self._context in RUNNING.get(()):
            raise ProgramMistake(f"Program {self.program!r} waits for its own run; read its state instead: s['x'], s.text().")

    def cancel(self) -> None:
        """Abort what still runs; the run fails."""
        self._context.cancel()

    def __getitem__(self, name: str) -> Any:
        self.wait()
        return self._state[name]

    def __setitem__(self, name: str, value: object) -> None:
        """Set a variable of the finished run."""
        self.wait()
        self._state[name] = value

    def __contains__(self, name: str) -> bool:
        self.wait()
        return name in self._state

    def variables(self) -> tuple[str, ...]:
        """The names that the program set."""
        self.wait()
        return self._state.variables()

    def meta(self, name: str) -> Meta:
        """What is known of the call that set `name`."""
        self.wait()
        return self._state.meta(name)

    def get_meta_info(self, name: str) -> dict[str, object]:
        """`meta(name)` as a dictionary."""
        return self.meta(name).as_dict()

    def text(self) -> str:
        """The whole text of the program's own state."""
        self.wait()
        return self._state.text()

    def messages(self) -> list[dict[str, str]]:
        """The conversation of the program's own state."""
        self.wait()
        return self._state.messages()

    def text_iter(self, name: str | None = None, *, var_name: str | None = None, cancel: bool = False) -> Reader[str]:
        """The text of the first call named `name` (None: the whole text) as it comes, to its end; for `for` or `async for`.

        `var_name` is another name of `name`. `cancel`: closing the only reader, or leaving its loop, aborts the call (the run).
        Raises what failed, after what came before.
        """
        name = name if name is not None else var_name
        if name is None:
            return read_to_end(self._state.log, self._context.cancel if cancel else None)
        return read_coming(self._state.log, name, self._context.abort if cancel else None)

    def text_async_iter(self, name: str | None = None, *, var_name: str | None = None, cancel: bool = False) -> Reader[str]:
        """`text_iter` by its other name."""
        return self.text_iter(name, var_name=var_name, cancel=cancel)

    def branches_iter(self) -> Reader[tuple[Branch, str]]:
        """The text that each state adds, tagged with its branch, in the order in which it came (run with `stream=True`).

        A run without `stream=True` gives state after state. Iterate with `for` or `async for`.
        """
        replay = self._context.branches
        if replay is None:
            self.wait()
            replay = Replay()
            for state in self.states:
                for piece in pieces(state.log):
                    replay.put((state.branch, piece))
            replay.end()
        return Reader(iter(replay), aiter(replay), lambda: None)

    def save(self, path: str | Path) -> None:
        """Write down what the run's calls came to, for `replay(path)`. Waits for the end; a failed run can be saved too."""
        from branchpoint.lang.recording import record

        self._outcome.exception()
        Path(path).write_bytes(msgspec.json.encode(record(self._context)))

    def to_html(self, path: str | Path | None = None) -> str:
        """The run as an HTML page: its branches as a tree, what each call made and cost, and when. Waits for the end.

        `path` is where to write it, too. A failed run has a page as well.
        """
        from branchpoint.lang.page import page_of

        self._outcome.exception()
        page = page_of(self._context, self.report())
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str | None:
        """What a notebook shows; a run that goes on isn't waited for."""
        return self.to_html() if self._outcome.done() else None

    def report(self) -> Report:
        """What was spent so far, by source line and in all; `print` it for a table."""
        return Report(self._context.program, self._context.seed, self._clock(), self._context.records)
