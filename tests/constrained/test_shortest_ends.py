"""What a grammar tells of the shortest end of a text, against an independent judge that tries all shorter ones."""

import itertools
import random

import pytest

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Ref, Rep, Seq, prune
from branchpoint.constrained.reading import Reading, read_nothing
from branchpoint.constrained.rules import make_rules
from branchpoint.constrained.words import Words
from tests.constrained.derivation import ALPHABET, Derivation, random_grammar

_LONGEST = 4


def read(reading: Reading | None, text: str) -> Reading | None:
    for char in text:
        reading = reading.step(char) if reading is not None else None
    return reading


@pytest.mark.parametrize("seed", range(60))
def test_the_rest_of_a_text_is_the_shortest_that_makes_a_sentence_of_it(seed: int) -> None:
    grammar = prune(random_grammar(random.Random(seed)))
    nothing = read_nothing(make_rules(grammar, {}, len))
    shorter = ["".join(chars) for length in range(_LONGEST + 1) for chars in itertools.product(ALPHABET, repeat=length)]
    sentences = {text for text in shorter if Derivation(grammar, text).holds()}
    for text in shorter:
        reading = read(nothing, text)
        ends = [sentence[len(text) :] for sentence in sentences if sentence.startswith(text)]
        assert (reading is not None and reading.is_sentence) == (text in sentences), text
        if reading is None:
            assert not ends, (text, ends)
            continue
        rest = "" if reading.is_sentence else next(reading.rests(len, 1))
        assert len(rest) == min(map(len, ends), default=len(rest)), (text, rest, ends)
        assert len(text + rest) > 12 or Derivation(grammar, text + rest).holds(), (text, rest)


def test_deep_nesting_and_long_lists_are_followed_at_even_cost() -> None:
    nested = Cfg({"r": Alt((Seq((Lit("("), Ref("r"), Lit(")"))), Lit("x")))}, "r")
    reading = read(read_nothing(make_rules(nested, {}, len)), "(" * 2000)
    assert reading is not None and next(reading.rests(len, 1)) == "x" + ")" * 2000
    endless = Cfg({"r": Alt((Seq((Lit("ab"), Ref("r"))), Lit(".")))}, "r")
    reading = read(read_nothing(make_rules(endless, {}, len)), "ab" * 2000 + "a")
    assert reading is not None and next(reading.rests(len, 1)) == "b."
    counted = Cfg({"r": Rep(Rep(Chars(((97, 122),)), 2, 3), 5000, 10_000)}, "r")
    reading = read(read_nothing(make_rules(counted, {}, len)), "xyz")
    assert reading is not None and len(next(reading.rests(len, 1))) == 9997


def test_a_sentence_that_grows_beyond_all_bounds_is_no_guess() -> None:
    doubling = {f"r{number}": Seq((Ref(f"r{number + 1}"), Ref(f"r{number + 1}"))) for number in range(64)}
    start = make_rules(Cfg({**doubling, "r64": Lit("ab")}, "r0"), {}, len)
    assert start.price == 2**65 and not list(read_nothing(start).rests(len, 1))


@pytest.mark.parametrize(
    ("stops", "excludes", "written", "stop", "rest"),
    [
        (("</a>",), (), "so </", "</a>", "a>"),
        (("</a>",), (), "so </b", "</a>", "</a>"),
        (("ab", "xab!"), (), "x", "xab!", None),
        (("abc", "xabc"), (), "x", "abc", "abc"),
        (("aab",), ("aaa",), "aa", "aab", "b"),
        (("end",), ("xe",), "x", "end", "aend"),
    ],
)
def test_the_rest_of_free_text_up_to_its_stop(
    stops: tuple[str, ...], excludes: tuple[str, ...], written: str, stop: str, rest: str | None
) -> None:
    words, suffix = Words(stops, excludes), ""
    for char in written:
        suffix, _, _ = words.step(suffix, char)
    assert words.rest(suffix, stop) == rest
