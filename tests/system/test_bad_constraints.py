"""A bad constraint is its caller's error, in one terminal event, while a running stream gets a token at each step."""

import json
from collections.abc import Iterator

import pytest

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed, SampleFinished
from branchpoint.runtime.sampling import SamplingParams

PATIENCE = 200_000  # steps


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedEngine]:
    loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=512, threads=1, seed=3, max_batch_tokens=128))
    yield loaded
    loaded.engine.close()
    loaded.close()


def beside_a_stream(loaded: LoadedEngine, constraint: Constraint, *, most: int = 30) -> list[Event]:
    """The events of a call under `constraint`; each step of the meantime gave a running stream one token."""
    engine = loaded.engine
    stream = Call("stream", (1, 2, 3), SamplingParams(max_tokens=1900, temperature=0.0, ignore_eos=True))
    engine.submit(stream)
    engine.step()
    engine.submit(Call("held", tuple(b"value: "), SamplingParams(max_tokens=most, temperature=1.5, seed=1), constraint))
    found: list[Event] = []
    for _ in range(PATIENCE):
        events = engine.step()
        engine.check()
        assert sum(len(event.tokens) for event in events if isinstance(event, Delta) and event.id == "stream") == 1
        if any(isinstance(event, Completed) and event.id == "stream" for event in events):
            engine.submit(stream)
            engine.step()
        found += [event for event in events if event.id == "held"]
        if found and isinstance(found[-1], Completed | Failed):
            break
    engine.abort("stream")
    engine.step()
    assert (engine.stats().pages_held, engine.stats().running) == (0, 0)
    assert sum(isinstance(event, Completed | Failed) for event in found) == 1
    return found


def of(schema: object) -> JsonSchema:
    return JsonSchema(json.dumps(schema))


REFUSED: dict[str, Constraint] = {
    **{
        f"regex {pattern[:20]}": Regex(pattern)
        for pattern in ("(((", "a{5,2}", "\\", "a(?=b)", "(a)\\1", "(?!)", r"[^\s\S]", "[", "*")
    },
    "counted counts": Regex("(x{1000}){1000}"),
    "five hundred groups": Regex("(" * 500 + "a" + ")" * 500),
    "a lone surrogate": Regex("\ud800"),
    "a pattern of megabytes": Regex("a" * 2_000_000),
    **{
        f"schema {text[:20]}": JsonSchema(text)
        for text in ("", "{", "5", "[]", '"x"', "false", '{"type": "strin"}', '{"type": 5}', "NaN")
    },
    "a schema of itself": of({"$ref": "#"}),
    "a schema without an end": of({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "nothing between": of({"type": "integer", "minimum": 5, "maximum": 3}),
    "no options in an enum": of({"enum": []}),
    "a reference to nothing": of({"$ref": "#/$defs/nothing"}),
    "a foreign reference": of({"$ref": "https://example.com/schema.json"}),
    "two thousand levels": JsonSchema('{"items":' * 2000 + "{}" + "}" * 2000),
    "an end that never comes": of({"const": "x" * 200_000}),
    "references in a chain": of({"$ref": "#/$defs/0", "$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(4000)}}),
    "patterns that must hold together": of({"allOf": [{"type": "string", "pattern": f"a.*{at}"} for at in range(50)]}),
    "no choices": Choice(()),
    "too many choices": Choice(tuple(map(str, range(30_000)))),
    "too long choices": Choice(("x" * 600_000, "y" * 600_000)),
    "a choice of half a character": Choice(("\ud800",)),
    **{
        f"grammar {text[:20]}": Ebnf(text)
        for text in ("", "start: (", "start: nowhere", "start: start", 'start: "a" start', "root ::= (")
    },
    "special tokens": Ebnf("start: <|end|>"),
    "rules in a chain": Ebnf("start: r0\n" + "\n".join(f'r{at}: "a" r{at + 1} | "b"' for at in range(5000)) + '\nr5000: "c"'),
    "terminals that must hold together": Ebnf("start: R\nR: " + " & ".join(f"/a.*{at}/" for at in range(200))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_constraint_is_refused_and_nothing_else_disturbed(loaded: LoadedEngine, name: str) -> None:
    (end,) = beside_a_stream(loaded, REFUSED[name])
    assert isinstance(end, Failed)
    assert end.kind == "invalid_request", end
    assert 10 < len(end.message) < 1000


HARMLESS: dict[str, Constraint] = {
    "choices that a backtracker would try for ever": Regex("(a|a)*b"),
    "stars in stars": Regex("(a*)*b"),
    "ninety groups": Regex("(" * 90 + "ab" + ")" * 90),
    "an automaton of 2**200 states": Regex("(a|b)*a(a|b){200}"),
    "dots that overlap": Regex(".{0,5000}.{0,5000}.{0,5000}b"),
    "ninety levels": JsonSchema('{"type":"array","items":' * 90 + "{}" + "}" * 90),
    "an enum of twenty thousand": of({"enum": [f"value {at}" for at in range(20_000)]}),
    "a string of megabytes": of({"type": "string", "minLength": 10_000_000, "maxLength": 20_000_000}),
    "an array of a million": of({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    "twenty thousand choices": Choice(tuple(f"choice {at}" for at in range(20_000))),
    "nothing": Choice(("",)),
    "long choices": Choice(("a b " * 100_000, "a b " * 100_000 + "c")),
    "an ambiguous grammar": Ebnf('start: start start | "a" | "b" start'),
    "a grammar of nothing": Ebnf('start: a*\na: b*\nb: "x"*'),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_large_constraint_disturbs_nobody(loaded: LoadedEngine, name: str) -> None:
    events = beside_a_stream(loaded, HARMLESS[name])
    assert isinstance(events[-1], Completed), events
    assert next(event.reason for event in events if isinstance(event, SampleFinished)) in ("stop", "length")


def test_a_grammar_that_gives_up_while_decoding_is_its_callers_error(loaded: LoadedEngine) -> None:
    hard = of({"type": "integer", "multipleOf": 99_991, "minimum": 1, "maximum": 900_000_000_000})
    end = beside_a_stream(loaded, hard)[-1]
    assert isinstance(end, Completed) or end.kind == "invalid_request"  # type: ignore[union-attr]  # the last is one of the two


def test_calls_that_are_aborted_while_they_compile_leave_nothing(loaded: LoadedEngine) -> None:
    engine = loaded.engine
    for number in range(20):
        constraint = Regex(f"[a-z]{{{number + 1}}}[0-9]+")
        engine.submit(Call(f"c{number}", (1, 2), SamplingParams(max_tokens=5, n=2), constraint))
        engine.abort(f"c{number}")
    events = []
    while engine.has_work:
        events += engine.step()
        engine.check()
    assert [event.kind for event in events if isinstance(event, Failed)] == ["aborted"] * 20
    assert (engine.stats().compiling, engine.stats().pages_held) == (0, 0)
