"""Literals, gens and selects within `s.grammar(...)` are one sentence, walked by one parse."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

import branchpoint as bp
from branchpoint.constrained.spec import Written
from branchpoint.lang.backends.base import Capabilities, GenerateRequest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog"]},
        "toys": {"type": "array", "items": {"enum": ["ball", "rope", "bone"]}, "uniqueItems": True, "minItems": 2},
    },
    "required": ["name", "kind", "toys"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[bp.Engine]:
    with bp.Engine("dummy:llama", threads=1, context_length=512, seed=3) as ready:
        yield ready


@bp.function
def pet(s: bp.State) -> object:
    s += "A pet: "
    with s.grammar(SCHEMA, "pet"):
        s += '{"name":"' + bp.gen("name", stop='"', max_tokens=20) + '","kind":"'
        s += bp.select("kind", ["car", "dog", "cat"]) + '",' + bp.gen("rest")
    s += " It is " + bp.gen("after", max_tokens=2)
    return s["pet"]


@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_is_one_value(engine: bp.Engine, seed: int) -> None:
    run = pet.run(backend=engine, temperature=1.5, seed=seed)
    jsonschema.validate(run.value, SCHEMA)
    assert run["kind"] in ("dog", "cat") and {option.text for option in run.meta("kind").choices} == {"dog", "cat"}
    assert run.value["name"] == json.loads(f'"{run["name"]}"') and run.value["kind"] == run["kind"]
    text = run.text()
    assert f'A pet: {{"name":"{run["name"]}","kind":"{run["kind"]}",{run["rest"]} It is ' in text


def test_healed_seams_and_steered_ends_keep_to_the_parse(engine: bp.Engine) -> None:
    @bp.function
    def dated(s: bp.State) -> object:
        s += "Day:"
        with s.grammar(bp.regex(r" on 20[0-9]{2}-[01][0-9] (morning|evening)s*"), "day"):
            s += " on 2" + bp.gen("year", stop="-") + "-" + bp.gen("rest", max_tokens=12)
        return s["day"]

    for seed in range(3):
        text = dated.run(backend=engine, temperature=1.5, seed=seed, close="steer").value
        assert isinstance(text, str) and text[:6] == " on 20" and text.rstrip("s").endswith(("morning", "evening"))


def refused(engine: bp.Fake | bp.Engine, body: object, match: str) -> None:
    with pytest.raises((bp.ProgramError, bp.ProgramMistake), match=match):
        bp.function(body).run(backend=engine)  # type: ignore[arg-type]  # a program as a plain function


def test_text_that_the_grammar_cant_take_fails_before_any_token(engine: bp.Engine) -> None:
    before = engine.stats().totals.completion_tokens

    def slip(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += '{"name":"Rex","sort":"' + bp.gen("kind", stop='"')

    def unfinished(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += '{"name":"Rex","kind":"dog"'

    def none_fits(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += '{"name":"Rex","kind":"' + bp.select("kind", ["horse", "car"])

    refused(engine, slip, """can't take 'sort":"' after '{"name":"Rex","'""")
    refused(engine, unfinished, "No sentence of the grammar ends after")
    refused(engine, none_fits, "None of the options 'horse', 'car' can come here")
    assert engine.stats().totals.completion_tokens == before


def test_branches_go_on_with_the_parse_each_on_its_own(engine: bp.Engine) -> None:
    @bp.function
    def several(s: bp.State) -> list[str]:
        with s.grammar(bp.regex("x[ab]{3}")):
            s += "x"
            with s.fork(2) as branches:
                branches += bp.gen("y")
            texts = [branch["y"] for branch in branches]
            s += texts[0]
        return texts

    texts = several.run(backend=engine, temperature=1.5).value
    assert isinstance(texts, list) and all(len(text) == 3 and set(text) <= {"a", "b"} for text in texts)


def test_a_call_tells_what_is_written_of_its_sentence() -> None:
    fake = bp.Fake(["bc", "d"])

    @bp.function
    def program(s: bp.State) -> object:
        s += "Say: "
        with s.grammar(bp.regex("[a-e]+"), "all"):
            s += "a" + bp.gen("x", stop="d") + "d" + bp.gen("y")
        s += bp.gen("free")
        return s["all"]

    fake = bp.Fake(["bc", "e", "f"])
    assert program.run(backend=fake).value == "abcde"
    requests = [request for request in fake.requests if isinstance(request, GenerateRequest)]
    assert [request.written for request in requests] == [Written("a"), Written("abcd"), Written("abcde", whole=True), None]
    assert [request.constraint is None for request in requests] == [False, False, False, True]


def test_what_cant_stand_in_a_stretch_is_refused_on_its_line() -> None:
    def nested(s: bp.State) -> None:
        with s.grammar(SCHEMA), s.grammar(SCHEMA):
            pass

    def typed(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += bp.gen("x", int)

    def role(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += bp.user("hi")

    def free(s: bp.State) -> None:
        s.grammar(str)

    def back(s: bp.State) -> None:
        mark = s.mark()
        with s.grammar(SCHEMA):
            s.rollback(mark)

    def again(s: bp.State) -> None:
        with s.attempt(), s.grammar(SCHEMA):
            s += bp.gen("x")

    wrong = {
        again: "must only add",
        nested: "one sentence already",
        typed: "no type",
        role: "template",
        free: "not str",
        back: "mark within it",
    }
    for body, why in wrong.items():
        refused(bp.Fake("x"), body, why)


def test_a_backend_that_cant_go_on_with_sentences_says_so() -> None:
    def program(s: bp.State) -> None:
        with s.grammar(SCHEMA):
            s += bp.gen("x")

    refused(bp.Fake("x", capabilities=Capabilities()), program, "one grammar")


def test_a_recording_tells_calls_within_a_sentence_from_others(engine: bp.Engine, tmp_path: Path) -> None:
    @bp.function
    def marked(s: bp.State) -> object:
        s += "Mark:"
        with s.grammar(bp.regex("[ab]{2}(x|y)[ab]{2}"), "mark"):
            s += bp.gen("p", stop=["x", "y"]) + bp.select("k", ["z", "x", "y"]) + bp.gen("q")
        s += bp.gen("free", max_tokens=5)
        return s["mark"], s["free"]

    run = marked.run(backend=engine, temperature=1.5, seed=2)
    run.save(tmp_path / "run.json")
    recorded = bp.replay(tmp_path / "run.json", then=engine)
    assert marked.run(backend=recorded, temperature=1.5).value == run.value
    assert recorded.asked_then == 3  # whether each of the options can stand
    refused(bp.replay(tmp_path / "run.json"), marked, "can't hold a stretch")  # type: ignore[arg-type]  # any backend will do
