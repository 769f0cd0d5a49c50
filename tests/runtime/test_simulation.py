"""What the scheduler decides under pressure, in programs that are simulated: counted in tokens, never in time."""

from collections.abc import Generator, Sequence

from benchmarks.simulation.cost import CostModel
from benchmarks.simulation.oracle import Oracle
from benchmarks.simulation.outcome import Outcome
from benchmarks.simulation.scripts import Deed, Score
from benchmarks.simulation.shapes import Shape
from benchmarks.simulation.site import Setting, arrivals, simulate

PAGE = 16
PROGRAMS, TASKS = 18, 3


def tokens(*seed: int, count: int) -> tuple[int, ...]:
    first = sum(number * 1_009**place for place, number in enumerate(seed, 1))
    return tuple((first * 7_919 + place * 31) % 30_000 for place in range(count))


def select(index: int) -> Generator[Deed, Sequence[int], None]:
    """A task's examples, a question, the best of four endings; the client can't tell that this was all."""
    text = tokens(1, index * TASKS // PROGRAMS, count=600) + tokens(2, index, count=35)
    yield Score(text, tuple(tokens(3, index, option, count=13) for option in range(4)))


def in_half_the_memory(shape: Shape, programs: int, *, hints: bool) -> tuple[Outcome, Oracle]:
    oracle = Oracle.of(shape(index) for index in range(programs))
    setting = Setting(CostModel(), oracle.distinct_tokens // 2 // PAGE, oracle.longest + 1, PAGE, 512, 64)
    return simulate(shape, arrivals(programs, None), "program", setting, hints=hints), oracle


def test_programs_that_select_compute_less_under_pressure_than_their_requests() -> None:
    program, oracle = in_half_the_memory(select, PROGRAMS, hints=True)
    requests, _ = in_half_the_memory(select, PROGRAMS, hints=False)
    assert oracle.least_computed <= program.prefilled_tokens < 1.05 * oracle.least_computed
    assert program.prefilled_tokens < requests.prefilled_tokens
