"""Structural tags: free text is free, a trigger begins a tag that follows its grammar, tokens reach over every seam."""

import json
from collections.abc import Iterator

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import (
    GrammarError,
    InvalidGrammar,
    InvalidRegex,
    InvalidSchema,
    LimitExceeded,
    UnsupportedKeyword,
)
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from tests.constrained.corpus import Generator, accepts, allowed, compiled

PIECES = (b"<f", b'>{"', b'"}</', b"a>1", b"</a><", "é<".encode(), b"<a", b"\xa9<")
SMALL = make_vocabulary(
    {**{byte: bytes([byte]) for byte in range(256)}, **dict(enumerate(PIECES, 256))}, (), (300,), 301, lambda text: list(text)
)
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
CALLS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=at>", "schema": POINT, "end": "</function>"},
        {"begin": "<function=wait>", "schema": {"type": "integer", "minimum": 0}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


@pytest.fixture(scope="module")
def plain() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(SMALL, 1, CompilerLimits(trial_seconds=0))
    yield compiler
    compiler.close()


def tag(begin: str, content: object, end: object) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def regex(pattern: str) -> dict[str, object]:
    return {"type": "regex", "pattern": pattern}


def triggered(*tags: object, triggers: tuple[str, ...] = ("<",), **flags: object) -> dict[str, object]:
    return {"format": {"type": "triggered_tags", "triggers": list(triggers), "tags": list(tags), **flags}}


def built(compiler: GrammarCompiler, form: object, prefix: bytes = b"") -> CompiledGrammar:
    return compiled(compiler, StructuralTag(json.dumps(form)), prefix)


def reads(grammar: CompiledGrammar, text: str) -> bool:
    matcher, tokens = grammar.matcher(), list(text.encode())
    return matcher.advance(tokens) == len(tokens) and matcher.can_end


FREE = {"type": "any_text"}
NESTED = {"type": "grammar", "grammar": 'root ::= "(" root ")" | ""'}
CASES: dict[str, tuple[object, list[str], list[str]]] = {
    "calls": (
        CALLS,
        ["", "hi <function there", 'a <function=at>{"x":1}</function> b <function=wait>2</function>', "é<"],
        [
            "<function=",
            "<function=go>",
            '<function=at>{"x":1}',
            '<function=at>{"x":"1"}</function>',
            "<function=wait>-1</function>",
        ],
    ),
    "a tag without a beginning": ({"format": tag("", FREE, "</a>")}, ["x</a>", "</a>"], ["", "x", "</a>x"]),
    "one at least": (
        triggered(tag("<a>", regex(".*"), "</a>"), tag("<b>", FREE, "</b>"), tag("<c>", NESTED, "</c>"), at_least_one=True),
        ["<a>x</a>", "<a>x</a></a>y", "<b>q</a></b>", "<c>(())</c> t", "<b></b>ab<a></a>"],
        ["", "x<a></a>", "<b>q</b></b>", "<c>(()</c>", "<a></a>1<"],
    ),
    "one at most": (
        triggered(tag("<a>", regex("[0-9]+"), ["</a>", "/>"]), stop_after_first=True),
        ["", "x", "x<a>1</a>", "<a>12/>"],
        ["x<a>1</a>x", "<a></a>", "<"],
    ),
    "exactly one": (
        triggered(tag("<a>", regex("[0-9]+"), "</a>"), at_least_one=True, stop_after_first=True),
        ["<a>1</a>"],
        ["", "x<a>1</a>", "<a>1</a>x"],
    ),
    "thinking first": (
        {
            "format": {
                "type": "sequence",
                "elements": [
                    tag("<think>", FREE, "</think>"),
                    triggered(tag("[[", regex("[a-z]"), "]]"), triggers=("[[",))["format"],
                ],
            }
        },
        ["<think>a<b</think>ok [[a]]", "<think></think>", "<think></think>["],
        ["<think>", "<think></think>[["],
    ),
    "separated": (
        {
            "format": {
                "type": "tags_with_separator",
                "tags": [tag("<a>", regex("[0-9]+"), "")],
                "separator": ",",
                "at_least_one": True,
            }
        },
        ["<a>1", "<a>1,<a>23"],
        ["", "<a>1,", "<a>1<a>2"],
    ),
    "tags in a tag": (
        {"format": tag("<t>", triggered(tag("$", regex("[a-z]+"), "$"), triggers=("$",))["format"], "</t>")},
        ["<t></t>", "<t>ab $x$ é</t>"],
        ["<t></t></t>", "<t>$x</t>", "<t>$X$</t>"],
    ),
    "an object that ends by itself": (
        triggered(tag("<", {"type": "json_schema", "json_schema": POINT}, "")),
        ['a<{"x":1}b<{"x":2}', "a"],
        ["<", "<{}"],
    ),
    "without words": ({"format": {"type": "any_text", "excludes": ["no", "né"]}}, ["yes", "n", "on"], ["nno", "né"]),
    "any of these": (
        {
            "format": {
                "type": "or",
                "elements": [{"type": "const_string", "value": "ja"}, {"type": "plus", "content": regex("n")}],
            }
        },
        ["ja", "n", "nnn"],
        ["", "jan"],
    ),
    "overlapping triggers": (
        triggered(tag("ab!", regex("1"), "."), tag("b?", regex("2"), "."), triggers=("ab", "b?")),
        ["a", "b", "ab!1.", "b?2.b", "xb?2.ab!1."],
        ["ab", "b?", "ab?2."],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_tag_accepts(plain: GrammarCompiler, name: str) -> None:
    form, good, bad = CASES[name]
    grammar = built(plain, form)
    assert [text for text in good if not reads(grammar, text)] == []
    assert [text for text in bad if reads(grammar, text)] == []


@pytest.mark.parametrize("name", CASES)
def test_the_mask_and_the_parser_agree_on_every_token(plain: GrammarCompiler, name: str) -> None:
    form, good, _ = CASES[name]
    for text in good:
        matcher = built(plain, form).matcher()
        for byte in text.encode():
            mask = allowed(matcher, SMALL)
            for token in range(SMALL.size):
                taken = matcher.advance([token]) == 1
                assert taken == (token in mask)
                if taken:
                    matcher.rollback(1)
            assert matcher.advance([byte]) == 1


def test_tokens_reach_over_the_seams(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = built(compiler, CALLS)
    assert accepts(grammar, vocabulary, 'I shall call.<function=at>{"x":12}</function>Done.')
    matcher = grammar.matcher()
    matcher.advance(vocabulary.encode(b"Now <function=at"))
    crossing = {vocabulary.tokens[token] for token in allowed(matcher, vocabulary)}
    assert {b">", b'>{"'} & crossing == {piece for piece in (b">", b'>{"') if piece in vocabulary.by_bytes}
    assert matcher.advance(vocabulary.encode(b">")) == 1
    assert vocabulary.text(matcher.forced()).startswith(b'{"x')


@pytest.mark.parametrize("seed", range(3))
def test_what_is_generated_is_valid(compiler: GrammarCompiler, vocabulary: Vocabulary, seed: int) -> None:
    grammar = built(compiler, triggered(tag("<go>", {"type": "json_schema", "json_schema": POINT}, "</go>"), at_least_one=True))
    text = Generator(vocabulary, seed).generate(grammar, 60)
    if text is not None:
        for call in text.decode(errors="replace").split("<go>")[1:]:
            assert set(json.loads(call.split("</go>")[0])) == {"x"}


def test_healed_text_comes_before_the_free_text(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = built(compiler, CALLS, b" x")
    assert accepts(grammar, vocabulary, " xyz <function=wait>1</function>")
    assert not accepts(grammar, vocabulary, "yz")


def test_special_ids_are_never_in_the_text(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    mask = allowed(built(compiler, CALLS).matcher(), vocabulary)
    assert mask & vocabulary.special == set(vocabulary.eos) & mask
    assert len(mask) > vocabulary.size * 0.9


@pytest.mark.parametrize(
    ("form", "error", "place"),
    [
        ([], InvalidGrammar, "at /"),
        ({"format": {"type": "qwen_xml"}}, InvalidGrammar, "/format/type"),
        (triggered(tag("", FREE, "x")), InvalidGrammar, "/format/tags/0/begin"),
        ({"format": {"type": "tag", "begin": "a", "end": "b"}}, InvalidGrammar, "'content'"),
        ({"format": {**FREE, "surprise": 1}}, InvalidGrammar, "/format/surprise"),
        ({"format": {"type": "sequence", "elements": [FREE, regex("a")]}}, InvalidGrammar, "/format/elements/0"),
        ({"structures": [], "triggers": ["x"]}, InvalidGrammar, "/structures"),
        ({**CALLS, "triggers": ["zz"]}, InvalidGrammar, "/structures/0/begin"),
        ({**CALLS, "triggers": []}, InvalidGrammar, "/structures/0/begin|/triggers"),
        (
            {"structures": [{"begin": "x", "schema": {"type": "objekt"}, "end": "y"}], "triggers": ["x"]},
            InvalidSchema,
            "/structures/0",
        ),
        (
            triggered(tag("<", {"type": "json_schema", "json_schema": {"type": [{}]}}, ">")),
            InvalidSchema,
            "/type.*/format/tags/0/content",
        ),
        (triggered(tag("<", regex("(a"), ">")), InvalidRegex, "/format/tags/0/content"),
        (triggered(tag("<", regex("a"), "")), InvalidGrammar, "/format/tags/0/end"),
        (
            triggered(tag("<", {"type": "grammar", "grammar": "root ::= x"}, ">")),
            InvalidGrammar,
            "line 1, column 10.*/format/tags/0",
        ),
        (
            triggered(tag("<", {"type": "json_schema", "json_schema": {"min_items": 1}}, ">")),
            UnsupportedKeyword,
            "/format/tags/0/content/json_schema/min_items",
        ),
        (
            triggered(tag("<", {"type": "json_schema", "json_schema": {}, "exact": False}, ">")),
            InvalidGrammar,
            "/format/tags/0/content/exact",
        ),
        (triggered(tag("<", {"type": "json_schema", "json_schema": {"type": "number"}}, "0")), InvalidGrammar, "/format/tags/0"),
        (triggered(tag("<", regex("a"), ">"), at_least_one="yes"), InvalidGrammar, "/format/at_least_one"),
        ({"format": {"type": "or", "elements": [regex("a")] * 2000}}, LimitExceeded, "/format/elements"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    plain: GrammarCompiler, form: object, error: type[GrammarError], place: str
) -> None:
    with pytest.raises(error, match=place):
        built(plain, form)


def test_hostile_tags_cost_their_caller_an_error(plain: GrammarCompiler) -> None:
    for text in ("{", "null", "1", "[" * 100_000, '{"format":' * 5000):
        with pytest.raises(GrammarError):
            compiled(plain, StructuralTag(text))
    nested = '{"type":"optional","content":' * 900 + json.dumps(regex("a")) + "}" * 900
    with pytest.raises(LimitExceeded):
        compiled(plain, StructuralTag('{"format":' + nested + "}"))
