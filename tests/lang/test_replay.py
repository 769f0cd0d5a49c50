"""B3: a saved run can be played again without a model, and with one where the program has changed."""

from pathlib import Path
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text


@bp.function
def program(s: bp.State, topic: str) -> list[Any]:
    s += bp.system("S") + bp.user(f"About {topic}") + bp.assistant("So: " + bp.gen("x", max_tokens=9, logprobs=2))
    s += bp.user("Choose") + bp.assistant(bp.select("y", ["a", "b"], temperature=1.0))
    with s.fork(2) as forks:
        forks += bp.user("More") + bp.assistant(bp.gen("z", int) + bp.gen("w", n=2, pick=1))
    s += bp.select("v", ["c", "d"], choices_method="unconditional_likelihood_normalized")
    s += bp.select("u", ["e", "f"], choices_method="total_with_end")
    return [s["x"], s["y"], s["z"], s["w"], s["v"], s["u"], s.text()]


def answer(request: GenerateRequest) -> Any:
    if request.constraint is not None:
        return "12"
    return ["one", "two"] if request.sampling.n == 2 else "abcdef"


def test_b3_a_saved_run_plays_again_without_a_model(tmp_path: Path) -> None:
    run = program.run(topic="tea", backend=bp.Fake(answer, scores={"a": -0.5, "b": -0.4, "d": -0.1}))
    run.save(tmp_path / "run.json")
    recorded = bp.replay(tmp_path / "run.json")
    same = program.run(topic="tea", backend=recorded)
    assert same.value == run.value
    assert same.messages() == run.messages()
    for name in ("x", "y", "v", "u"):
        assert same.meta(name).logprobs == run.meta(name).logprobs
        assert same.meta(name).choices == run.meta(name).choices
        assert same.meta(name).usage == run.meta(name).usage
    assert same.report().total.calls == run.report().total.calls
    assert recorded.asked_then == 0


def test_b3_what_changed_fails_or_asks_the_other_backend(tmp_path: Path) -> None:
    program.run(topic="tea", backend=bp.Fake(answer)).save(tmp_path / "run.json")
    with pytest.raises(bp.ProgramError, match="has no such message; the program or its arguments have changed"):
        program.run(topic="milk", backend=bp.replay(tmp_path / "run.json"))

    def body(s: bp.State, topic: str) -> str:
        program(s, topic)
        s += "!" + bp.gen("more")
        return s["more"]  # type: ignore[no-any-return]

    body.__name__ = "program"  # seeds depend on it
    longer = bp.function(body)
    with pytest.raises(bp.ProgramError, match=r"no call like this one.*ends '.*!'"):
        longer.run(topic="tea", backend=bp.replay(tmp_path / "run.json"))
    fake = bp.Fake("new")
    recorded = bp.replay(tmp_path / "run.json", then=fake)
    assert longer.run(topic="tea", backend=recorded).value == "new"
    assert recorded.asked_then == len(fake.requests) == 1


def test_b3_branches_that_ask_the_same_get_their_own_answers_again(tmp_path: Path) -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(2)
        forks += "Q" + bp.gen("x")
        return [fork["x"] for fork in forks]

    same = bp.function(body)
    late_and_early = bp.Fake(lambda request: Reply("late", delay=0.02) if request.hints.path[-1] == 0 else "early")
    same.run(backend=late_and_early).save(tmp_path / "run.json")
    assert same.run(backend=bp.replay(tmp_path / "run.json")).value == ["late", "early"]


def test_b3_calls_that_are_the_same_answer_in_their_order(tmp_path: Path) -> None:
    def body(s: bp.State) -> list[str]:
        values = []
        mark = s.mark()
        for _ in range(3):
            s.rollback(mark)
            s += "Q" + bp.gen("x")
            values.append(s["x"])
        return values

    same = bp.function(body)
    run = same.run(backend=bp.Fake(["a", "b", "c"]))
    run.save(tmp_path / "run.json")
    assert same.run(backend=bp.replay(tmp_path / "run.json")).value == run.value == ["a", "b", "c"]


def test_b3_races_and_failures_play_as_they_went(tmp_path: Path) -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(3)
        forks += bp.gen("x")
        value: str = forks.first()["x"]
        s += "bad" + bp.gen("y")
        return [value, str(s.error())]

    def script(request: GenerateRequest) -> Any:
        if prompt_text(request) == "bad":
            return bp.BackendError("broken")
        return Reply("a", delay=9 if request.hints.path[-1] != 1 else 0.01)

    same = bp.function(body)
    run = same.run(backend=bp.Fake(script))
    run.save(tmp_path / "run.json")
    value, told = same.run(backend=bp.replay(tmp_path / "run.json")).value
    assert value == run.value[0] == "a"
    assert "broken" in told


def test_b3_a_failed_run_can_be_saved(tmp_path: Path) -> None:
    run = bp.function(lambda s: s.__iadd__(bp.gen("x") + "." + bp.gen("y")) and None).stream(
        backend=bp.Fake(["a", bp.BackendError("broken")])
    )
    run.save(tmp_path / "run.json")
    again = bp.function(lambda s: s.__iadd__(bp.gen("x") + "." + bp.gen("y")) and None)
    with pytest.raises(bp.ProgramError, match=r"gen 'y'.*broken"):
        again.run(backend=bp.replay(tmp_path / "run.json"))


def test_b3_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"program":"x","seed":1,"calls":[],"roles":[],"version":9}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(bp.ProgramMistake, match="recording"):
            bp.replay(tmp_path / "run.json")
