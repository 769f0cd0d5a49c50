"""The best possible hit rate of `benchmarks.programs`: an empty, unpressed cache reaches it, and nothing can pass it."""

import pytest

from benchmarks.traces.bound import Work
from benchmarks.traces.recorder import Answered
from benchmarks.traces.reuse import Reuse
from branchpoint.runtime.messages import Call, Completed, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.scripted import ScriptedRunner, make_engine, run

STEM = tuple(range(20))
CALLS: list[Call | ScoreCall] = [
    ScoreCall("select", STEM, ((1, 2, 3), (1, 2, 4, 5), (6,))),
    ScoreCall("again", (*STEM, 7), ((1, 2), (1, 3))),
    Call("gen", (*STEM, 9), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)),
]


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_select_as_one_trie_reuses_no_more_than_is_possible(page_size: int) -> None:
    engine = make_engine(ScriptedRunner(num_pages=256, page_size=page_size))
    log = []
    for call in CALLS:
        answered = Answered(call)
        result = run(engine, call)[call.id]
        assert isinstance(result.end, Completed | Scored)
        answered.usage, answered.output = result.end.usage, result.tokens.get(0, [])
        log += [("made", answered), ("ended", answered)]
    reuse = Reuse()
    reuse.add(log)
    assert reuse.reused == reuse.possible < reuse.prompt
    assert Work.least(log) == Work(steps=4, tokens=engine.stats().computed_tokens)
    engine.close()
