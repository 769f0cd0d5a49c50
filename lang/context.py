"""What belongs to one run: its seed and options, the calls that are open, what they cost, and how it ends.

States open entries here, the executor settles them, the runner waits until all are done or one failed.
"""

import contextvars
import itertools
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from branchpoint.lang.budget import Budget
from branchpoint.lang.errors import ProgramError, ProgramMistake
from branchpoint.lang.latch import Latch
from branchpoint.lang.ledger import Failure, Pending, Place
from branchpoint.lang.options import RunConfig, SamplingOptions
from branchpoint.lang.report import Record
from branchpoint.lang.stream import Replay
from branchpoint.lang.variables import CallEntry

if TYPE_CHECKING:
    from branchpoint.lang.executor import Executor
    from branchpoint.lang.state import State

__all__ = ["RUNNING", "RunContext"]

_LONGEST_NAME = 64  # characters of a program's name that its runs' names begin with


class RunContext:
    """One run of one program. Thread-safe."""

    def __init__(
        self, executor: "Executor", program: str, *, seed: int, options: SamplingOptions, config: RunConfig, streams: bool
    ) -> None:
        self.executor = executor
        self.program = program
        self.id = (
            f"{program[:_LONGEST_NAME]}-{executor.dispatcher.random.getrandbits(48):012x}"  # what the scheduler knows the run by
        )
        self.seed = seed
        self.options = options
        self.namespace = config.namespace
        self.budget = Budget(config.max_total_tokens, config.deadline)
        self.lock = threading.RLock()  # one for all of the run; a forgotten reader cancels wherever it is collected, here too
        self.branches: Replay[tuple[tuple[int, ...], str]] | None = Replay(self.lock) if streams else None
        self.began = time.perf_counter()
        self._requests = itertools.count(1)
        self.written = False  # whether the program's function has ended: nothing is added any more
        self.cancelled = False
        self.closed = False
        self.failed_with: BaseException | None = None
        self._open: set[Pending] = set()
        self._failures: list[Failure] = []
        self._settled: list[Pending] = []
        self._states: list[State] = []
        self._watched: list[tuple[bool, Latch]] = []
        executor.join(self)

    def __reduce__(self) -> NoReturn:
        raise ProgramMistake("A run and its states can't be pickled or copied; take the values out, or run.save(path).")

    @property
    def records(self) -> tuple[Record, ...]:
        """What each call cost that is over, in the order in which they ended."""
        entries = (entry for entry in self.settled if isinstance(entry, CallEntry))
        return tuple(record for entry in entries if (record := entry.record()) is not None)

    def request_id(self) -> str:
        """A new name for a request, which no other request of any run has."""
        return f"{self.id}-{next(self._requests)}"

    @property
    def settled(self) -> tuple[Pending, ...]:
        """What is over, in the order in which it ended, what was taken back included."""
        with self.lock:
            return tuple(self._settled)

    @property
    def states(self) -> tuple["State", ...]:
        """All states, in the order they were made."""
        with self.lock:
            return tuple(self._states)

    def check_caller(self) -> None:
        """Raise ProgramMistake where waiting would stop the loop that is waited for."""
        self.executor.dispatcher.check_caller()

    def check_open(self) -> None:
        """Raise ProgramError where the run is over."""
        if self.closed:
            raise ProgramError(
                f"The run of {self.program!r} is over; its states can be read, not added to.", program=self.program
            )

    def enter(self, state: "State") -> None:
        """Take a new state in."""
        with self.lock:
            self.check_open()
            self._states.append(state)
        if self.branches is not None:
            self.executor.pump(state)

    def submit(self, entry: Pending) -> None:
        """Open `entry`, and have it performed when its turn comes."""
        with self.lock:
            self.check_open()
            entry.dropped = entry.place.ended
            self._open.add(entry)
        self.executor.schedule(entry)

    def settle(self, entry: Pending, failure: Failure | None) -> None:
        """Close `entry`: every waiter and everything that comes after it goes on."""
        with self.lock:
            if not entry.settle(failure):
                return
            self._settled.append(entry)
            if failure is not None and failure.entry is entry:
                self._failures.append(failure)
            self._open.discard(entry)
        entry.done.set()
        self.look()

    def look(self) -> None:
        """Tell those who watch, where what they wait for has come."""
        if not self._watched:
            return
        with self.lock:
            ready = [latch for stops_early, latch in self._watched if self._over(stops_early)]
            self._watched = [watch for watch in self._watched if watch[1] not in ready]
        for latch in ready:
            latch.set()

    def _over(self, stops_early: bool) -> bool:
        return not self._open or (stops_early and any(failure.unseen for failure in self._failures))

    def watch(self, *, stops_early: bool) -> Latch:
        """Set when nothing is open, or (`stops_early`) when something failed that the program hasn't seen."""
        latch = Latch(self.lock)
        with self.lock:
            self._watched.append((stops_early, latch))
        self.look()
        return latch

    def check(self) -> None:
        """Raise the first failure that the program hasn't seen."""
        with self.lock:
            unseen = next((failure for failure in self._failures if failure.unseen), None)
        if unseen is not None:
            raise unseen.error()

    def take_back(self, entries: Iterable[Pending], why: str) -> None:
        """Let these entries have been in vain: what runs is aborted at once, and none of them fails the run."""
        with self.lock:
            entries = tuple(entries)
            for entry in entries:
                entry.dropped = why
        self.executor.stop(entries)

    def drop(self, places: Iterable[Place], why: str) -> None:
        """Give these branches up, and all that came out of them: what they still do is aborted, what is done stays readable."""
        places = tuple(places)
        for place in places:
            place.dropped = why
        with self.lock:
            entries = [entry for entry in self._open if any(entry.place.within(place) for place in places)]
        self.take_back(entries, why)

    def cancel(self) -> None:
        """Abort what is open: running requests end, the others never start."""
        with self.lock:
            self.cancelled = True
            entries = tuple(self._open)
        self.executor.stop(entries)

    def abort(self, entry: Pending) -> None:
        """Abort one call, which may not have begun yet; its state fails."""
        entry.unwanted = True
        self.executor.stop([entry])

    def close(self, error: BaseException | None) -> None:
        """Let nothing more be added, and abort what is still open; `error` is what the run ends with."""
        with self.lock:
            self.closed = True
            self.failed_with = error
            is_open = bool(self._open)
        if is_open:
            self.cancel()

    def end(self, error: BaseException | None) -> None:
        """End every stream of the run; call it when nothing is open."""
        for state in self.states:
            state.log.end((lambda: error) if error is not None else None)


RUNNING: contextvars.ContextVar[tuple[RunContext, ...]] = contextvars.ContextVar("branchpoint_running")
"""The runs whose functions the code here runs in, the innermost last."""
