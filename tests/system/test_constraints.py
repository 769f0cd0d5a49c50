"""What is generated under a constraint is valid, on a real model at high temperature, whatever else is asked of the call."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

import branchpoint as bp
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.lang.backends.generation import Generation

SCHEMAS: dict[str, object] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "married": {"type": "boolean"},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "array of numbers": {
        "type": "array",
        "items": {"type": "number", "minimum": -1, "maximum": 2.5, "multipleOf": 0.01},
        "maxItems": 3,
    },
    "any of": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 5}, {"type": "integer", "minimum": 7, "maximum": 70}]},
    "one of": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "lives": {"enum": [1, 9]}},
                "required": ["kind", "lives"],
            },
            {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"const": True}}, "required": ["kind", "good"]},
        ],
    },
    "list": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"enum": [1, 2, 3]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
    },
    "formats": {
        "type": "array",
        "prefixItems": [{"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"}],
        "items": False,
        "minItems": 2,
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
    "enum": {"enum": [1, "one", [1, None], {"one": 1.5}, "😀 ünï", 'quo"te\\']},
}
for schema in SCHEMAS["one of"]["oneOf"]:  # type: ignore[index]
    schema["additionalProperties"] = False
PATTERNS = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"(?i)(yes|no|perhaps), \w{1,8}\.",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"[^\W\d_]{1,9} (?:[A-Z][a-z]{0,5}|\?)",
    r"(?s:.){3,6}",
    r"(?:ab?c|[α-ω]{2}){1,5}🙂?",
)
LARK = 'start: NAME "=" sum\nsum: NUMBER ("+" NUMBER){0,4}\nNAME: /[a-z]{1,5}/\nNUMBER: /[0-9]{1,3}/'
GBNF = 'root ::= "move " ("north" | "south") | "take " [a-z]{2,6}'
GRAMMARS = {LARK: r"[a-z]{1,5}=[0-9]{1,3}(\+[0-9]{1,3}){0,4}", GBNF: r"move (north|south)|take [a-z]{2,6}"}
OPTIONS = ("yes", "no", "yes, please", "yes, please!", "não", "ja 🙂")

LISTED = {"type": "array", "items": {"enum": ["a", "ab", 1]}, "uniqueItems": True, "contains": {"type": "string"}}
CALL = {"begin": "<c>", "content": {"type": "json_schema", "json_schema": LISTED}, "end": "</c>"}
CALLS = {"type": "triggered_tags", "triggers": ["<c"], "tags": [CALL], "at_least_one": True, "stop_after_first": True}

CONSTRAINTS: tuple[Constraint, ...] = (
    *(JsonSchema(json.dumps(schema)) for schema in SCHEMAS.values()),
    JsonSchema(json.dumps(SCHEMAS["person"]), whitespace="flexible"),
    *(Regex(pattern) for pattern in PATTERNS),
    Regex(PATTERNS[0], engine="outlines"),
    *(Ebnf(grammar) for grammar in GRAMMARS),
    Choice(OPTIONS),
    StructuralTag(json.dumps({"format": CALLS})),
)


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether an independent validator takes the whole text."""
    match constraint:
        case JsonSchema(schema):
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            exact = json.loads(schema, parse_float=Decimal)  # 0.3 is no multiple of 0.1 to a float
            value = json.loads(text, parse_float=Decimal)
            return jsonschema.Draft202012Validator(exact, format_checker=checker).is_valid(value)
        case Regex(pattern):
            return re.fullmatch(pattern, text) is not None
        case Choice(options):
            return text in options
        case Ebnf(grammar):
            return re.fullmatch(GRAMMARS[grammar], text) is not None
        case StructuralTag():
            called = re.fullmatch("<c>(.*)</c>", text)
            return called is not None and jsonschema.Draft202012Validator(LISTED).is_valid(json.loads(called[1]))


async def ask(engine: bp.Engine, count: int, prompt: str = "The value: ", **options: Any) -> list[tuple[Constraint, Generation]]:
    """`count` generations, all at once, the constraints in turn."""
    chosen = [CONSTRAINTS[number % len(CONSTRAINTS)] for number in range(count)]
    given: dict[str, Any] = {"temperature": 1.5, "max_tokens": 48, **options}
    calls = [
        engine.agenerate(prompt, constraint=constraint, **{"seed": number, **given}) for number, constraint in enumerate(chosen)
    ]
    return list(zip(chosen, await asyncio.gather(*calls), strict=True))


def check(done: Sequence[tuple[Constraint, Generation]], engine: bp.Engine) -> tuple[int, int]:
    """(finished, cut) samples. Every finished one is valid, its text is that of its tokens, and no page is left over."""
    finished = cut = 0
    wrong = []
    for constraint, generation in done:
        for sample in generation.samples:
            decoded = engine.tokenizer.decode(sample.tokens)
            assert decoded.endswith(sample.text) and decoded[: len(decoded) - len(sample.text)] in ("", " ")  # what was healed
            if sample.finish_reason == "length":
                cut += 1
                continue
            finished += 1
            if not accepts(constraint, sample.text):
                wrong.append((constraint, sample.text))
    assert not wrong
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.compiling, stats.pages_held) == (0, 0, 0, 0)
    return finished, cut


@pytest.fixture(scope="module")
def smollm2() -> Iterator[bp.Engine]:
    with bp.Engine("smollm2", cpu_weights="float32", threads=1, num_pages=1024, context_length=512) as engine:
        yield engine


@pytest.fixture(scope="module")
def dummy() -> Iterator[bp.Engine]:
    with bp.Engine("dummy:llama", cpu_weights="float32", threads=1, num_pages=2048, seed=1, context_length=512) as engine:
        yield engine


async def test_what_the_real_model_makes_is_valid(smollm2: bp.Engine) -> None:
    done = await ask(smollm2, 72)
    finished, cut = check(done, smollm2)
    assert finished + cut == 72
    assert cut <= 4, Counter(type(constraint).__name__ for constraint, one in done if one.finish_reason == "length")
    assert smollm2.stats().totals.forced_tokens > 60


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_a_thousand_of_the_real_model_are_valid(smollm2: bp.Engine) -> None:
    finished, cut = check(await ask(smollm2, 1000, "Answer: ", max_tokens=100), smollm2)
    assert finished + cut == 1000
    assert cut <= 50


async def test_small_random_models_make_valid_text_too(dummy: bp.Engine) -> None:
    finished, cut = check(await ask(dummy, 300, max_tokens=200), dummy)
    assert finished + cut == 300
    assert cut <= 15


@pytest.mark.parametrize(
    "more", [{"n": 3}, {"logprobs": 3, "n": 2}, {"top_k": 40, "top_p": 0.9, "min_p": 0.001}, {"heal": True}], ids=str
)
async def test_constraints_hold_beside_other_options(dummy: bp.Engine, more: dict[str, Any]) -> None:
    done = await ask(dummy, len(CONSTRAINTS), max_tokens=200, **more)
    finished, cut = check(done, dummy)
    assert finished + cut == len(CONSTRAINTS) * more.get("n", 1)
    if "n" in more:
        assert sum(len({sample.tokens for sample in one.samples}) > 1 for _, one in done) > len(done) // 2
    for _, generation in done:
        if "logprobs" in more:
            for sample in generation.samples:
                assert [entry.token for entry in sample.logprobs] == list(sample.tokens)
                assert all(len(entry.top) == 3 and entry.logprob is not None for entry in sample.logprobs)


async def steer(engine: bp.Engine, count: int, limit: int) -> int:
    """Steer `count` outputs, the constraints in turn, all at once; how many were refused since no value is so short."""
    chosen = [CONSTRAINTS[number % len(CONSTRAINTS)] for number in range(count)]
    calls = [
        engine.agenerate("A: ", constraint=each, temperature=1.3, seed=seed, max_tokens=limit, close="steer")
        for seed, each in enumerate(chosen)
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in done if isinstance(one, BaseException)]
    assert all("shortest complete one that was found" in str(one) for one in refused)
    pairs = [(each, one) for each, one in zip(chosen, done, strict=True) if not isinstance(one, BaseException)]
    assert check(pairs, engine) == (count - len(refused), 0)
    assert all(len(sample.tokens) <= limit for _, one in pairs for sample in one.samples)
    return len(refused)


async def test_what_is_steered_is_whole_in_any_limit_that_holds_a_value(dummy: bp.Engine) -> None:
    assert await steer(dummy, len(CONSTRAINTS), 30) <= 3
    assert await steer(dummy, len(CONSTRAINTS), 70) == 0


async def test_steered_text_is_the_same_whether_tokens_are_drafted_or_not(dummy: bp.Engine) -> None:
    async def said(engine: bp.Engine) -> list[str]:
        calls = [
            engine.agenerate("A: ", constraint=each, temperature=1.3, seed=seed, max_tokens=25, close="steer")
            for seed, each in enumerate(CONSTRAINTS)
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [str(one) if isinstance(one, BaseException) else one.text for one in done]

    options: dict[str, Any] = {"cpu_weights": "float32", "threads": 1, "num_pages": 1024, "seed": 1, "context_length": 512}
    with bp.Engine("dummy:llama", drafters=("grammar", "ngram"), **options) as drafting:
        assert await said(drafting) == await said(dummy)
        assert drafting.stats().totals.accepted_tokens > 0


async def test_the_real_model_is_steered_too(smollm2: bp.Engine) -> None:
    assert await steer(smollm2, 8, 16) <= 3


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_three_hundred_steered_outputs_are_whole(dummy: bp.Engine, smollm2: bp.Engine) -> None:
    for limit in (12, 24, 48):
        assert await steer(smollm2, 100, limit) < 50
        assert await steer(dummy, 300, limit) < 200


async def test_steering_leaves_alone_what_has_room(dummy: bp.Engine) -> None:
    plain = await ask(dummy, len(CONSTRAINTS), max_tokens=400)
    steered = await ask(dummy, len(CONSTRAINTS), max_tokens=400, close="steer")
    ended = [(one.text, other.text) for (_, one), (_, other) in zip(plain, steered, strict=True) if one.finish_reason == "stop"]
    assert len(ended) > len(CONSTRAINTS) - 4
    assert all(one == other for one, other in ended)


def texts(done: Sequence[tuple[Constraint, Generation]]) -> list[list[str]]:
    return [[sample.text for sample in generation.samples] for _, generation in done]


async def test_penalties_bias_and_bans_leave_it_valid(dummy: bp.Engine) -> None:
    banned = dict.fromkeys(range(0, 256, 3), -100.0)
    options: dict[str, Any] = {"presence_penalty": 2.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5, "logit_bias": banned}
    finished, cut = check(await ask(dummy, len(CONSTRAINTS), max_tokens=300, min_tokens=20, ignore_eos=True, **options), dummy)
    assert finished >= len(CONSTRAINTS) - 3 and finished + cut == len(CONSTRAINTS)


async def test_a_seed_gives_the_same_text_whatever_is_asked_beside(dummy: bp.Engine) -> None:
    plain = texts(await ask(dummy, 38, max_tokens=120))
    assert texts(await ask(dummy, 38, max_tokens=120)) == plain
    assert texts(await ask(dummy, 38, max_tokens=120, logprobs=2)) == plain
    assert [both[0] for both in texts(await ask(dummy, 38, max_tokens=120, n=2))] == [one[0] for one in plain]


@pytest.mark.parametrize(
    "options",
    [
        {"radix_cache": False},
        {"page_size": 1, "num_pages": 8192},
        {"page_size": 7, "max_batch_tokens": 16},
        {"max_sequences": 5, "policy": "lpm"},
        {"num_pages": 45, "page_size": 4},
    ],
    ids=str,
)
async def test_pages_batches_and_preemption_change_nothing(dummy: bp.Engine, options: dict[str, Any]) -> None:
    prompt = "A prompt of several pages, which all of the calls share: "
    expected = texts(await ask(dummy, 57, prompt, max_tokens=120, n=2))
    base: dict[str, Any] = {"cpu_weights": "float32", "threads": 1, "num_pages": 2048, "seed": 1, "context_length": 512}
    with bp.Engine("dummy:llama", **{**base, **options}) as engine:
        done = await ask(engine, 57, prompt, max_tokens=120, n=2)
        check(done, engine)
    assert texts(done) == expected
    if options.get("num_pages") == 45:
        assert sum(generation.usage.preemptions for _, generation in done) > 0


async def test_stop_strings_cut_constrained_text_where_they_begin(dummy: bp.Engine) -> None:
    whole = texts(await ask(dummy, 57, max_tokens=120))
    stopped = await ask(dummy, 57, max_tokens=120, stop=["1", "e", ', "'])
    hits = 0
    for (text,), (_, generation) in zip(whole, stopped, strict=True):
        places = [at for stop in ("1", "e", ', "') if (at := text.find(stop)) >= 0]
        assert generation.text == (text[: min(places)] if places else text)
        assert (generation.stop is not None) == bool(places)
        hits += bool(places)
    assert hits > 20


@pytest.mark.parametrize("most", [0, 5, 9])
async def test_max_tokens_is_a_hard_cap_under_grammars(dummy: bp.Engine, most: int) -> None:
    whole = texts(await ask(dummy, 38, max_tokens=120))
    for (text,), (_, generation) in zip(whole, await ask(dummy, 38, max_tokens=most), strict=True):
        assert len(generation.tokens) <= most
        assert text.startswith(generation.text.rstrip("\ufffd"))
        if generation.finish_reason == "stop":
            assert generation.text == text
        else:
            assert len(generation.tokens) == most


async def test_healed_prompts_and_greedy_text_are_valid(smollm2: bp.Engine) -> None:
    done = await ask(smollm2, len(CONSTRAINTS), 'The answer is "', temperature=0.0, heal=True, max_tokens=60)
    finished, cut = check_healed(done)
    assert finished + cut == len(CONSTRAINTS) and cut <= 2


def check_healed(done: Sequence[tuple[Constraint, Generation]]) -> tuple[int, int]:
    ended = [(constraint, one.text) for constraint, one in done if one.finish_reason == "stop"]
    assert [pair for pair in ended if not accepts(*pair)] == []
    return len(ended), len(done) - len(ended)
