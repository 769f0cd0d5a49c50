"""Runs simulated programs on a real engine: sends their calls, lets their pauses pass, counts what came of it."""

import heapq
import time
from collections.abc import Iterable
from itertools import count

from benchmarks.simulation.clock import SimulatedClock
from benchmarks.simulation.outcome import Outcome
from benchmarks.simulation.scripts import Ask, Fork, Pause, Program, Score, Script, call_seed
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed, Hints, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Driver"]


class _Task:
    """A branch of a program under way; `waiting_for` counts the branches of its own open fork, or the scores it asked for."""

    __slots__ = ("calls", "forks", "parent", "path", "program", "results", "script", "siblings", "waiting_for")

    def __init__(self, script: Script, program: int, path: tuple[int, ...], siblings: int, parent: "_Task | None") -> None:
        self.script = script
        self.program = program
        self.path = path
        self.siblings = siblings
        self.parent = parent
        self.calls = self.forks = self.waiting_for = 0
        self.results: list[object] = []


class Driver:
    """Drives `engine`, whose clock is `clock`. With `hints` its calls say what the language would say of them."""

    def __init__(self, engine: Engine, clock: SimulatedClock, *, hints: bool) -> None:
        self._engine = engine
        self._clock = clock
        self._hints = hints
        self._timers: list[tuple[float, int, _Task]] = []
        self._ticket = count()
        self._asking: dict[str, tuple[_Task, list[int]]] = {}
        self._heard: dict[str, float] = {}  # when a call last gave a token
        self._arrivals: dict[int, float] = {}
        self._outcome = Outcome()

    def run(self, programs: Iterable[Program]) -> Outcome:
        """Run all programs to their ends. Raises RuntimeError where a call fails or nothing can go on."""
        for index, program in enumerate(programs):
            self._arrivals[index] = program.arrival
            heapq.heappush(self._timers, (program.arrival, next(self._ticket), _Task(program.script, index, (), 1, None)))
        while self._timers or self._asking:
            while self._timers and self._timers[0][0] <= self._clock.now:
                self._resume(heapq.heappop(self._timers)[2], None)
            if self._asking:
                self._step()
            elif self._timers:
                self._clock.advance_to(self._timers[0][0])
        self._outcome.seconds = self._clock.now
        return self._outcome

    def _step(self) -> None:
        before, started = self._clock.now, time.perf_counter()
        events = self._engine.step()
        self._outcome.wall_seconds += time.perf_counter() - started
        if self._clock.now > before:
            self._outcome.steps += 1
        elif not events:  # no call can go on before another comes
            if not self._timers:
                raise RuntimeError(f"The engine stands still with {len(self._asking)} calls open: {self._engine.stats()}")
            self._clock.advance_to(self._timers[0][0])
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._asking[event.id][1].extend(event.tokens)
            now = self._clock.now
            gap = now - self._heard.get(event.id, now)
            self._heard[event.id] = now
            if gap > self._outcome.longest_gap:
                self._outcome.longest_gap = gap
        elif isinstance(event, Completed):
            task, tokens = self._asking.pop(event.id)
            self._heard.pop(event.id, None)
            self._outcome.add(event.usage)
            self._resume(task, tokens)
        elif isinstance(event, Scored):
            task, _ = self._asking.pop(event.id)
            self._outcome.add(event.usage)
            task.waiting_for -= 1
            if task.waiting_for == 0:
                self._resume(task, None)
        elif isinstance(event, Failed):
            raise RuntimeError(f"A simulated call failed: {event.message}")

    def _resume(self, task: _Task, sent: object) -> None:
        try:
            deed = task.script.send(sent)
        except StopIteration as end:
            self._finish(task, end.value)
            return
        if isinstance(deed, Ask):
            self._ask(task, deed)
        elif isinstance(deed, Score):
            self._score(task, deed)
        elif isinstance(deed, Pause):
            heapq.heappush(self._timers, (self._clock.now + deed.seconds, next(self._ticket), task))
        else:
            self._fork(task, deed)

    def _fork(self, task: _Task, fork: Fork) -> None:
        width, number = len(fork.branches), task.forks
        task.forks += 1
        task.waiting_for, task.results = width, [None] * width
        for place, script in enumerate(fork.branches):
            self._resume(_Task(script, task.program, (*task.path, number, place), width, task), None)

    def _finish(self, task: _Task, value: object) -> None:
        parent = task.parent
        if parent is None:
            self._outcome.completions.append(self._clock.now - self._arrivals[task.program])
            if self._hints:
                self._engine.end_program(f"program {task.program}")
            return
        parent.results[task.path[-1]] = value
        parent.waiting_for -= 1
        if parent.waiting_for == 0:
            self._resume(parent, parent.results)

    def _ask(self, task: _Task, ask: Ask) -> None:
        call = f"{task.program}.{'.'.join(map(str, task.path))}.{task.calls}"
        seed = call_seed(task.program, task.path, task.calls)
        task.calls += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=True, seed=seed)
        self._submit(task, Call(call, ask.prompt, sampling, hints=self._hints_of(task, returns=ask.returns)))

    def _score(self, task: _Task, score: Score) -> None:
        """With hints one call, as the language makes it, else a request for each option."""
        asked = [score.options] if self._hints else [(option,) for option in score.options]
        task.waiting_for = len(asked)
        for place, options in enumerate(asked):
            name = f"{task.program}.{'.'.join(map(str, task.path))}.{task.calls}.{place}"
            self._submit(task, ScoreCall(name, score.prompt, options, hints=self._hints_of(task, returns=score.returns)))
        task.calls += 1

    def _submit(self, task: _Task, call: Call | ScoreCall) -> None:
        self._asking[call.id] = (task, [])
        started = time.perf_counter()
        self._engine.submit(call)
        self._outcome.wall_seconds += time.perf_counter() - started

    def _hints_of(self, task: _Task, *, returns: bool) -> Hints:
        if not self._hints:
            return Hints()
        return Hints(program=f"program {task.program}", path=task.path, siblings=task.siblings, returns=returns)
