"""F1 to F3 (and what of F5 is free): forks, groups of branches, joins, copies."""

import asyncio
from typing import Any, cast

import pytest

import branchpoint as bp
from branchpoint.lang.asking import hints_of
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import prompt_text
from branchpoint.lang.variables import CallEntry


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def echo(request: GenerateRequest) -> str:
    return f"<{prompt_text(request)}>"


def test_f1_a_branch_does_not_wait_for_its_slow_siblings() -> None:
    def body(s: bp.State) -> list[str]:
        slow, quick = s.fork(2)
        slow += "slow" + bp.gen("x")
        quick += "quick" + bp.gen("x")
        quick += bp.gen("y")
        done = [quick["y"]]
        fake.dispatcher.post(gate.set)
        return [*done, slow["x"]]

    async def script(request: GenerateRequest) -> str:
        if prompt_text(request) == "slow":
            await gate.wait()
        return "a"

    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == ["a", "a"]


def test_f1_a_fork_is_no_barrier_for_the_program() -> None:
    def body(s: bp.State) -> list[str]:
        s += "start" + bp.gen("x")
        forks = s.fork(2)
        forks += bp.gen("y")
        (inner,) = forks[0].fork(1)
        inner += bp.gen("z")
        order.append("written")
        fake.dispatcher.post(gate.set)
        return [forks[1]["y"], inner["z"]]

    async def script(request: GenerateRequest) -> str:
        await gate.wait()
        order.append("answered")
        return "a"

    order: list[str] = []
    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == ["a", "a"]
    assert order[0] == "written"


def test_f1_a_fork_of_an_empty_state_is_legal() -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += bp.gen("x")
        return [fork["x"] for fork in forks]

    assert run(body, bp.Fake(echo)).value == ["<a>", "<b>"]


def test_f1_copying_costs_no_request_and_the_prefix_is_reused() -> None:
    def body(s: bp.State) -> list[int]:
        s += "a long prefix" + bp.gen("x")
        forks = s.fork(3)
        copies = [fork.copy() for fork in forks]
        assert [copy.text() for copy in copies] == ["a long prefixabc"] * 3
        assert len(fake.requests) == 1
        for copy in copies:
            copy += bp.gen("y")
        return [copy.meta("y").cached_tokens for copy in copies]

    fake = bp.Fake("abc")
    assert run(body, fake).value == [15, 15, 15]


def test_f1_a_fork_needs_a_size() -> None:
    def body(s: bp.State) -> None:
        for size in (0, -1, "2"):
            with pytest.raises(bp.ProgramMistake, match="number of branches"):
                s.fork(size)  # type: ignore[arg-type]

    run(body, bp.Fake())


def test_f2_adding_to_all_one_each_and_by_a_function() -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(3)
        forks += "all "
        forks += ["a ", "b ", bp.gen("x") + " "]
        forks += lambda number: f"number {number}"
        forks[1] += "!"
        assert len(forks) == 3
        assert [fork.branch for fork in forks] == [(0,), (1,), (2,)]
        assert forks[-1] is forks[2]
        assert len(forks[:2]) == 2
        return [fork.text() for fork in forks]

    assert run(body, bp.Fake("X")).value == ["all a number 0", "all b number 1!", "all X number 2"]


def test_f2_what_does_not_fit_is_refused() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        with pytest.raises(bp.ProgramMistake, match="2 branches, the list 3"):
            forks += ["a", "b", "c"]
        with pytest.raises(bp.ProgramMistake, match="got int"):
            forks += 5  # type: ignore[arg-type]
        with pytest.raises(bp.ProgramMistake, match="can't be replaced"):
            forks[0] = forks[1]

    run(body, bp.Fake())


def test_f3_join_gathers_what_the_branches_set() -> None:
    def body(s: bp.State) -> dict[str, Any]:
        s += bp.gen("shared")
        forks = s.fork(3)
        forks += lambda number: f"{number}" + bp.gen("x")
        forks[1] += bp.gen("only")
        forks[2]["set"] = 7
        forks.join()
        assert "shared" in s
        return {name: s[name] for name in s.variables()}

    values = run(body, bp.Fake(echo)).value
    assert values == {
        "shared": "<>",
        "x": ["<<>0>", "<<>1>", "<<>2>"],
        "only": [None, "<<>1<<>1>>", None],
        "set": [None, None, 7],
    }


def test_f3_a_with_block_joins_at_its_end_and_not_after_an_exception() -> None:
    def body(s: bp.State) -> None:
        with s.fork(2) as (left, right):
            left += bp.gen("x")
            right += bp.gen("x")
        assert s["x"] == ["a", "a"]
        assert left["x"] == "a"
        with pytest.raises(LookupError), s.fork(2) as forks:
            forks += bp.gen("y")
            raise LookupError
        assert "y" not in s

    run(body, bp.Fake("a"))


def test_f3_a_second_round_replaces_the_first() -> None:
    def body(s: bp.State) -> list[Any]:
        values = []
        for number in range(2):
            with s.fork(2) as forks:
                forks += f"{number}" + bp.gen("x")
            values.append(s["x"])
        return values

    assert run(body, bp.Fake(echo)).value == [["<0>", "<0>"], ["<1>", "<1>"]]


def test_f3_join_does_not_wait() -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.join()
        fake.dispatcher.post(gate.set)
        values: list[str] = s["x"]
        return values

    async def script(request: GenerateRequest) -> str:
        await gate.wait()
        return "a"

    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == ["a", "a"]


def test_f3_a_failed_branch_raises_naming_it_or_takes_its_slot() -> None:
    def script(request: GenerateRequest) -> Any:
        return bp.BackendError("broken") if prompt_text(request).endswith("1") else "fine"

    def body(s: bp.State, on_error: str) -> Any:
        forks = s.fork(3)
        forks += lambda number: f"{number}" + bp.gen("x")
        forks.join(on_error=on_error)
        return s["x"]

    program = bp.function(body)
    with pytest.raises(bp.ProgramError, match="branch 1"):
        program.run(on_error="raise", backend=bp.Fake(script))
    values = program.run(on_error="return", backend=bp.Fake(script)).value
    assert (values[0], values[2]) == ("fine", "fine")
    assert isinstance(values[1], bp.ProgramError)
    assert values[1].branch == (1,)


def test_f3_a_tolerated_failure_does_not_fail_the_run() -> None:
    def body(s: bp.State) -> str:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.join(on_error="return")
        return "done"

    assert run(body, bp.Fake(bp.BackendError("broken"))).value == "done"


def test_f3_joined_variables_have_no_single_meta() -> None:
    def body(s: bp.State) -> None:
        with s.fork(2) as forks:
            forks += bp.gen("x")
        with pytest.raises(bp.ProgramMistake, match="each branch"):
            s.meta("x")
        assert forks[0].meta("x").text == "a"

    run(body, bp.Fake("a"))


def test_f3_joining_can_append_the_branches_texts() -> None:
    def body(s: bp.State) -> str:
        s += "Facts:"
        forks = s.fork(2)
        forks += lambda number: f" {number}" + bp.gen("x", max_tokens=2)
        forks.join("concate_and_append")
        s += ". So" + bp.gen("y", max_tokens=1)
        assert "".join(s.text_iter()) == s.text()
        return s.text()

    fake = bp.Fake("abc")
    assert run(body, fake).value == "Facts: 0ab 1ab. Soa"
    assert fake.requests[2].segments[1].tokens == (97, 98)  # type: ignore[union-attr]


def test_f3_joining_texts_fails_where_a_branch_failed() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.join("concate_and_append")
        s.text()

    with pytest.raises(bp.ProgramError, match="broken"):
        run(body, bp.Fake(["a", bp.BackendError("broken")]))


def test_f3_a_copy_gives_scalars_back() -> None:
    def body(s: bp.State) -> tuple[str, str]:
        s += "Q"
        with s.copy() as other:
            other += "!" + bp.gen("x")
        return s["x"], s.text()

    assert run(body, bp.Fake(echo)).value == ("<Q!>", "Q")


def test_f5_branches_inherit_variables_role_and_options() -> None:
    def body(s: bp.State) -> list[str]:
        s += bp.user("Q") + bp.assistant_begin() + bp.gen("x")
        forks = s.fork(2)
        assert [fork["x"] for fork in forks] == ["a", "a"]
        assert forks[0].meta("x").text == "a"
        forks += " more" + bp.gen("y") + bp.assistant_end()
        s["x"] = "changed"
        assert forks[0]["x"] == "a"
        return [fork.messages()[-1]["content"] for fork in forks]

    fake = bp.Fake("a.b", capabilities=None)
    assert run(body, fake, stop=".").value == ["a morea", "a morea"]


def test_deep_trees_of_forks() -> None:
    def grow(s: bp.State, depth: int) -> list[bp.State]:
        if depth == 0:
            return [s]
        forks = s.fork(2)
        forks += lambda number: f"{number}" + bp.gen("x", max_tokens=1)
        return [leaf for fork in forks for leaf in grow(fork, depth - 1)]

    def body(s: bp.State) -> list[str]:
        return [leaf.text() for leaf in grow(s, 5)]

    result = run(body, bp.Fake("."))
    assert len(set(result.value)) == 32
    assert result.report().total.calls == 62
    assert len(result.states) == 63


@pytest.mark.parametrize("length", [1, 40, 100])
def test_long_ledgers_with_joined_texts_and_roles_stay_exact(length: int) -> None:
    def body(s: bp.State) -> tuple[str, int]:
        for number in range(length):
            s += f"{number}" + bp.gen("x", max_tokens=1)
        forks = s.fork(2)
        for number in range(length):
            forks += [f"a{number}" + bp.gen("x", max_tokens=1), bp.user(f"b{number}")]
        forks.join("concate_and_append")
        for number in range(length):
            s += bp.user(f"{number}") + bp.assistant(bp.gen("y", max_tokens=1))
        return s.text(), len(s.messages())

    text, messages = run(body, bp.Fake(".")).value
    head = "".join(f"{number}." for number in range(length)) + "".join(f"a{number}." for number in range(length))
    users = [f"<|im_start|>user\nb{number}<|im_end|>\n" for number in range(length)]
    turns = [f"<|im_start|>user\n{number}<|im_end|>\n<|im_start|>assistant\n.<|im_end|>\n" for number in range(length)]
    assert text == head + "".join(users) + "".join(turns)
    assert messages == 3 * length


def test_a_tree_may_be_deeper_than_pythons_stack() -> None:
    def body(s: bp.State) -> str:
        for _ in range(1200):
            (s,) = s.fork(1)
        s += "deep " + bp.gen("x")
        value: str = s["x"]
        return value

    assert run(body, bp.Fake("abc")).value == "abc"


def test_f3_messages_of_appended_branches_are_messages_of_the_prompt() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += lambda number: bp.user(f"Q{number}")
        forks.join("concate_and_append")
        s += bp.gen("x")

    fake = bp.Fake("v")
    bp.function(body).run(backend=fake)
    assert fake.requests[0].messages == tuple({"role": "user", "content": f"Q{number}"} for number in range(2))


def test_what_is_joined_or_of_a_program_that_is_written_is_not_said_to_go_on() -> None:
    seen: dict[str, bool] = {}

    def note(states: dict[str, bp.State]) -> None:
        seen.update({name: hints_of(cast(CallEntry, state.variable(name))).returns for name, state in states.items()})

    def body(s: bp.State) -> None:
        s += "a" + bp.gen("first")
        branches = s.fork(2)
        branches[0] += bp.gen("one") + bp.gen("two")
        branches[1] += bp.gen("left")
        note({"first": s, "left": branches[1]})
        assert seen == {"first": True, "left": True}
        branches.join()
        note({"first": s, "one": branches[0], "two": branches[0], "left": branches[1]})
        assert seen == {"first": True, "one": True, "two": False, "left": False}
        s += bp.gen("last")
        note({"last": s})
        assert seen["last"]

    done = run(body, bp.Fake("v"))
    note({"first": done.state, "last": done.state})
    assert seen["first"] and not seen["last"]
