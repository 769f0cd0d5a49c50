"""Bad input of every kind: refused on the line that is wrong, by our own errors, which say what to write instead."""

import copy
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import branchpoint as bp
from branchpoint.runtime.errors import InvalidRequest


class Reply(BaseModel):
    subject: str


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: bp.select("x", None), "choices must be a list of strings, got None"),
        (lambda: bp.select("x", 5), "choices must be a list of strings, got 5"),
        (lambda: bp.gen("x", regex=5), "regex must be a string, got int 5"),
        (lambda: bp.gen("x", regex=bp.regex("a")), r"Write gen\(name, regex\(\.\.\.\)\)"),
        (lambda: bp.gen("x", ebnf=["a"]), "ebnf must be a string, got list"),
        (lambda: bp.gen("x", json_schema=[1]), "json_schema must be a dict or JSON text"),
        (lambda: bp.gen("x", json_schema=Reply), r"For a type, write gen\(name, TheType\)"),
        (lambda: bp.gen("x", json_schema={"default": object()}), "must be a dict that JSON can hold"),
        (lambda: bp.gen("x", json_schema={"minimum": float("nan")}), "must be a dict that JSON can hold"),
        (lambda: bp.regex(None), "regex must be a string, got NoneType"),
        (lambda: bp.ebnf(3), "ebnf must be a string"),
        (lambda: bp.json_schema(3), "json_schema must be a dict or JSON text, got 3"),
        (lambda: bp.substring(5), "substring must be a string, got int 5"),
        (lambda: bp.gen("x", max_tokens=2, max_new_tokens=3), "are one option; give one"),
    ],
)
def test_what_no_program_can_mean_is_a_mistake_on_its_line(make: Callable[[], object], told: str) -> None:
    with pytest.raises(bp.ProgramMistake, match=told):
        make()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: bp.gen("x", stop=5), "wrong type.*stop"),
        (lambda: bp.gen("x", stop_token_ids=5), "wrong type.*stop_token_ids"),
        (lambda: bp.gen("x", logit_bias={"word": 1}), "logit_bias must give a number for each token id"),
        (lambda: bp.gen("x", logit_bias={5: None}), "logit_bias must give a number for each token id"),
        (lambda: bp.gen("x", top_k=-2), "top_k must be"),
    ],
)
def test_an_impossible_option_is_refused_on_its_line(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        make()


def test_choices_may_be_any_iterable_of_strings() -> None:
    assert bp.select("x", (name for name in "ab")).choices == ("a", "b")  # type: ignore[arg-type]  # what users write, too
    assert bp.select("x", {"a": 1, "b": 2}.keys()).choices == ("a", "b")  # type: ignore[arg-type]  # as above


@bp.function
def ask(s: bp.State) -> None:
    s += bp.gen("x")


@pytest.mark.parametrize("given", ["openai", 5, object(), bp.Fake, bp.Engine])
def test_what_is_no_backend_is_refused_before_anything_runs(given: Any) -> None:
    for use in (lambda: ask.run(backend=given), lambda: bp.set_default_backend(given), lambda: bp.flush_cache(given)):
        with pytest.raises(bp.ProgramMistake, match="A backend is an Engine, a RuntimeEndpoint or the like"):
            use()


def test_a_join_knows_two_ways_to_meet_an_error() -> None:
    def body(s: bp.State) -> None:
        s.fork(2).join(on_error="ignore")  # type: ignore[arg-type]  # that is the test

    with pytest.raises(bp.ProgramMistake, match="on_error must be 'raise' or 'return', got 'ignore'"):
        bp.function(body).run(backend=bp.Fake(""))


def test_a_closed_backend_leaves_no_thread_of_its_loop() -> None:
    with bp.RuntimeEndpoint("http://localhost:1", retries=0) as endpoint, pytest.raises(bp.ProgramError, match="Can't reach"):
        ask.run(backend=endpoint)  # looks the name up in a thread
    for thread in threading.enumerate():
        if thread.name.startswith(("branchpoint-", "asyncio")):
            thread.join(10)
            assert not thread.is_alive(), thread.name


def test_a_program_that_yields_is_refused_where_it_is_made() -> None:
    def generator(s: bp.State) -> Iterator[str]:
        s += bp.gen("x")
        yield s["x"]

    async def asynchronous(s: bp.State) -> AsyncIterator[str]:
        s += bp.gen("x")
        yield await s.aget("x")

    for function in (generator, asynchronous):
        with pytest.raises(bp.ProgramMistake, match="stream=True"):
            bp.function(function)


def test_an_expression_in_an_f_string_is_refused_on_its_line() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += f"Hello {bp.gen('x')}"

    with pytest.raises(bp.ProgramMistake, match="isn't text yet"):
        program.run(backend=bp.Fake("v"))
    assert "'x'" in f"{bp.gen('x')!r}"


@bp.function
def pickled(s: bp.State, word: str = "w") -> str:
    s += word + bp.gen("x")
    return s["x"]


def test_programs_and_unused_backends_go_to_other_processes_and_runs_say_that_they_dont() -> None:
    again = pickle.loads(pickle.dumps(pickled))
    backend = pickle.loads(pickle.dumps(bp.Fake("v")))
    run = again.run(backend=backend)
    assert again is pickled and run.value == "v"
    for given in (run, run.state):
        for action in (pickle.dumps, copy.deepcopy):
            with pytest.raises(bp.ProgramMistake, match=r"run\.save"):
                action(given)
    with pytest.raises(bp.ProgramMistake, match="one in each process"):
        pickle.dumps(backend)


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @bp.function
    def greet(self, s: bp.State, who: str = "you") -> str:
        s += f"{self.name} greets {who}" + bp.gen("x")
        return s.text()

    greeting = pickled


def test_a_method_is_a_program_of_its_object() -> None:
    shop = Shop("Ada's")
    assert shop.greet.run(who="me", backend=bp.Fake("!")).value == "Ada's greets me!"
    assert [run.value for run in shop.greet.run_batch([{"who": "a"}, {}], backend=bp.Fake("!"))][1] == "Ada's greets you!"
    assert shop.greeting is pickled
