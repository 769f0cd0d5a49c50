"""What a grammar alone can't say of a value is held inside of structural tags too, wherever the value stands."""

import json
import random
from collections.abc import Iterator

import jsonschema
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.judged import JudgedGrammar
from branchpoint.constrained.errors import UnsupportedKeyword
from branchpoint.constrained.grammar import Matcher
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.spec import StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from tests.constrained.corpus import Generator, accepts, allowed, compiled

PIECES = (
    b"<f",
    b">[1,1]</",
    b"],[",
    b"}{",
    b'}{"',
    b"1]</a",
    b"</a><",
    "é<".encode(),
    b"\xa9<a>[",
    b">[",
    b"x<a>[1,1",
    b"]<a>[2",
)
SMALL = make_vocabulary(
    {**{byte: bytes([byte]) for byte in range(256)}, **dict(enumerate(PIECES, 256))}, (), (300,), 301, lambda text: list(text)
)
UNIQUE = {"type": "array", "items": {"enum": [1, 2, 12]}, "uniqueItems": True}
NUMBER = {"type": "integer", "multipleOf": 123457}
FREE = {"type": "any_text"}
INTEGER = {"type": "integer"}


def value(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema}


def tag(begin: str, content: object, end: object) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags: object, triggers: tuple[str, ...] = ("<",), **flags: object) -> dict[str, object]:
    return {"type": "triggered_tags", "triggers": list(triggers), "tags": list(tags), **flags}


def row(*elements: object) -> dict[str, object]:
    return {"type": "sequence", "elements": list(elements)}


CASES: dict[str, tuple[object, list[str], list[str]]] = {
    "calls": (
        triggered(tag("<a>", value(UNIQUE), "</a>"), tag("<f>", value({"type": "object", "maxProperties": 1}), "</f>")),
        ["", "é[1,1]", "x<a>[1,2]</a>[1,1]é<a>[12]</a>", "<a>[]</a><f>{}</f><a>[2]</a>"],
        ["<a>[1,1]</a>", "x<a>[1,2]</a>é<a>[12,12]</a>", "<f>{}</f><a>[2,2]</a>", "<a>[1,2]"],
    ),
    "a number runs up to the end": (
        triggered(tag("<a>", value(NUMBER), "</a>"), stop_after_first=True),
        ["<a>0</a>", "7<a>123457</a>", "<a>-246914</a>"],
        ["<a>7</a>", "<a>12345</a>", "<a>123457", "<a>0</a>x"],
    ),
    "values right behind one another": (
        {"type": "plus", "content": value({"type": "object", "properties": {"a": UNIQUE}, "additionalProperties": False})},
        ['{"a":[1,2]}{"a":[1]}', "{}{}"],
        ['{"a":[1,1]}{}', '{}{"a":[2,2]}', ""],
    ),
    "with separators": (
        {"type": "tags_with_separator", "tags": [tag("", value(UNIQUE), "")], "separator": ",", "at_least_one": True},
        ["[1,2],[1]", "[]"],
        ["[1,1],[2]", "[2],[1,1]", "[1],"],
    ),
    "thoughts first": (
        row(tag("<t>", FREE, "</t>"), triggered(tag("<a>", value(UNIQUE), "</a>"))),
        ["<t><a>[1,1]</t>", "<t></t>x<a>[1]</a>"],
        ["<t></t><a>[1,1]</a>"],
    ),
    "or none": (
        {
            "type": "or",
            "elements": [
                row(tag("<t>", FREE, "</t>"), triggered(tag("<a>", value(UNIQUE), "</a>"))),
                triggered(tag("<a>", value(UNIQUE), "</a>"), excludes=["<t>"]),
            ],
        },
        ["<t><a>[1,1]</t>", "<a>[1]</a>"],
        ["<t></t><a>[1,1]</a>", "<a>[1,1]</a>", "<a>[1]</a><t>"],
    ),
    "patterns and grammars around": (
        row(
            {"type": "regex", "pattern": "[a-é]{1,2}(x|:+)?"},
            {"type": "optional", "content": value(UNIQUE)},
            {"type": "grammar", "grammar": 'root ::= "(" "!"* ")" | end\nend ::= "é"'},
            value(UNIQUE),
        ),
        ["a(!)[1]", "éx[1,2]()[2,1]", "ab::é[]"],
        ["a[1,1]()[1]", "ax()[1,1]", "[1]()[1]"],
    ),
    "several judges": (
        row(value({"type": "array", "contains": INTEGER}), value({"type": "object", "minProperties": 2}), FREE),
        ['["a",1]{"a":1,"b":2}[1,1]', '[1]{"x":{},"y":[]}'],
        ['["a"]{"a":1,"b":2}', '[1]{"a":1}', '[1]{"a":1,"a":2}'],
    ),
}


@pytest.fixture(scope="module")
def plain() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(SMALL, 1, CompilerLimits(trial_seconds=0))
    yield compiler
    compiler.close()


def built(compiler: GrammarCompiler, name: str, prefix: bytes = b"") -> JudgedGrammar[object]:
    grammar = compiled(compiler, StructuralTag(json.dumps({"format": CASES[name][0]})), prefix)
    assert isinstance(grammar, JudgedGrammar)
    return grammar


def reads(matcher: Matcher, text: bytes) -> bool:
    """Whether a text is a sentence, one byte after the other; the cursor ends where it was."""
    taken = matcher.advance(list(text))
    whole = taken == len(text) and matcher.can_end
    matcher.rollback(taken)
    return whole


@pytest.mark.parametrize("name", CASES)
def test_what_a_tag_accepts(plain: GrammarCompiler, name: str) -> None:
    _, good, bad = CASES[name]
    matcher = built(plain, name).matcher()
    assert [text for text in good if not reads(matcher, text.encode())] == []
    assert [text for text in bad if reads(matcher, text.encode())] == []


@pytest.mark.parametrize("name", CASES)
def test_the_mask_and_the_parser_agree_on_every_token(plain: GrammarCompiler, name: str) -> None:
    for text in CASES[name][1]:
        matcher = built(plain, name).matcher()
        for place in range(len(text.encode()) + 1):
            mask = allowed(matcher, SMALL)
            for token in range(SMALL.size):
                taken = matcher.advance([token])
                matcher.rollback(taken)
                assert (taken == 1) == (token in mask), (text, place, token)
            if place < len(text.encode()):
                assert matcher.advance([text.encode()[place]]) == 1


@pytest.mark.parametrize("name", CASES)
def test_however_a_text_is_cut_the_same_is_refused(plain: GrammarCompiler, name: str) -> None:
    by_bytes = {piece: number for number, piece in enumerate(PIECES, 256)}
    _, good, bad = CASES[name]
    for text in (*good, *bad):
        matcher, encoded = built(plain, name).matcher(), text.encode()
        at, fits = 0, True
        while at < len(encoded) and fits:
            piece = max((each for each in by_bytes if encoded.startswith(each, at)), key=len, default=encoded[at : at + 1])
            fits = matcher.advance([by_bytes.get(piece, piece[0])]) == 1
            at += len(piece)
        assert (fits and matcher.can_end) == (text in good), text


@pytest.mark.parametrize("name", CASES)
def test_what_follows_rollback_is_what_followed_before(plain: GrammarCompiler, name: str) -> None:
    chance = random.Random(name)
    matcher = built(plain, name).matcher()
    tokens = list(CASES[name][1][-1].encode())
    masks = []
    for token in tokens:
        masks.append(allowed(matcher, SMALL))
        assert matcher.advance([token]) == 1
    for _ in range(6):
        back = chance.randrange(len(tokens) + 1)
        matcher.rollback(len(tokens) - back)
        assert back == len(tokens) or allowed(matcher, SMALL) == masks[back]
        assert matcher.advance(tokens[back:]) == len(tokens) - back


TOOL = {
    "type": "object",
    "properties": {
        "to": {"type": "array", "items": {"enum": ["ann", "bob", "cy"]}, "uniqueItems": True, "contains": {"const": "bob"}},
        "kind": {"enum": ["a", "b"]},
        "size": {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]},
    },
    "required": ["to", "kind"],
    "additionalProperties": False,
    "if": {"properties": {"kind": {"const": "a"}}},
    "then": {"required": ["size"]},
    "not": {"properties": {"kind": {"const": "b"}, "size": {"const": 3}}, "required": ["size"]},
}
OPEN, CLOSE = '<tool_call>\n{"name": "invite", "arguments": ', "}\n</tool_call>"


@pytest.mark.parametrize("seed", range(4))
def test_generated_calls_have_valid_arguments_and_their_masks_agree_with_what_is_drawn(
    compiler: GrammarCompiler, vocabulary: Vocabulary, seed: int
) -> None:
    calls = triggered(tag(OPEN, value(TOOL), CLOSE), triggers=("<tool_call>",), at_least_one=True)
    grammar = compiled(compiler, StructuralTag(json.dumps({"format": calls})))
    matcher, chance, generator = grammar.matcher(), random.Random(seed), Generator(vocabulary, seed)
    full, loose = allocate(2, vocabulary.size)
    output: list[int] = []
    while len(output) < 90:
        forced = matcher.forced()
        if not forced:
            matcher.fill(full)
            residue = matcher.fill_loosely(loose)
            assert residue is not None
            exact, candidates = set(iterate_allowed(full).tolist()), set(iterate_allowed(loose).tolist())
            assert exact <= candidates
            for token in chance.sample(sorted(candidates), min(12, len(candidates))):
                assert residue.allows(token) <= (token in exact)
            token = generator.choose(sorted(exact), len(output))
            while not residue.allows(token):  # it leads nowhere, which a row isn't searched for
                exact.remove(token)
                token = generator.choose(sorted(exact), len(output))
            forced = [token]
        assert matcher.advance(forced) == len(forced)
        output += forced
        if output[-1] in vocabulary.eos:
            break
    text = vocabulary.text([token for token in output if token not in vocabulary.eos]).decode(errors="replace")
    ended = [part.split(CLOSE)[0] for part in text.split(OPEN)[1:] if CLOSE in part]
    assert ended
    assert all(jsonschema.Draft202012Validator(TOOL).is_valid(json.loads(each)) for each in ended), ended


def test_a_judged_call_is_refused_token_by_token(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    calls = triggered(tag(OPEN, value(TOOL), CLOSE), triggers=("<tool_call>",))
    grammar = compiled(compiler, StructuralTag(json.dumps({"format": calls})), b" I")
    for good in ('{"to":["bob"],"kind":"a","size":4}', '{"to":["ann","bob"],"kind":"b"}'):
        assert accepts(grammar, vocabulary, f" I shall.{OPEN}{good}{CLOSE}")
    for bad in ('{"to":["bob","bob"],"kind":"b"}', '{"to":[],"kind":"b"}', '{"to":["bob"],"kind":"a"}'):
        assert not accepts(grammar, vocabulary, f" I shall.{OPEN}{bad}{CLOSE}")


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"type": "or", "elements": [value(UNIQUE), value({"type": "array", "items": INTEGER})]}, "first character"),
        (row(tag("<", {"type": "regex", "pattern": ".*"}, ">"), value(UNIQUE)), "first character"),
        (row({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}, value(UNIQUE)), "refer to themselves"),
        (row({"type": "grammar", "grammar": "start: A\nA: /a/"}, value(UNIQUE)), "Lark"),
        (row({"type": "regex", "pattern": "[ab]{0,60000}"}, value(UNIQUE)), "too large"),
    ],
)
def test_a_value_that_can_not_be_told_from_what_is_around_it_is_refused_by_keyword_and_pointer(
    plain: GrammarCompiler, form: object, why: str
) -> None:
    with pytest.raises(UnsupportedKeyword, match=why) as refused:
        compiled(plain, StructuralTag(json.dumps({"format": form})))
    assert refused.value.keyword == "uniqueItems" and refused.value.pointer.startswith("/format/elements/")


def test_a_bounded_number_is_never_stuck_though_its_draft_passes_over_the_type_beside_a_reference(plain: GrammarCompiler) -> None:
    odd = {"type": "integer", "minimum": 1, "maximum": 30, "not": {"multipleOf": 2}}
    draft = "http://json-schema.org/draft-07/schema#"
    for schema in (odd, {"$schema": draft, "$ref": "#/definitions/n", "type": "object", "definitions": {"n": odd}}):
        matcher = compiled(plain, StructuralTag(json.dumps({"format": tag("<a>", value(schema), "</a>")}))).matcher()
        assert matcher.advance(SMALL.encode(b"<a>")) == 3
        assert SMALL.text(sorted(allowed(matcher, SMALL))) == b"123579"
        assert matcher.advance(SMALL.encode(b"2")) == 1
        assert SMALL.text(sorted(allowed(matcher, SMALL))) == b"13579"
