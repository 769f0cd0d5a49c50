"""The language on a real engine: what was cancelled or rolled back is freed and counted, graphs and recordings say the same."""

import dataclasses
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

import branchpoint as bp
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Usage


@pytest.fixture
def engine() -> Iterator[bp.Engine]:
    options: dict[str, Any] = {"seed": 3, "cpu_weights": "float32", "threads": 1, "context_length": 2048, "num_pages": 512}
    with bp.Engine("dummy:llama", **options) as engine:
        yield engine


def test_b2_totals_equal_the_engines_counters_whatever_is_cancelled_or_rolled_back(engine: bp.Engine) -> None:
    def body(s: bp.State) -> None:
        s += "A prompt that all share. "
        forks = s.fork(4)
        for number, fork in enumerate(forks):
            fork += bp.gen("x", max_tokens=6 if number == 2 else 1500, ignore_eos=True)
        next(forks[0].text_iter("x"))
        forks.first(lambda branch: branch is forks[2])
        mark = s.mark()
        s += "wrong" + bp.gen("y", max_tokens=5, ignore_eos=True)
        s.sync()
        s.rollback(mark)
        with pytest.raises(bp.ProgramError), s.attempt(retries=2, check=lambda s: False):
            s += bp.gen("n", int, max_tokens=3)
        s += bp.select("z", ["yes", "no"])

    run = bp.function(body).run(backend=engine, seed=1)
    total, stats = run.report().total, engine.stats()
    counted: Usage = stats.totals
    assert (total.prefilled, total.reused) == (counted.prefilled_tokens, counted.cached_tokens)
    assert total.decoded + total.forced + total.accepted == counted.completion_tokens
    assert total.wasted >= 5 + 3
    assert sum(record.wasted for record in run.report().records) == 3 + 1 + 3
    assert stats.running == stats.waiting == 0
    assert stats.pages_held == 0


def test_b1_a_deadline_and_a_budget_end_what_runs_in_the_engine(engine: bp.Engine) -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(3)
        forks += lambda number: f"{number}" + bp.gen("x", ignore_eos=True)

    for limits in ({"max_total_tokens": 40}, {"deadline": 0.3}):
        with pytest.raises(bp.OutOfBudget):
            bp.function(body).run(backend=engine, config=bp.RunConfig(**limits))  # type: ignore[arg-type]  # one or the other
        stats = engine.stats()
        assert stats.running == stats.pages_held == 0


def test_p6_b3_graphs_and_recordings_give_the_same_text(engine: bp.Engine, tmp_path: Path) -> None:
    @bp.function
    def program(s: bp.State, topic: str) -> list[str]:
        s += bp.user(f"About {topic}") + bp.assistant(bp.gen("x", max_tokens=8) + bp.select("y", [" a", " b"]))
        with s.fork(2) as forks:
            forks += lambda number: bp.user(str(number)) + bp.assistant(bp.gen("z", max_tokens=4))
        return [s["x"], s["y"]]

    run = program.run(topic="tea", backend=engine, seed=7)
    graph = bp.load_graph(program.compile().to_json())
    same = graph.run(topic="tea", backend=engine, seed=7)
    assert same.value == run.value
    assert [state.text() for state in same.states] == [state.text() for state in run.states]
    run.save(tmp_path / "run.json")
    again = program.run(topic="tea", backend=bp.replay(tmp_path / "run.json"))
    assert [state.text() for state in again.states] == [state.text() for state in run.states]


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"


@dataclasses.dataclass
class Spot:
    x: Annotated[int, Field(ge=0, le=9)]
    shade: Shade


class Line(TypedDict):
    number: Annotated[int, Field(ge=1, le=3)]
    kind: Literal["a", "b"]


class Sheet(BaseModel):
    spots: list[Spot] = Field(max_length=2)
    note: str | None = Field(max_length=3)


def test_s5_values_of_every_kind_of_type_come_whole_out_of_an_engine(engine: bp.Engine) -> None:
    kinds = (
        Annotated[int, Field(ge=1, le=5)],
        bool,
        Literal["yes", "no"],
        Shade,
        Spot,
        Line,
        Sheet,
        Annotated[list[Line], Field(max_length=2)],
        Optional[Shade],  # noqa: UP045  # both spellings are meant
        Literal[1, 2] | Spot,
    )

    @bp.function
    def program(s: bp.State) -> list[Any]:
        s += "Values: "
        forks = s.fork(len(kinds))
        forks += [bp.gen("x", kind) for kind in kinds]
        return [fork["x"] for fork in forks]

    for seed in range(2):
        values = program.run(backend=engine, seed=seed, temperature=1.5).value
        for kind, value in zip(kinds, values, strict=True):
            assert TypeAdapter(kind).validate_python(value) == value
        assert [type(value) for value in values[1:7]] == [bool, str, Shade, Spot, dict, Sheet]


def test_p7_prompts_are_measured_by_the_engines_own_tokens(engine: bp.Engine) -> None:
    program = bp.function(lambda s: s.__iadd__("word " * 2100 + bp.gen("x")) and None)
    (finding,) = program.check(backend=engine)
    assert finding.rule == "prompt-too-long"


def test_a_value_is_steered_to_its_end_by_a_gen_or_a_whole_run(engine: bp.Engine) -> None:
    schema = bp.json_schema({"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 2})

    def body(s: bp.State) -> None:
        s += "Names: " + bp.gen("names", schema, max_tokens=14, close="steer")
        s += "Free: " + bp.gen("free", max_tokens=3, ignore_eos=True)

    for options in ({}, {"close": "steer"}):  # free text has no end to be steered to, and is cut as ever
        run = bp.function(body).run(backend=engine, temperature=1.4, seed=2, **options)  # type: ignore[arg-type]  # one option
        assert len(run["names"]) >= 2 and run.meta("names").finish_reason == "stop"
        assert run.meta("free").finish_reason == "length"
    with pytest.raises(bp.ProgramError, match="shortest complete one that was found"):
        bp.function(lambda s: s.__iadd__("A" + bp.gen("names", schema, max_tokens=5, close="steer"))).run(backend=engine)
    with pytest.raises(bp.ProgramError, match="no complete output of this constraint has so few tokens"):
        bp.function(lambda s: s.__iadd__("A" + bp.gen("names", schema, max_tokens=2))).run(backend=engine)
    with pytest.raises(bp.ProgramMistake, match="needs a type"):
        bp.gen("free", max_tokens=3, close="steer")
    with pytest.raises(InvalidRequest, match="close"):
        bp.gen("n", int, close="later")  # type: ignore[arg-type]  # that is the point
