"""P6: programs as graphs: tracing, the JSON form and its spec, showing, running; what isn't a graph says so, with its line."""

import asyncio
import contextlib
import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import branchpoint as bp
from branchpoint.lang import nodes as op
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import prompt_text
from branchpoint.lang.graph import load_graph
from branchpoint.lang.nodes import InvalidGraph
from branchpoint.lang.placeholder import Untraceable


class Reply(BaseModel):
    subject: str
    body: str


@bp.function
def triage(s: bp.State, ticket: str, tone: str = "kind") -> dict[str, Any]:
    s += bp.system("You sort support " + "tickets.")
    s += bp.user(f"Ticket: {ticket}!")
    s += bp.assistant(bp.select("area", ["billing", "login"]))
    with s.fork(2) as (risk, reply):
        risk += bp.user("How urgent?") + bp.assistant(bp.gen("urgency", int))
        reply += bp.user(f"Be {tone} about {s['area']}.") + bp.assistant(bp.gen("reply", Reply))
    s += f"Urgency {risk['urgency']}: " + bp.gen("sum", max_tokens=5, stop=["."])
    s["note"] = f"about {s['area']}"
    return {"area": s["area"], "all": [risk["urgency"], reply["reply"]], "of": ticket, "n": 1, "text": f"{s['sum']}!"}


def backend() -> bp.Fake:
    def script(request: GenerateRequest) -> str:
        prompt = prompt_text(request)
        if "How urgent" in prompt:
            return "3"
        return '{"subject":"s","body":"b"}' if "about" in prompt else "in all. More"

    return bp.Fake(script, scores={"login": -0.1})


def test_p6_a_compiled_program_does_what_the_program_does() -> None:
    compiled = triage.compile()
    assert compiled.traced
    here, there = backend(), backend()
    run, same = triage.run(ticket="Help", backend=here, seed=5), compiled.run(ticket="Help", backend=there, seed=5)
    assert same.value == run.value
    assert same.value["all"] == [3, Reply(subject="s", body="b")]
    assert same.text() == run.text()
    assert same.messages() == run.messages()
    assert set(same.variables()) == set(run.variables())
    assert {name: same[name] for name in same.variables()} == {name: run[name] for name in run.variables()}
    assert sorted(there.prompts) == sorted(here.prompts)
    seeds = [sorted(r.sampling.seed or 0 for r in fake.requests if isinstance(r, GenerateRequest)) for fake in (here, there)]
    assert seeds[0] == seeds[1]
    assert compiled.run("Help", backend=backend()).value == run.value
    lines = [{record.origin.line for record in each.report().records} for each in (run, same)]
    assert lines[0] == lines[1]


def test_p6_tracing_performs_no_call() -> None:
    fake = backend()
    bp.set_default_backend(fake)
    try:
        triage.compile()
        outer = bp.function(lambda s: s.__iadd__("of another: " + triage.run(ticket="t").text()) and None)
        assert not outer.compile().traced
        assert [finding.rule for finding in outer.check()] == ["not-a-graph"]
    finally:
        bp.set_default_backend(None)
    assert not fake.requests


def test_p6_given_arguments_and_defaults_are_constants() -> None:
    compiled = triage.compile(ticket="Help")
    assert compiled.graph.parameters == ()
    assert compiled.run(backend=backend()).value["of"] == "Help"
    assert triage.bind(ticket="Bound").compile().graph.parameters == ()
    with pytest.raises(bp.ProgramMistake, match="nothing"):
        triage.compile(nothing=1)


def test_p6_a_graph_survives_json(tmp_path: Path) -> None:
    compiled = triage.compile()
    compiled.save(tmp_path / "graph.json")
    loaded = load_graph(tmp_path / "graph.json")
    assert loaded.graph == compiled.graph
    assert load_graph(compiled.to_json()).graph == compiled.graph
    assert json.loads(compiled.to_json())["version"] == 1
    value = loaded.run(ticket="Help", backend=backend()).value
    assert value["all"] == [3, {"subject": "s", "body": "b"}]
    assert loaded.show() == compiled.show()
    with pytest.raises(bp.ProgramMistake, match="ticket"):
        loaded.run(backend=backend())


def test_p6_a_graph_can_be_shown() -> None:
    shown = triage.compile().show().splitlines()
    assert shown[0] == "triage(ticket)"
    assert any("argument ticket" in line for line in shown)
    assert any("s0 fork into s1, s2" in line for line in shown)
    assert any("  s1 gen urgency: int" in line for line in shown)
    assert any("join s1, s2" in line for line in shown)
    assert sum(" text " in line for line in shown) == 9
    assert shown[-1].startswith("returns {area: value of")


def test_p6_a_graph_can_be_shown_as_a_page(tmp_path: Path) -> None:
    compiled = bp.function(
        lambda s, x: s.__iadd__("<b>" + x + bp.gen("y", max_tokens=3) + bp.select("z", ["p", "<q>"])) and None
    ).compile()
    page = compiled.to_html(tmp_path / "graph.html")
    assert (tmp_path / "graph.html").read_text() == page == compiled._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and "&lt;q&gt;" in page
    assert 'class="argument"' in page and "gen y: text (max_tokens=3)" in page and "test_graph.py:" in page
    whole = triage.compile().to_html()
    assert whole.count("<section>") == whole.count("</section>") == 3
    first, second = whole.index(">s1<"), whole.index(">s2<")
    assert whole.index("fork into s1, s2") < first < whole.index("gen urgency") < second < whole.index("join s1, s2")
    assert "<script" not in page + whole

    @bp.function
    def decides(s: bp.State) -> None:
        s += "a" + bp.gen("x")
        assert s["x"] == "b"

    interpreted = decides.compile()
    assert interpreted._repr_html_() is None
    with pytest.raises(bp.Untraceable):
        interpreted.to_html()


def test_p6_texts_of_a_state_are_joined_whatever_others_do_between() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        one, other = s.fork(2)
        for number in range(3):
            one += f"a{number}"
            other += f"b{number}"
        s += "c"
        s += "d"
        one += bp.gen("x")

    texts = [(node.state, node.text) for node in program.compile().graph.nodes if isinstance(node, op.Text)]
    assert texts == [(1, "a0a1a2"), (2, "b0b1b2"), (0, "cd")]


def test_p6_the_text_that_all_runs_begin_with_is_known_and_can_be_computed_before() -> None:
    @bp.function
    def program(s: bp.State, question: str) -> None:
        s += bp.system("Be brief.") + bp.user("The question is: " + question) + bp.assistant(bp.gen("x"))

    compiled = program.compile()
    assert "begins with 26 characters that all runs share" in compiled.show()
    fake = bp.Fake("yes")
    compiled.warm(backend=fake)
    (warmed,) = fake.requests
    assert isinstance(warmed, GenerateRequest) and warmed.sampling.max_tokens == 0
    run = compiled.run(question="Why?", backend=fake)
    assert run.meta("x").cached_tokens >= len(prompt_text(warmed))
    with pytest.raises(bp.ProgramMistake, match="nothing to warm"):
        bp.function(lambda s, x: s.__iadd__(x + bp.gen("y")) and None).compile().warm(backend=fake)


def test_p6_the_last_call_of_a_branch_says_that_nothing_goes_on_from_it() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += "a" + bp.gen("x")
        one, other = s.fork(2)
        one += "one" + bp.gen("y") + bp.gen("y2")
        other += "other" + bp.gen("z")
        (inner,) = other.fork(1)
        inner += "inner" + bp.select("w", ["p", "q"])
        s += bp.gen("end")

    def told(run: Any) -> dict[str, bool]:
        fake = bp.Fake("v")
        run(backend=fake)
        return {prompt_text(request)[-5:]: request.hints.returns for request in fake.requests}

    compiled = program.compile()
    of_graph = told(compiled.run)
    del of_graph["av"]  # that nothing comes behind the program's own last call is known only once it has been played
    assert of_graph == {"a": True, "avone": True, "vonev": False, "other": True, "inner": False}
    told_of_calls = told(program.run)
    assert all(told_of_calls[call] for call in ("a", "avone", "other"))


def test_p6_values_go_between_states_without_waiting() -> None:
    @bp.function
    def program(s: bp.State) -> str:
        slow, quick = s.fork(2)
        slow += "slow" + bp.gen("x")
        s += f"After {slow['x']}: " + bp.gen("y")
        quick += "quick" + bp.gen("z")
        return s["y"]  # type: ignore[no-any-return]

    async def script(request: GenerateRequest) -> str:
        if prompt_text(request) == "slow":
            await gate.wait()
        elif prompt_text(request) == "quick":
            gate.set()  # interpreted, the program would not come to this line before the slow one is done
        return "a"

    gate = asyncio.Event()
    fake = bp.Fake(script)
    run = program.compile().run(backend=fake)
    assert run.value == "a"
    assert run.text() == "After a: a"
    assert fake.prompts[-1] == "After a: "


def test_p6_subprograms_scopes_copies_and_appended_branches_are_traced() -> None:
    @bp.function
    def sub(s: bp.State, word: str) -> str:
        s += word + bp.gen("x")
        return s["x"]  # type: ignore[no-any-return]

    @bp.function
    def program(s: bp.State, first: str) -> list[str]:
        values = [sub(s, first)]
        with s.scope() as t:
            values.append(sub(t, "in scope"))
        with s.copy() as copied:
            copied += "copied" + bp.gen("c")
        forks = s.fork(2)
        forks += lambda number: f"{number}"
        forks.join("concate_and_append")
        s += bp.gen("n", n=2, pick=1)
        return [*values, s["c"], s["n"]]

    def answer(request: GenerateRequest) -> Any:
        return ["l", "r"] if request.sampling.n == 2 else f"<{prompt_text(request)}>"

    run, same = program.run(first="f", backend=bp.Fake(answer)), program.compile().run(first="f", backend=bp.Fake(answer))
    assert run.value == same.value == ["<f>", "<f<f>in scope>", "<f<f>copied>", ["l", "r"]]
    assert run.text() == same.text() == "f<f>01r"


def test_p6_failures_name_the_programs_line() -> None:
    compiled = triage.compile()
    with pytest.raises(bp.ProgramError, match=r"gen 'urgency'.*test_graph\.py:\d+, branch 0.*broken"):
        compiled.run(ticket="x", backend=bp.Fake(bp.BackendError("broken")))


def divmod_of(a: int, b: int) -> str:
    return str(divmod(a, b))


def decides(s: bp.State, x: Any) -> Any:
    s += bp.gen("y")
    if s["y"] == "yes":
        s += "more"


def returns_object(s: bp.State, x: Any) -> Any:
    return object()


def spoils_mark(s: bp.State, x: Any) -> Any:
    s += str(x).upper()


def swallows(s: bp.State, x: Any) -> Any:
    try:
        len(x)
    except bp.ProgramMistake:
        s += "went another way"


def choices_by_value(s: bp.State, x: Any) -> Any:
    s += bp.gen("y")
    s += bp.select("z", [f"{s['y']}", "b"])


def stop_by_value(s: bp.State, x: Any) -> Any:
    s += bp.gen("y") + bp.gen("z", json_schema={"const": f"{x}"})


UNTRACEABLE: list[Any] = [
    decides,
    returns_object,
    spoils_mark,
    swallows,
    choices_by_value,
    stop_by_value,
    lambda s, x: s.__iadd__("a" if x else "b"),
    lambda s, x: [s.__iadd__("a") for _ in range(x)],
    lambda s, x: s.__iadd__(x.strip()),
    lambda s, x: s.__iadd__("a" if hasattr(x, "strip") else "b"),
    lambda s, x: s.__iadd__(f"{x:>8}"),
    lambda s, x: s.__iadd__(f"{x!r}"),
    lambda s, x: s.__iadd__(f"{x + 'more'}"),
    lambda s, x: s.__iadd__(", ".join([x])),
    lambda s, x: s.__iadd__(json.dumps(x)),
    lambda s, x: s.__iadd__(x[0]),
    lambda s, x: {x: 1},
    lambda s, x: s.fork(x),
    lambda s, x: s.__iadd__(bp.gen("y", max_tokens=x)),
    lambda s, x: s.__iadd__(bp.gen("y", n=2, pick=len)),
    lambda s, x: s.__iadd__(bp.select("y", ["a"], choices_method=lambda options: [1.0])),
    lambda s, x: s.text(),
    lambda s, x: s.messages(),
    lambda s, x: s.mark() and None,
    lambda s, x: s.attempt(),
    lambda s, x: s.error(),
    lambda s, x: s.text_iter(),
    lambda s, x: s.__iadd__(bp.gen("y")) and s.meta("y"),
    lambda s, x: s.fork(2).first(),
    lambda s, x: s.fork(2).join(on_error="return"),
    lambda s, x: triage.run(ticket="t", backend=bp.Fake()),
    lambda s, x: triage.run_batch([(x,)], backend=bp.Fake()),
    lambda s, x: triage(ticket=x),
]


@pytest.mark.parametrize("body", UNTRACEABLE, ids=range(len(UNTRACEABLE)))
def test_p6_what_is_no_graph_says_so_with_its_line(body: Any) -> None:
    @functools.wraps(body)
    def program(s: bp.State, x: Any) -> Any:
        value = body(s, x)
        return None if isinstance(value, bp.State | bp.Fork) else value  # which would be no graph for that alone

    compiled = bp.function(program).compile()
    assert not compiled.traced
    assert compiled.reason is not None
    lines, first = inspect.getsourcelines(body)
    assert compiled.reason.origin.file == __file__
    assert first <= compiled.reason.origin.line < first + len(lines)
    assert "test_graph.py" in compiled.show()
    for use in (compiled.to_json, lambda: compiled.graph):
        with pytest.raises(Untraceable, match="interpretation"):
            use()


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (bp.gen("x", n=2, pick=len), "picks a sample by a function"),
        (bp.select("x", ["a"], choices_method=lambda options: [1.0]), "selects by a function"),
        (bp.gen("x", tools=[bp.tool(divmod_of)]), "offers tools"),
    ],
)
def test_p6_what_only_python_can_decide_is_named_where_no_value_is_missing(expression: bp.Expr, why: str) -> None:
    assert why in str(bp.function(lambda s: s.__iadd__(expression) and None).compile().reason)


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda s, x: 1 if x else 2, "decides by the argument 'x'"),
        (lambda s, x: x == 1, "compares the argument 'x'"),
        (lambda s, x: len(x), "looks into the argument 'x'"),
        (lambda s, x: range(x), "counts with the argument 'x'"),
        (lambda s, x: s.fork(x), "forks into a number of branches that isn't there"),
    ],
)
def test_p6_what_is_done_with_a_value_that_is_not_there_is_named_and_caught_by_nobody(use: Any, why: str) -> None:
    def body(s: bp.State, x: Any) -> None:
        with contextlib.suppress(TypeError):
            use(s, x)

    assert why in str(bp.function(body).compile().reason)


def test_p6_what_is_no_graph_is_interpreted() -> None:
    compiled = bp.function(decides).compile(x="x")
    assert compiled.run(backend=bp.Fake("yes")).text() == "yesmore"
    assert compiled.run(backend=bp.Fake("no")).text() == "no"


def test_p6_async_programs_are_interpreted() -> None:
    @bp.function
    async def program(s: bp.State) -> None:
        s += "a"

    compiled = program.compile()
    assert not compiled.traced
    assert compiled.run(backend=bp.Fake()).text() == "a"


def test_p6_mistakes_of_the_program_come_out_as_they_are() -> None:
    with pytest.raises(bp.UnknownVariable, match="nothing"):
        bp.function(lambda s: s["nothing"]).compile()
    with pytest.raises(ZeroDivisionError):
        bp.function(lambda s: 1 / 0).compile()


def graph(**changes: Any) -> str:
    base: dict[str, Any] = {"version": 1, "program": "p", "parameters": ["a"], "nodes": []}
    return json.dumps(base | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "isn't a graph"),
        (graph(version=2), "version 2"),
        (graph(more=1), "unknown field"),
        (graph(parameters=["a", "a"]), "different names"),
        (graph(parameters=["1"]), "different names"),
        (graph(nodes=[{"op": "run", "code": "x"}]), "isn't a graph"),
        (graph(nodes=[{"op": "text", "text": "x", "state": 1}]), r"Node 0 \(text\) adds to state 1"),
        (graph(nodes=[{"op": "argument", "name": "b"}]), "no parameter"),
        (graph(nodes=[{"op": "value", "of": 0}]), "no gen or select"),
        (graph(nodes=[{"op": "role", "role": "user", "opens": False}]), "closes 'user'"),
        (graph(nodes=[{"op": "role", "role": "user", "opens": True}] * 2), "Node 1.*opens 'user' while"),
        (graph(nodes=[{"op": "gen", "options": {"temperature": -1}}]), "temperature"),
        (graph(nodes=[{"op": "gen", "options": {"temperature": "hot"}}]), "isn't a graph"),
        (graph(nodes=[{"op": "gen", "kind": "int"}]), "read as int"),
        (graph(nodes=[{"op": "gen", "pick": 1}]), "picks sample 1 of 1"),
        (graph(nodes=[{"op": "select", "choices": []}]), "no choices"),
        (graph(nodes=[{"op": "select", "choices": ["a"], "method": "eval"}]), "choices_method"),
        (graph(nodes=[{"op": "fork", "children": [0]}]), "new states"),
        (graph(nodes=[{"op": "fork", "children": [-1]}]), "negative"),
        (graph(nodes=[{"op": "join", "children": [1]}]), "which no fork"),
        (graph(nodes=[{"op": "fork", "children": list(range(1, 2000))}]), "more than 1000 states"),
        (graph(nodes=[{"op": "text", "text": "x"}] * 10_001), "10000 nodes"),
        (graph(program="p" * 257), "at most 256 characters"),
        (graph(returns={"is": "value", "of": 3}), "what it returns"),
        (graph(variables={"x": {"is": "list", "items": [{"is": "argument", "name": "z"}]}}), "'x' the argument 'z'"),
    ],
)
def test_p6_graphs_from_elsewhere_are_held_to_the_spec(text: str, message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        load_graph(text)
