"""An engine that has served thousands of calls holds no more than one that has served hundreds."""

import gc
from pathlib import Path

import pytest

import branchpoint as bp
from branchpoint.constrained.spec import Choice, Constraint, JsonSchema, Regex
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Call, Completed, Failed, Hints, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams

OBJECTS, MEGABYTES = 800, 40  # one for each call would be a thousand


def resident() -> int:
    """Megabytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def call(number: int) -> Call | ScoreCall:
    """Small calls of all kinds, most with a grammar of their own."""
    prompt = tuple((number * 7 + place) % 256 for place in range(number % 40 + 1))
    hints = Hints(program=f"p{number % 50}", path=(number % 3,))
    if number % 7 == 6:
        return ScoreCall(f"c{number}", prompt, ((1, 2), (3,)), hints=hints)
    kinds: tuple[Constraint | None, ...] = (
        None,
        Regex(f"[a-z]{{{number % 600 + 1}}}"),
        Choice((f"a{number}", "b")),
        JsonSchema(f'{{"enum": [{number}, {number + 1}]}}'),
        Regex(f"(({number}"),
    )
    sampling = SamplingParams(max_tokens=4, seed=number, n=1 + number % 3, stop=("zz",), logprobs=1 if number % 4 == 0 else None)
    heal = b"a" if number % 11 == 0 else b""
    return Call(f"c{number}", prompt, sampling, kinds[number % 5], heal, f"n{number % 4}", hints)


def serve(loaded: LoadedEngine, numbers: range) -> int:
    """Serve the calls, eight at a time, some of them aborted. The number of terminal events."""
    engine, ended = loaded.engine, 0
    for number in numbers:
        engine.submit(call(number))
        if number % 13 == 0:
            engine.abort(f"c{number}")
        while engine.has_work and (number % 8 == 7 or number == numbers[-1]):
            ended += sum(isinstance(event, Completed | Scored | Failed) for event in engine.step())
    engine.check()  # type: ignore[attr-defined]  # the real engine has it
    return ended


@pytest.mark.parametrize("policy", ["program", pytest.param("lpm", marks=pytest.mark.slow)])
def test_a_thousand_calls_leave_nothing_behind(policy: str) -> None:
    loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=64, threads=1, seed=1, policy=policy))  # type: ignore[arg-type]
    compiler = loaded.compiler
    assert compiler is not None
    try:
        assert serve(loaded, range(600)) == 600
        gc.collect()
        objects, megabytes = len(gc.get_objects()), resident()
        assert serve(loaded, range(600, 1600)) == 1000
        gc.collect()
        assert len(gc.get_objects()) - objects < OBJECTS
        assert resident() - megabytes < MEGABYTES
        stats = loaded.engine.stats()
        assert stats.completed_calls + stats.failed_calls == 1600
        assert (stats.running, stats.waiting, stats.compiling, stats.pages_held) == (0, 0, 0, 0)
        assert stats.pages_free + stats.pages_cached == 64
        assert len(compiler._kept) <= 256
        assert loaded.engine.flush_cache() == stats.pages_cached
    finally:
        loaded.engine.close()
        loaded.close()


def test_direct_calls_and_streams_leave_nothing_behind() -> None:
    with bp.Engine("dummy:llama", num_pages=64, threads=1, seed=1) as engine:

        def serve_some(count: int) -> None:
            for number in range(count):
                engine.generate(f"call {number}", max_tokens=2, n=2, seed=number)
                pieces = engine.stream("a stream", max_tokens=8, seed=number)
                next(pieces, None)
                pieces.close()  # type: ignore[attr-defined]  # a generator, left early
            engine.stats()
            gc.collect()

        serve_some(100)
        objects, megabytes = len(gc.get_objects()), resident()
        serve_some(400)
        assert len(gc.get_objects()) - objects < OBJECTS
        assert resident() - megabytes < MEGABYTES
