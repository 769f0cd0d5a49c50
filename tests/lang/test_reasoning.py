"""LANGUAGE R3: thinking and answer are two variables and two streams; what is around stays; later prompts drop the thinking."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import branchpoint as bp
from branchpoint.lang.backends.fake import Reply
from branchpoint.lang.expr import Reasoning
from branchpoint.lang.reasoning import Splitter
from branchpoint.runtime.messages import Ids, Text

THOUGHT = "<think>\nTwo and two.\n</think>\n\nIt is four."


def one(s: bp.State, /, **options: Any) -> None:
    s += bp.user("2+2?")
    s += bp.assistant(bp.separate_reasoning("Well: " + bp.gen("x", **options) + " Right?"))


def test_r3_thinking_and_answer_are_two_variables() -> None:
    run = bp.function(one).run(backend=bp.Fake(THOUGHT))
    assert (run["x"], run["x_reasoning_content"]) == ("It is four.", "Two and two.")
    assert run.meta("x").reasoning == "Two and two."
    assert run.meta("x_reasoning_content") == run.meta("x")


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
def test_r3_thinking_and_answer_are_two_streams(piece: int) -> None:
    run = bp.function(one).stream(backend=bp.Fake(THOUGHT, piece=piece))
    assert "".join(run.text_iter("x")) == "It is four."
    assert "".join(run.text_iter("x_reasoning_content")) == "Two and two."
    assert "".join(run.text_iter()) == run.text()
    assert "".join(run.state.text_iter("x_reasoning_content")) == "Two and two."


def test_r3_a_program_reads_both_streams_of_its_own_state_as_they_come() -> None:
    def body(s: bp.State) -> list[str]:
        one(s)
        return ["".join(s.text_iter("x_reasoning_content")), "".join(s.text_iter("x"))]

    run = bp.function(body).run(backend=bp.Fake(Reply(THOUGHT, delay=0.01)))
    assert run.value == ["Two and two.", "It is four."]


async def test_r3_the_streams_can_be_read_in_a_loop() -> None:
    run = bp.function(one).stream(backend=bp.Fake(THOUGHT))
    assert "".join([piece async for piece in run.text_iter("x_reasoning_content")]) == "Two and two."
    assert "".join([piece async for piece in run.state.text_iter("x")]) == "It is four."


def test_r3_thinking_comes_before_the_answer_is_there() -> None:
    backend = bp.Fake(Reply(THOUGHT, delay=0.05), piece=1)
    run = bp.function(one).stream(backend=backend)
    first = next(iter(run.text_iter("x_reasoning_content", cancel=True)))
    assert first == "T"
    with pytest.raises(bp.ProgramError):
        run.wait()  # its only reader has gone
    assert backend.aborted


def test_r3_the_text_around_stays_and_later_prompts_drop_the_thinking() -> None:
    def body(s: bp.State) -> list[dict[str, str]]:
        one(s)
        s += bp.user("And 3+3?") + bp.assistant(bp.gen("y"))
        return s.messages()

    backend = bp.Fake([THOUGHT, "six"], piece=1)
    run = bp.function(body).run(backend=backend)
    assert run.value[1] == {"role": "assistant", "content": "Well: It is four. Right?"}
    assert "Two and two" not in backend.prompts[1] + run.text()
    assert "Well: It is four. Right?<|im_end|>" in backend.prompts[1]
    answer = next(segment for segment in backend.requests[1].segments if isinstance(segment, Ids))
    assert answer.text == "It is four."  # still the ids that the model made


def test_r3_thinking_can_be_kept() -> None:
    def body(s: bp.State) -> None:
        s += "Q" + bp.separate_reasoning(bp.gen("x"), keep=True) + " Next" + bp.gen("y")

    backend = bp.Fake([THOUGHT, "!"])
    run = bp.function(body).stream(backend=backend)
    assert "".join(run.text_iter()) == run.text() == "Q" + THOUGHT + " Next!"
    assert run["x"] == "It is four."
    assert backend.prompts[1] == "Q" + THOUGHT + " Next"


@pytest.mark.parametrize("keep", [False, True])
def test_r3_a_typed_answer_is_held_to_its_type_and_the_thinking_is_free(keep: bool) -> None:
    def body(s: bp.State) -> int:
        s += "2+2? " + bp.separate_reasoning(bp.gen("x", int, max_tokens=60), keep=keep) + " So" + bp.gen("y")
        value: int = s["x"]
        return value

    backend = bp.Fake(["Hm. Four.\n</think> not reached", "4", "."])
    run = bp.function(body).stream(backend=backend)
    assert "".join(run.text_iter("x_reasoning_content")) == "Hm. Four."
    assert "".join(run.text_iter("x")) == "4"
    assert run.value == 4
    think, answer, after = backend.requests
    assert not hasattr(think, "options")
    assert think.constraint is None and answer.constraint is not None  # type: ignore[union-attr]  # gens, as asserted
    assert backend.prompts[1] == "2+2? <think>\nHm. Four.\n</think>\n\n"
    assert Text("</think>\n\n", special=True) in answer.segments
    assert answer.sampling.max_tokens == 60 - len("Hm. Four.\n")  # type: ignore[union-attr]  # as above
    assert after.segments[0] == Text("2+2? ") or keep
    assert "".join(run.text_iter()) == run.text()
    assert ("Hm." in backend.prompts[2]) is keep
    assert run.report().total.calls == 2
    assert run.meta("x").completion_tokens == len("Hm. Four.\n") + 1


def test_r3_stops_end_the_answer_not_the_thinking() -> None:
    def body(s: bp.State) -> None:
        s += bp.separate_reasoning(bp.gen("x", stop="."))

    backend = bp.Fake(["One. Two.</think>", "Three. Four"])
    run = bp.function(body).run(backend=backend)
    assert (run["x"], run["x_reasoning_content"]) == ("Three", "One. Two.")


def test_r3_a_template_that_opened_or_closed_the_thinking_is_believed() -> None:
    def body(s: bp.State, /, before: str, **options: Any) -> None:
        s += before + bp.separate_reasoning(bp.gen("x", **options))

    program = bp.function(body)
    run = program.run(before="Q<think>\n", backend=bp.Fake("hm</think>yes"))
    assert (run["x"], run["x_reasoning_content"]) == ("yes", "hm")
    run = program.bind(before="Q<think>\n\n</think>\n\n").run(backend=bp.Fake("7"))
    assert (run["x"], run["x_reasoning_content"]) == ("7", "")

    def typed(s: bp.State) -> None:
        s += "Q<think>\n\n</think>\n\n" + bp.separate_reasoning(bp.gen("x", int))

    backend = bp.Fake("7")
    assert bp.function(typed).run(backend=backend)["x"] == 7
    assert len(backend.requests) == 1


def test_r3_a_cut_in_the_thinking_leaves_no_value() -> None:
    def body(s: bp.State, kind: object) -> None:
        s += bp.separate_reasoning(bp.gen("x", kind, max_tokens=8))

    program = bp.function(body)
    run = program.run(kind=str, backend=bp.Fake("<think>on and on"))
    assert (run["x"], run["x_reasoning_content"], run.meta("x").finish_reason) == ("", "o", "length")
    run = program.run(kind=int, backend=bp.Fake("on and on"))
    assert run["x_reasoning_content"] == "on and o"
    with pytest.raises(bp.Incomplete):
        run["x"]


def test_r3_several_samples_think_each() -> None:
    def body(s: bp.State) -> None:
        s += "Q" + bp.separate_reasoning(bp.gen("x", n=2, pick=lambda texts: 1))

    run = bp.function(body).run(backend=bp.Fake([["<think>a</think>b", "<think>c</think>d"]]))
    assert run["x"] == ["b", "d"]
    assert run["x_reasoning_content"] == ["a", "c"]
    assert run.text() == "Qd"


def test_r3_what_can_not_be_meant_is_refused_on_its_line() -> None:
    with pytest.raises(bp.ProgramMistake, match="knows the models deepseek-r1"):
        bp.separate_reasoning(bp.gen("x"), model_type="gpt")
    with pytest.raises(bp.ProgramMistake, match="several samples"):
        bp.separate_reasoning(bp.gen("x", int, n=2))
    with pytest.raises(bp.ProgramMistake, match="empty"):
        bp.separate_reasoning(bp.gen("x"), start="")
    with pytest.raises(bp.ProgramError, match="several samples"):
        bp.function(lambda s: s.__iadd__(bp.separate_reasoning(bp.gen("x", int))) and None).run(backend=bp.Fake("1"), n=2)


def test_r3_other_marks_and_models() -> None:
    def body(s: bp.State, /, **marks: Any) -> None:
        s += bp.separate_reasoning(bp.gen("x"), **marks)

    program = bp.function(body)
    run = program.run(model_type="kimi", backend=bp.Fake("◁think▷a◁/think▷b"))
    assert (run["x"], run["x_reasoning_content"]) == ("b", "a")
    run = program.run(model_type="deepseek-r1", backend=bp.Fake("a</think>b"))
    assert (run["x"], run["x_reasoning_content"]) == ("b", "a")
    run = program.run(start="[T]", end="[/T]", backend=bp.Fake("[T]a[/T]b"))
    assert (run["x"], run["x_reasoning_content"]) == ("b", "a")


def test_r3_it_can_be_attempted_again_and_rolled_back() -> None:
    def body(s: bp.State) -> None:
        with s.attempt(check=lambda s: s["x"] == "good"):
            s += "Q" + bp.separate_reasoning(bp.gen("x"))

    run = bp.function(body).run(backend=bp.Fake(["<think>1</think>bad", "<think>2</think>good"]))
    assert (run["x"], run["x_reasoning_content"]) == ("good", "2")


def test_r3_a_saved_run_plays_again_and_a_graph_says_that_it_is_none(tmp_path: Path) -> None:
    def body(s: bp.State) -> None:
        s += "Q" + bp.separate_reasoning(bp.gen("x") + bp.gen("n", int))

    program = bp.function(body)
    run = program.run(backend=bp.Fake([THOUGHT, "so</think>", "4"]))
    run.save(tmp_path / "run.json")
    again = program.run(backend=bp.replay(tmp_path / "run.json"))
    names = ("x", "x_reasoning_content", "n", "n_reasoning_content")
    assert [again[name] for name in names] == [run[name] for name in names]
    assert again["n"] == 4
    assert "thinking" in str(program.compile().reason)


TAGS = Reasoning("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "inside", "thought", "said"),
    [
        (" plain", False, "", " plain"),
        ("\n\n<think>a</think>\n\nb", False, "a", "b"),
        ("<think>\n\n</think>\n\nb", False, "", "b"),
        ("a <think>b</think> c <think> d </think>", False, "b\nd", "a c"),
        ("<think>a</thin", False, "a</thin", ""),
        ("a <thin", False, "", "a <thin"),
        ("a</think>b", True, "a", "b"),
        (" <think>a</think>b", True, "a", "b"),
        ("", False, "", ""),
        (" \n", False, "", " \n"),
    ],
)
def test_a_splitter_gives_the_same_however_the_text_comes(text: str, inside: bool, thought: str, said: str) -> None:
    for size in (1, 2, 3, 50):
        splitter = Splitter(TAGS, inside=inside)
        parts = [splitter.feed(text[at : at + size]) for at in range(0, len(text), size)] + [splitter.finish()]
        assert ("".join(part[0] for part in parts), "".join(part[1] for part in parts)) == (thought, said)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", " ", "\n", "a", "</"]), max_size=12), st.booleans(), st.data())
def test_a_splitter_never_depends_on_where_pieces_end(parts: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    whole = Splitter(TAGS, inside=inside)
    first, last = whole.feed(text), whole.finish()
    cut = data.draw(st.integers(0, len(text)))
    pieces = Splitter(TAGS, inside=inside)
    found = [pieces.feed(text[:cut]), pieces.feed(text[cut:]), pieces.finish()]
    assert tuple("".join(each[side] for each in found) for side in (0, 1)) == (first[0] + last[0], first[1] + last[1])
