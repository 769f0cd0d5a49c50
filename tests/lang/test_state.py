"""S1 to S9: what a state holds and how it is read."""

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

import branchpoint as bp
from branchpoint.constrained.spec import Choice, Ebnf, JsonSchema, Regex
from branchpoint.lang.backends.base import Capabilities, GenerateRequest, ScoreRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.lang.later import LATER
from branchpoint.runtime.messages import Ids, Text
from branchpoint.runtime.sampling import SamplingParams


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def generated(fake: bp.Fake) -> list[GenerateRequest]:
    return [request for request in fake.requests if isinstance(request, GenerateRequest)]


def sampling(fake: bp.Fake) -> SamplingParams:
    return generated(fake)[-1].sampling


def test_s1_generated_text_goes_on_as_the_ids_that_the_model_made() -> None:
    def body(s: bp.State) -> None:
        s += "One" + bp.gen("a")
        s += "Two" + bp.gen("b")

    fake = bp.Fake("xy")
    run(body, fake)
    assert generated(fake)[1].segments == (Text("One"), Ids((120, 121), "xy"), Text("Two"))


def test_s1_everything_earlier_is_reused() -> None:
    def body(s: bp.State) -> None:
        s += "One" + bp.gen("a")
        s += "Two" + bp.gen("b")

    result = run(body, bp.Fake("xy"))
    assert result.meta("b").prompt_tokens == 8
    assert result.meta("b").cached_tokens == 5


def test_s1_neighbouring_constants_are_one_text() -> None:
    def body(s: bp.State) -> None:
        s += "One"
        s += " and"
        s += " two" + bp.select("x", ["b", "a"])
        s += "!" + bp.gen("y")

    fake = bp.Fake("xy", scores={"a": -1.0, "b": -2.0})
    run(body, fake)
    assert fake.requests[0].segments == (Text("One and two"),)
    assert fake.requests[1].segments == (Text("One and twoa!"),)
    assert generated(fake)[0].heal


def test_s1_a_backend_without_ids_gets_text() -> None:
    def body(s: bp.State) -> None:
        s += "One" + bp.gen("a") + bp.gen("b")

    fake = bp.Fake("xy", capabilities=Capabilities(ids=False))
    run(body, fake)
    assert fake.requests[1].segments == (Text("One"), Text("xy"))


def test_s2_wrong_types_are_refused_on_their_line_and_change_nothing() -> None:
    def body(s: bp.State) -> str:
        for wrong in (5, None, bp.gen, ["a"]):
            with pytest.raises(TypeError, match="text and expressions"):
                s += wrong  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            s += "a" + bp.user(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            "a" + bp.gen("x") + 5  # type: ignore[operator]
        s += "fine"
        return s.text()

    assert run(body, bp.Fake()).value == "fine"


def test_s2_adding_never_waits() -> None:
    def body(s: bp.State) -> list[str]:
        for number in range(50):
            s += bp.gen(f"x{number}")
        order.append("added")
        fake.dispatcher.post(gate.set)
        return [s[f"x{number}"] for number in range(50)]

    async def script(request: GenerateRequest) -> str:
        await gate.wait()
        order.append("answered")
        return "a"

    order: list[str] = []
    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == ["a"] * 50
    assert order[0] == "added"


def test_s2_reading_waits_for_no_more_than_it_needs() -> None:
    def body(s: bp.State) -> str:
        s += "first" + bp.gen("x")
        s += "later" + bp.gen("y")
        first: str = s["x"]
        assert "".join(s.text_iter("x")) == first == "a"
        assert s.meta("x").text == "a"
        fake.dispatcher.post(gate.set)  # "y" is answered only now
        return s.text()

    async def script(request: GenerateRequest) -> str:
        if prompt_text(request).endswith("later"):
            await gate.wait()
        return "a"

    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == "firstalatera"


def test_s2_a_missing_variable_says_what_there_is() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("here")
        assert s.get("gone", 1) == 1
        assert s.get("here") == "x"
        s["gone"]

    with pytest.raises(KeyError, match="no variable 'gone'; it has 'here'"):
        run(body, bp.Fake("x"))


def test_s3_a_name_can_be_generated_again() -> None:
    def body(s: bp.State) -> list[str]:
        s += bp.gen("x")
        first = s["x"]
        s += bp.gen("x")
        return [first, s["x"]]

    assert run(body, bp.Fake(["one", "two"])).value == ["one", "two"]


def test_s3_setting_a_variable_is_ordered_as_written() -> None:
    def body(s: bp.State) -> list[object]:
        s += bp.gen("x")
        s["x"] = 5
        first = s["x"]
        s += bp.gen("x")
        s["y"] = "set"
        with pytest.raises(bp.ProgramMistake, match="set by the program"):
            s.meta("y")
        return [first, s["x"], s["y"]]

    assert run(body, bp.Fake(["one", "two"])).value == [5, "two", "set"]


def test_s4_one_expression_serves_many_states() -> None:
    question = bp.user("Q") + bp.assistant(bp.gen("x", stop=["."]))
    doubled = question + question

    def body(s: bp.State) -> list[str]:
        forks = s.fork(2)
        forks += question
        forks += question + "more"
        forks += doubled
        return [fork.text() for fork in forks]

    texts = run(body, bp.Fake("a.b")).value
    assert texts[0] == texts[1]
    assert texts[0].count("<|im_start|>user\nQ") == 4
    assert len(question.parts) == 6
    with pytest.raises(AttributeError):
        question.parts = ()  # type: ignore[misc]


def test_s4_options_are_copied_when_an_expression_is_made() -> None:
    stops = ["."]
    expression = bp.gen("x", stop=stops)
    stops.append("b")
    fake = bp.Fake("ab.c")
    result = run(lambda s: s.__iadd__(expression) and None, fake)
    assert result["x"] == "ab"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (int, "42", 42),
        (float, "1.5", 1.5),
        (bool, "true", True),
        (str, "any", "any"),
        (Color, "blue", Color.BLUE),
        (list[int], "[1,2]", [1, 2]),
        (Person, '{"name":"Ada","age":36}', Person(name="Ada", age=36)),
        (Point, '{"x":1,"y":2}', Point(1, 2)),
        ({"type": "object"}, '{"a":1}', {"a": 1}),
    ],
)
def test_s5_values_are_typed(wanted: object, text: str, value: object) -> None:
    fake = bp.Fake(text)
    result = run(lambda s: s.__iadd__(bp.gen("x", wanted)) and None, fake)
    assert result["x"] == value
    assert type(result["x"]) is type(value)
    assert (generated(fake)[0].constraint is None) == (wanted is str)


def test_s5_the_second_argument_may_be_a_number_of_tokens() -> None:
    fake = bp.Fake("abcdef")
    result = run(lambda s: s.__iadd__(bp.gen("x", 3)) and None, fake)
    assert result["x"] == "abc"
    assert sampling(fake).max_tokens == 3


def test_s5_a_plain_text_that_was_cut_is_that_text() -> None:
    result = run(lambda s: s.__iadd__(bp.gen("x", max_tokens=2)) and None, bp.Fake("abc"))
    assert result["x"] == "ab"
    assert result.meta("x").finish_reason == "length"


@pytest.mark.parametrize("expression", [bp.gen("x", int, max_tokens=2), bp.gen("x", regex="[0-9]+", max_tokens=2)])
def test_s5_a_constrained_value_that_was_cut_raises_when_read(expression: bp.Expr) -> None:
    def body(s: bp.State) -> str:
        s += expression  # type: ignore[operator]
        s += " and so on"
        with pytest.raises(bp.Incomplete) as caught:
            s["x"]
        assert caught.value.partial == "12"
        assert caught.value.variable == "x"
        assert s.meta("x").text == "12"
        return s.text()

    assert run(body, bp.Fake("123")).value == "12 and so on"


def test_s5_text_that_is_no_such_value_raises_when_read() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x", int)
        with pytest.raises(bp.ProgramError, match="isn't a int") as caught:
            s["x"]
        assert isinstance(caught.value.__cause__, ValueError)

    run(body, bp.Fake("one"))


def test_s5_meta_tells_how_the_call_went() -> None:
    def body(s: bp.State) -> None:
        s += "abc" + bp.gen("x", stop=["!"], return_logprob=True, top_logprobs_num=2, logprob_start_len=1)

    fake = bp.Fake(Reply("hey!you", forced=1, drafted=4, accepted=2))
    meta = run(body, fake).meta("x")
    assert (meta.text, meta.finish_reason, meta.stop, meta.tokens) == ("hey", "stop", "!", (104, 101, 121))
    assert (meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == (3, 0, 3)
    assert (meta.forced_tokens, meta.drafted_tokens, meta.accepted_tokens) == (1, 4, 2)
    assert [entry.text for entry in meta.logprobs] == [b"h", b"e", b"y"]
    assert [entry.text for entry in meta.prompt_logprobs] == [b"b", b"c"]
    assert (sampling(fake).logprobs, sampling(fake).prompt_logprobs_start) == (2, 1)
    assert meta.as_dict()["forced_tokens"] == 1
    assert meta.seconds >= 0


def test_s5_patterns_reach_the_backend() -> None:
    expressions = [
        bp.gen(regex="a+"),
        bp.gen(ebnf="start: /a/"),
        bp.gen(json_schema={"type": "object"}),
        bp.gen(choices=["a", "b"], method="mask"),
        bp.gen("x", bp.regex("b+")),
        bp.gen("x", bp.json_schema('{"type":"string"}')),
        bp.gen("x", bp.substring('say "a"')),
    ]

    def body(s: bp.State) -> None:
        for expression in expressions:
            s += expression

    fake = bp.Fake('"a"')
    run(body, fake)
    constraints = [request.constraint for request in generated(fake)]
    assert constraints[:4] == [Regex("a+"), Ebnf("start: /a/"), JsonSchema('{"type": "object"}'), Choice(("a", "b"))]
    assert constraints[4:6] == [Regex("b+"), JsonSchema('{"type":"string"}')]
    assert isinstance(constraints[6], Ebnf)
    assert "substring_chars" in constraints[6].grammar


def test_s5_a_constraint_that_the_backend_lacks_is_refused() -> None:
    fake = bp.Fake("1", capabilities=Capabilities(constraints=frozenset({"regex"}), logprobs=False))
    with pytest.raises(bp.ProgramError, match="can't hold output to a json_schema; it can: regex"):
        run(lambda s: s.__iadd__(bp.gen("x", {"type": "object"})) and None, fake)
    with pytest.raises(bp.ProgramError, match="no logprobs"):
        run(lambda s: s.__iadd__(bp.gen("x", return_logprob=True)) and None, fake)
    assert not fake.requests


def test_s6_there_is_no_hidden_limit() -> None:
    fake = bp.Fake("a" * 5000)
    result = run(lambda s: s.__iadd__(bp.gen("x")) and None, fake)
    assert len(result["x"]) == 5000
    assert sampling(fake).max_tokens is None


def test_s6_max_tokens_is_a_hard_cap() -> None:
    fake = bp.Fake("a" * 5000)
    result = run(lambda s: s.__iadd__(bp.gen("x")) and None, fake, max_new_tokens=7)
    assert result["x"] == "a" * 7
    assert sampling(fake).max_tokens == 7


def test_s7_the_earliest_stop_wins_and_nothing_of_it_is_kept() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x", stop=["later", "so"])
        s += "|" + bp.gen("y")

    fake = bp.Fake(["up so later", "z"])
    result = run(body, fake)
    assert result["x"] == "up "
    assert result.meta("x").stop == "so"
    assert result.text() == "up |z"
    assert "".join(result.text_iter("x")) == "up "
    assert generated(fake)[1].segments[0] == Ids((117, 112, 32), "up ")


def test_s8_n_gives_a_list_and_goes_on_from_the_picked_one() -> None:
    def body(s: bp.State) -> tuple[list[str], str]:
        s += "Q" + bp.gen("x", n=3)
        s += bp.gen("y", n=2, pick=1)
        s += bp.gen("z", int, n=2, pick=lambda texts: texts.index(max(texts)))
        return s["x"], s.text()

    fake = bp.Fake([["a", "b", "c"], ["d", "e"], ["1", "2"]])
    result = run(body, fake)
    assert result.value == (["a", "b", "c"], "Qae2")
    assert result["y"] == ["d", "e"]
    assert result["z"] == [1, 2]
    assert [sample.text for sample in result.meta("x").samples] == ["a", "b", "c"]
    assert result.meta("y").text == "e"
    assert "".join(result.text_iter()) == "Qae2"
    assert len(fake.requests) == 3


def test_s8_an_impossible_pick_fails_the_call() -> None:
    for pick in (2, lambda texts: 9):
        with pytest.raises(bp.ProgramError, match="pick must"):
            run(lambda s, pick=pick: s.__iadd__(bp.gen("x", n=2, pick=pick)) and None, bp.Fake([["a", "b"]]))


def test_s9_unnamed_gens_are_all_kept() -> None:
    def body(s: bp.State) -> str:
        s += bp.gen() + "," + bp.gen() + "," + bp.select(choices=["x"]) + bp.gen("named")
        return s.text()

    result = run(body, bp.Fake(["a", "b", "c"]))
    assert result.value == "a,b,xc"
    assert result.variables() == ("named",)


def test_b3_the_same_run_has_the_same_seeds_whatever_is_batched() -> None:
    @bp.function
    def program(s: bp.State, number: int) -> None:
        s += bp.gen("a") + bp.gen("b") + bp.gen("own", seed=5)
        s.fork(2).__iadd__(bp.gen("c"))

    def seeds(fake: bp.Fake) -> list[int | None]:
        return sorted(request.sampling.seed or 0 for request in generated(fake))

    alone, batched = bp.Fake("x"), bp.Fake("x")
    program.run(number=0, backend=alone, seed=3)
    program.run_batch([(0,), (0,)], backend=batched, seed=3)
    assert sorted(set(seeds(batched))) == seeds(alone)
    assert len(set(seeds(alone))) == 5
    assert 5 in seeds(alone)
    other = bp.Fake("x")
    program.run(number=0, backend=other, seed=4)
    assert set(seeds(other)) & set(seeds(alone)) == {5}


def test_hints_tell_the_engine_about_the_program() -> None:
    def body(s: bp.State) -> None:
        s.fork(3).__iadd__(bp.gen("x"))

    fake = bp.Fake("x")
    run(body, fake)
    assert {request.hints.path for request in generated(fake)} == {(0, 0), (0, 1), (0, 2)}
    (program,) = {request.hints.program for request in generated(fake)}
    assert program.startswith("body-") and {request.hints.siblings for request in generated(fake)} == {3}


def test_a_scope_captures_the_text_that_is_added_in_it() -> None:
    def body(s: bp.State) -> object:
        s += "before "
        with s.var_scope("all"):
            s += "a" + bp.gen("x") + "b"
        s += " after"
        return s["all"]

    assert run(body, bp.Fake("X")).value == "aXb"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bp.gen("x", temperature=-1), "temperature"),
        (lambda: bp.gen("x", max_tokens="many"), "wrong type"),
        (lambda: bp.gen("x", stop=[""]), "stop"),
        (lambda: bp.gen("x", int, regex="a"), "one of"),
        (lambda: bp.gen(5), "variable's name"),
        (lambda: bp.gen("x", object()), "type"),
        (lambda: bp.gen("x", wrong=1), "'wrong' is not an option"),
        (lambda: bp.gen("x", choices=["a"], stop="b"), "takes no stop"),
        (lambda: bp.select("x", "abc"), "list of strings"),
        (lambda: bp.select("x", ["a"], choices_method="best"), "choices_method"),
        (lambda: bp.RunConfig(max_concurrency=0), "max_concurrency"),
    ],
)
def test_bad_options_are_refused_where_they_are_written(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_logit_bias_and_stop_ids_reach_the_sampler() -> None:
    fake = bp.Fake("x")
    run(lambda s: s.__iadd__(bp.gen("x", logit_bias={5: 1, 3: -2.0}, stop_token_ids=[7])) and None, fake)
    assert sampling(fake).logit_bias == ((3, -2.0), (5, 1.0))
    assert sampling(fake).stop_token_ids == (7,)


@pytest.mark.parametrize("name", LATER)
def test_names_of_later_versions_say_so(name: str) -> None:
    with pytest.raises(bp.NotSupported, match=name):
        getattr(bp, name)("x")


def test_every_public_name_is_there_and_unknown_ones_are_not() -> None:
    for name in bp.__all__:
        if name not in ("Engine", "Runtime", "RuntimeEndpoint"):
            assert getattr(bp, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        bp.nothing  # noqa: B018  # the access is what is tested
    assert "gen" in dir(bp)


def test_the_backend_can_be_managed() -> None:
    fake = bp.Fake("x")
    body = bp.function(lambda s: s.__iadd__("abc" + bp.gen("x")) and None)
    body.run(backend=fake)
    assert bp.get_server_info(fake)["requests"] == 1
    bp.flush_cache(fake)
    assert body.run(backend=fake).meta("x").cached_tokens == 0
    assert body.run(backend=fake).meta("x").cached_tokens == 2


def test_score_requests_carry_the_conversation() -> None:
    def body(s: bp.State) -> None:
        s += bp.user("Q")
        s += bp.assistant("So: " + bp.select("x", ["a"]))

    fake = bp.Fake()
    run(body, fake)
    request = fake.requests[0]
    assert isinstance(request, ScoreRequest)
    assert request.messages == ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "So: "})
    assert prompt_text(request).endswith("<|im_start|>assistant\nSo: ")
