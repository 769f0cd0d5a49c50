"""Forced tokens are those that the tokenizer makes of the whole text, checked against tokenising it; in doubt there are fewer."""

import json
import re
from pathlib import Path

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from tests.constrained.corpus import PERSON, Generator, allowed, compiled

LICENCE = (
    'Licensed under the Apache License, Version 2.0 (the "License"); '
    "you may not use this file except in compliance.\nIt's as-is."
)

TEXTS: list[tuple[Constraint, list[str]]] = [
    (
        JsonSchema(json.dumps(PERSON)),
        [
            '{"first_name":"Ann","age":41,"married":true,"city_of_birth":"New York"}',
            '{"first_name":"","age":0,"married":false,"city_of_birth":"São Paulo"}',
            '{"first_name":"O\'Neil 🙂","age":130,"married":true,"city_of_birth":"東京"}',
        ],
    ),
    (Choice((LICENCE, LICENCE + " No warranty.", "MIT")), [LICENCE, LICENCE + " No warranty.", "MIT"]),
    (Choice((LICENCE,)), [LICENCE]),
    (
        Regex("The answer is: (yes|no), and I'm (sure|unsure)\\."),
        ["The answer is: yes, and I'm unsure.", "The answer is: no, and I'm sure."],
    ),
    (Regex("ID-[0-9]{3} {4}end", engine="outlines"), ["ID-123    end"]),
    (
        Ebnf('start: "def " NAME "(self) -> None:\\n    return None\\n"\nNAME: /[a-z_]+/'),
        ["def run_all(self) -> None:\n    return None\n"],
    ),
]


def cut(vocabulary: Vocabulary, history: list[int], forced: bytes, *, ends: bool) -> list[int]:
    """The tokens that are settled; all where the output ends then."""
    found = ForcedCuts(vocabulary).cut(history, forced)
    return list(found.whole if ends else found.settled)


@pytest.mark.parametrize("which", range(len(TEXTS)))
def test_forced_tokens_are_the_tokenizers_own(compiler: GrammarCompiler, vocabulary: Vocabulary, which: int) -> None:
    constraint, texts = TEXTS[which]
    grammar = compiled(compiler, constraint)
    total = 0
    for text in texts:
        whole = vocabulary.encode(text.encode())
        for at in range(len(whole) + 1):
            matcher = grammar.matcher()
            assert matcher.advance(whole[:at]) == at
            forced = matcher.forced()
            assert forced == whole[at : at + len(forced)]
            assert matcher.advance(forced) == len(forced)
            total += len(forced)
    assert total > 0


def test_much_of_a_fixed_form_is_forced(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    text = '{"first_name":"Ann","age":41,"married":true,"city_of_birth":"New York"}'
    whole = vocabulary.encode(text.encode())
    matcher = compiled(compiler, JsonSchema(json.dumps(PERSON))).matcher()
    sampled = at = 0
    while at < len(whole):
        forced = matcher.forced() or whole[at : at + 1]
        sampled += not matcher.forced()
        assert matcher.advance(forced) == len(forced)
        at += len(forced)
    assert matcher.can_end
    assert sampled <= len(whole) * 2 / 3


def test_text_known_to_its_end_is_forced_to_its_end(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    for constraint in (Choice((LICENCE,)), JsonSchema(json.dumps({"const": "in the end"})), Regex("in the end")):
        matcher = compiled(compiler, constraint).matcher()
        forced = matcher.forced()
        assert matcher.advance(forced) == len(forced)
        assert matcher.finished
        assert forced == vocabulary.encode(vocabulary.text(forced))
        assert matcher.forced() == []


def test_what_follows_unusual_tokens_is_still_taken(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    generator = Generator(vocabulary, seed=7)
    for constraint, _ in TEXTS:
        matcher = compiled(compiler, constraint).matcher()
        for step in range(40):
            forced = matcher.forced()
            assert matcher.advance(forced) == len(forced)
            token = generator.choose(sorted(allowed(matcher, vocabulary)), step)
            assert matcher.advance([token]) == 1
            if matcher.finished:
                break


def test_real_text_cut_anywhere_is_forced_as_it_is_tokenised(vocabulary: Vocabulary) -> None:
    text = Path(__file__).read_text(encoding="utf-8")[:6000].encode()
    whole = vocabulary.encode(text)
    ends: list[int] = []
    for token in whole:
        ends.append((ends[-1] if ends else 0) + len(vocabulary.tokens[token]))
    kept = 0
    for at in range(0, len(whole) - 40, 7):
        for length in (3, 11, 40, 90):
            start = ends[at]
            forced = cut(vocabulary, whole[: at + 1], text[start : start + length], ends=False)
            assert forced == whole[at + 1 : at + 1 + len(forced)]
            kept += len(forced)
    assert kept > 1000


def test_a_word_that_may_go_on_is_held_back(vocabulary: Vocabulary) -> None:
    assert cut(vocabulary, [], b"hello wor", ends=False) == vocabulary.encode(b"hello")
    assert cut(vocabulary, [], b"hello wor", ends=True) == vocabulary.encode(b"hello wor")
    assert cut(vocabulary, vocabulary.encode(b"hel"), b"lo ", ends=True) == []
    assert cut(vocabulary, [], b"\xf0\x9f", ends=True) == []


def test_behind_a_word_that_was_cut_oddly_the_rest_is_forced(vocabulary: Vocabulary) -> None:
    letters = [vocabulary.by_bytes[bytes((letter,))][0] for letter in b'{"name":"Ann']
    for rest in (b'","age":', b" is here, "):
        assert cut(vocabulary, letters, rest, ends=True) == vocabulary.encode(rest)
        settled = cut(vocabulary, letters, rest, ends=False)
        assert settled == vocabulary.encode(rest)[: len(settled)]
    assert cut(vocabulary, letters, b"ie is here", ends=True) == []


def test_where_tokens_join_words_to_marks_an_odd_cut_is_seen() -> None:
    texts = [bytes((byte,)) for byte in range(32, 127)] + [b'n"']
    ids = {text: token for token, text in enumerate(texts)}

    def encode(text: bytes) -> list[int]:
        return [ids[piece] for piece in re.findall(rb'n"|.', text)]

    joining = make_vocabulary(dict(enumerate(texts)), (), (len(texts),), len(texts) + 1, encode)
    assert cut(joining, [ids[b"a"], ids[b"n"]], b'",', ends=True) == []
    assert cut(joining, [ids[b"a"], ids[b"m"]], b'",', ends=True) == [ids[b'"'], ids[b","]]
