"""Waiting a moment for programs that are about to go on, so that their next calls share a step."""

from branchpoint.runtime.loop import Command, Report, Shutdown, run_engine
from branchpoint.runtime.messages import Abort, Call, Completed, Hints, ProgramEnded, Usage
from branchpoint.runtime.plan import MaskSource, StepPlan, StepResult
from branchpoint.runtime.returns import Returns
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.scripted import ScriptedRunner, make_engine

STEP = 0.1


def call(name: str, program: str = "", **hints: object) -> Call:
    sampling = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    return Call(name, (1, 2, 3), sampling, hints=Hints(program=program, **hints))  # type: ignore[arg-type]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Told:
    """Returns with a clock of its own; checks the books after everything it is told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.returns = Returns(self.clock)

    @property
    def patience(self) -> float:
        self.returns.check()
        return self.returns.patience

    def sent(self, *commands: Command) -> None:
        for command in commands:
            self.returns.sent(command)
            self.returns.check()

    def ended(self, *names: str, seconds: float = STEP) -> None:
        self.returns.began()
        self.clock.now += seconds
        self.returns.told([Completed(name, Usage()) for name in names], seconds)
        self.returns.check()


def test_programs_that_go_on_are_waited_for_until_the_last_has_come() -> None:
    told = Told()
    told.sent(*(call(f"{program}", program, returns=True) for program in "abc"), call("raw"))
    told.ended("a", "b", "c")
    for program in "abc":
        assert told.patience > 0
        told.sent(call(f"{program}2", program))
    assert told.patience == 0


def test_requests_that_name_no_program_are_not_waited_for() -> None:
    told = Told()
    told.sent(call("a"), call("b"))
    told.ended("a")
    assert told.patience == 0


def test_behind_the_last_branch_its_program_goes_on_or_ends() -> None:
    told = Told()
    told.sent(call("a", "p", path=(0, 0)), call("b", "p", path=(0, 1)))
    told.ended("a")
    assert told.patience == 0  # of a branch that doesn't go on
    told.ended("b")
    assert told.patience > 0
    told.sent(ProgramEnded("p"))
    assert told.patience == 0
    told.sent(call("c", "q", path=(0, 0)))
    told.ended("c")
    assert told.patience > 0
    told.sent(call("d", "r", ended=("q",)))
    assert told.patience == 0
    told.ended("d")
    assert told.patience == 0  # it has said that it doesn't go on


def test_a_pause_that_was_announced_is_not_waited_for() -> None:
    told = Told()
    away = {"path": (0, 0), "returns": True, "return_seconds": 3.0}
    told.sent(*(call(program, program, **away) for program in "pq"), call("b", "p"))
    told.ended("p", "q")  # q has nothing else open
    assert told.patience == 0


def test_a_call_that_is_given_up_is_followed_by_nothing() -> None:
    told = Told()
    told.sent(call("a", "p", returns=True), call("b", "q", path=(0, 0)), call("raw"))
    told.sent(Abort("a"), Abort("b"), Abort("raw"), Abort("unknown"))
    told.ended("a", "b", "raw")
    assert told.patience == 0
    told.sent(call("again", "p", returns=True))
    told.ended("again")
    assert told.patience > 0


def test_the_first_of_a_fork_is_followed_by_its_siblings() -> None:
    told = Told()
    told.sent(call("raw"))
    told.ended("raw")
    told.sent(call("0", "p", path=(0, 0), siblings=3))
    assert told.patience > 0
    told.sent(call("1", "p", path=(0, 1), siblings=3), call("2", "p", path=(0, 2), siblings=3))
    assert told.patience == 0


def test_one_that_returns_holds_up_no_crowd() -> None:
    told = Told()
    told.sent(*(call(f"other{number}") for number in range(63)), call("a", "p", returns=True))
    told.ended("a", seconds=0.005)
    assert told.patience == 0


def test_what_is_slow_to_return_is_seldom_waited_for() -> None:
    told, waited = Told(), 0.0
    for number in range(200):
        told.sent(call(f"{number}", "p", returns=True), call(f"other{number}"))
        told.ended(f"{number - 1}", f"other{number}")
        waited += told.patience
        told.clock.now += told.patience
        told.returns.began()
    assert 0 < waited < 0.04 * 200 * STEP


def test_siblings_that_never_come_cost_others_a_tenth_at_most() -> None:
    told, waited, before = Told(), 0.0, list[str]()
    told.sent(call("other"))
    for number in range(300):
        for sibling in range(4):  # four come at once, so that one might wait for the others
            told.sent(one := call(f"{number} {sibling}", "p", path=(number, sibling), siblings=10**9))
            before.append(one.id)
        waited += (patience := told.patience)
        told.clock.now += patience
        told.ended(*before, seconds=0.01)
        before.clear()
    assert 0 < waited < 0.1 + 0.1 * 300 * 0.01


class Arriving:
    """An inbox in which what programs send comes a moment after their calls have ended: to who waits, or behind the next step."""

    def __init__(self, clock: Clock, first: list[Call], turns: int, **hints: object) -> None:
        self.clock = clock
        self.ready: list[Command] = [*first]
        self.coming: list[Command] = []
        self.left = {one.id: turns - 1 for one in first}
        self.hints = hints

    def take(self, *, wait: float | None) -> list[Command]:
        if wait == 0.0:
            taken, self.ready, self.coming = self.ready, self.coming, []
            return taken
        self.ready, self.coming = [*self.ready, *self.coming], []
        if wait is None and not self.ready:
            return [Shutdown()]
        if not self.ready:
            self.clock.now += wait or 0.0
            return []
        return [self.ready.pop(0)]

    def deliver(self, reports: list[Report]) -> None:
        for name in [report.id for report in reports if isinstance(report, Completed)]:
            turns = self.left.pop(name)
            if turns:
                next_name = f"{name}+"
                self.left[next_name] = turns - 1
                program = name.rstrip("+") if self.hints else ""
                self.coming.append(call(next_name, program, **self.hints))


class Slow(ScriptedRunner):
    def __init__(self, num_pages: int, page_size: int, clock: Clock) -> None:
        super().__init__(num_pages, page_size)
        self.clock = clock

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        self.clock.now += STEP
        return super().execute(plan, masks)


def steps_of(**hints: object) -> int:
    clock = Clock()
    runner = Slow(64, 4, clock)
    first = [call(name, name if hints else "", **hints) for name in ("a", "b", "c")]
    inbox = Arriving(clock, first, 4, **hints)
    run_engine(make_engine(runner), inbox, inbox.deliver, clock=clock)
    assert not inbox.left
    return len(runner.plans)


def test_turns_of_programs_share_all_of_their_steps() -> None:
    assert steps_of() > 14  # requests: whoever comes first runs a step alone, each turn
    assert steps_of(returns=True) <= 13  # 4 turns of 3 tokens, and the first call of all, which comes alone
