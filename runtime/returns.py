"""How long it pays to wait before the next step, since programs whose calls have just ended are about to make others.

Told by the loop of each command and report: what comes a moment after a step has begun waits for all of it, and the next step has
it alone. Only calls that name their program are waited for.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from branchpoint.runtime.messages import Abort, Call, Completed, Event, Failed, ProgramEnded, ScoreCall, Scored

__all__ = ["Returns"]

USUAL = 2e-3  # seconds that a program takes to go on, before any was measured
QUICKEST, SLOWEST = 2e-4, 0.1  # between these that is believed
SPREAD = 4.0  # times what is usual are waited at most: the last of several comes later than they do on average
SHARE = 0.2  # of the latest return in what is usual
VAIN = 0.1  # of the time of steps at most is waited for what doesn't come
FORGETS = 0.97  # what is left of a return too slow to be waited for, each time that it wasn't: so it is tried again

Name = tuple[str, str]


@dataclass(slots=True)
class _Program:
    """Its open calls, how many of its commands are due at once, and the forks of which a branch has called."""

    open: int = 0
    due: int = 0
    forks: set[tuple[int, ...]] = field(default_factory=set)


class Returns:
    """Which programs are about to go on. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._programs: dict[Name, _Program] = {}
        self._open: dict[str, Call | ScoreCall] = {}
        self._due = 0  # of all programs
        self._since = 0.0  # when the first of them became due
        self._step = 0.0  # seconds that the last step took
        self._usual = USUAL
        self._spare = SLOWEST  # seconds that may still be waited in vain

    @property
    def patience(self) -> float:
        """Seconds from now that the next step should wait for commands; 0 where nothing is due, or a wait may cost more than
        it saves: what is due would lose a step by coming late, all else loses the wait.
        """
        return max(0.0, self._since + self._limit - self._clock()) if self._due else 0.0

    @property
    def _limit(self) -> float:
        saved = min(self._spare, self._step * self._due / (self._due + len(self._open)))
        return min(SPREAD * self._usual, saved) if self._usual < saved else 0.0

    def sent(self, command: object) -> None:
        """`command` has come."""
        if isinstance(command, Call | ScoreCall):
            for ended in command.hints.ended:
                self._over((command.namespace, ended))
            self._open[command.id] = command
            if command.hints.program:
                self._called(command)
        elif isinstance(command, ProgramEnded):
            self._over((command.namespace, command.program))
        elif isinstance(command, Abort):
            self._given_up(command.id)

    def told(self, reports: Iterable[Event], seconds: float) -> None:
        """A step has taken so long, and said this."""
        self._step = seconds
        self._spare = min(SLOWEST, self._spare + VAIN * seconds)
        ended = [report.id for report in reports if isinstance(report, Completed | Scored | Failed)]
        calls = [call for call in (self._open.pop(id, None) for id in ended) if call is not None and call.hints.program]
        for call in calls:
            self._programs[_name(call)].open -= 1
        for call in calls:
            program, hints = self._programs[_name(call)], call.hints
            last_of_all = hints.path and not (program.open or program.due)  # of the branches: whoever forked them goes on
            if (last_of_all or hints.returns) and not hints.return_seconds:
                self._expect(program, 1)
        for name in {_name(call) for call in calls}:
            self._forget(name)

    def began(self) -> None:
        """A step begins without what is still due."""
        if self._due:
            limit = self._limit
            self._spare -= min(limit, self._clock() - self._since)
            slower = 2.0 if limit else FORGETS
            self._usual = min(SLOWEST, max(QUICKEST, slower * self._usual))
            self._due = 0
            for name, program in list(self._programs.items()):
                program.due = 0
                self._forget(name)

    def check(self) -> None:
        """Hold the counts against each other. Raises AssertionError."""
        named = Counter(_name(call) for call in self._open.values() if call.hints.program)
        assert named == Counter({name: program.open for name, program in self._programs.items() if program.open}), "open calls"
        assert self._due == sum(program.due for program in self._programs.values()), "what is due is counted wrong"
        assert self._due or all(program.open for program in self._programs.values()), "a program is remembered for nothing"

    def _called(self, call: Call | ScoreCall) -> None:
        name, hints = _name(call), call.hints
        program = self._programs.setdefault(name, _Program())
        program.open += 1
        self._came(program, 1)
        fork = hints.path[:-1]
        if hints.siblings > 1 and fork not in program.forks:
            program.forks.add(fork)
            self._expect(program, hints.siblings - 1)

    def _given_up(self, call_id: str) -> None:
        """Nobody waits for this call any more: that it ends tells nothing of what comes next."""
        call = self._open.pop(call_id, None)
        if call is not None and call.hints.program:
            self._programs[_name(call)].open -= 1
            self._forget(_name(call))

    def _expect(self, program: _Program, count: int) -> None:
        if not self._due:
            self._since = self._clock()
        program.due += count
        self._due += count

    def _over(self, name: Name) -> None:
        program = self._programs.get(name)
        if program is not None:
            self._came(program, program.due)
            self._forget(name)

    def _forget(self, name: Name) -> None:
        """Remember a program no longer that has nothing open and nothing due."""
        program = self._programs[name]
        if not program.open and not program.due:
            del self._programs[name]

    def _came(self, program: _Program, count: int) -> None:
        if program.due:
            taken = min(SLOWEST, max(QUICKEST, self._clock() - self._since))
            self._usual += SHARE * (taken - self._usual)
            program.due -= count
            self._due -= count


def _name(call: Call | ScoreCall) -> Name:
    return (call.namespace, call.hints.program)
