"""What a sample's tokens become: text, stops, healed bytes; and that nothing given out is ever taken back."""

from hypothesis import given
from hypothesis import strategies as st

from branchpoint.runtime.detokenizer import Detokenizer
from branchpoint.runtime.messages import TokenLogprob
from branchpoint.runtime.output import Piece, SampleOutput, StopHit
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.stop import StopScanner

EOS = 999


def output_of(pieces: list[bytes], heal: bytes = b"", **sampling: object) -> SampleOutput:
    """A sample whose token i stands for `pieces[i]`; EOS is special."""
    table = {**dict(enumerate(pieces)), EOS: b"<|end|>"}
    return SampleOutput(table.__getitem__, frozenset({EOS}), SamplingParams(**sampling), heal)  # type: ignore[arg-type]


def run(output: SampleOutput, tokens: list[int]) -> tuple[str, tuple[int, ...], StopHit | None]:
    """Push all, taking after each; the joined pieces and the stop."""
    text, kept = "", ()
    for token in tokens:
        hit = output.push(token)
        piece = output.take()
        text, kept = text + piece.text, kept + piece.tokens
        if hit:
            break
    piece = output.finish()
    return text + piece.text, kept + piece.tokens, output.hit


def test_text_and_tokens_come_at_once_where_nothing_can_stop() -> None:
    output = output_of([b"Hel", b"lo"])
    assert output.push(0) is None
    assert output.take() == Piece("Hel", (0,))
    assert not output.take()
    output.push(1)
    assert output.finish() == Piece("lo", (1,))


def test_an_unfinished_character_is_held_back_and_not_replaced() -> None:
    output = output_of([b"a\xf0\x9f", b"\x98", b"\x80b"])
    output.push(0)
    assert output.take() == Piece("a", (0,))
    output.push(1)
    assert output.take().text == ""
    output.push(2)
    assert output.take() == Piece("\U0001f600b", (2,))
    assert not output.finish()


def test_a_truncated_character_ends_as_one_replacement() -> None:
    text, tokens, _ = run(output_of([b"a", b"\xf0\x9f\x98"]), [0, 1])
    assert (text, tokens) == ("a\ufffd", (0, 1))


@given(st.binary(max_size=40), st.data())
def test_a_detokenizer_gives_what_decoding_at_once_gives(data: bytes, draw: st.DataObject) -> None:
    detokenizer, at, text = Detokenizer(), 0, ""
    while at < len(data):
        step = draw.draw(st.integers(1, 5))
        text += detokenizer.push(data[at : at + step])
        at += step
    assert text + detokenizer.flush() == data.decode("utf-8", "replace")


def test_a_stop_is_found_across_tokens_and_its_start_token_dropped() -> None:
    output = output_of([b"yes", b" </", b"end", b"> no"], stop=("</end>",))
    assert [output.push(0), output.push(1), output.push(2)] == [None, None, None]
    assert output.take() == Piece("yes ", (0,))
    assert output.push(3) == StopHit("</end>", 1)
    assert not output.take()
    assert not output.finish()


def test_include_stop_shows_the_stop_and_keeps_its_tokens() -> None:
    text, tokens, hit = run(output_of([b"a", b"b!", b"?c"], stop=("!?",), include_stop=True), [0, 1, 2])
    assert (text, tokens, hit) == ("ab!?", (0, 1), StopHit("!?", 2))


def test_only_what_could_become_a_stop_is_held_back() -> None:
    output = output_of([b"a\n", b"b\n\n", b"c"], stop=("\n\n\n",))
    output.push(0)
    assert output.take().text == "a"
    output.push(1)
    assert output.take() == Piece("\nb", (0,))
    output.push(2)
    assert output.take() == Piece("\n\nc", (1, 2))


def test_the_earliest_stop_wins_whatever_their_order_and_length() -> None:
    assert run(output_of([b"xayb"], stop=("b", "a")), [0])[2] == StopHit("a", 0)
    assert run(output_of([b"abc"], stop=("b", "abc")), [0])[2] == StopHit("abc", 0)
    assert run(output_of([b"a", b"b", b"c"], stop=("b", "abc")), [0, 1, 2])[2] == StopHit("abc", 0)
    assert run(output_of([b"a", b"b", b"d"], stop=("b", "abc")), [0, 1, 2])[0] == "a"
    assert run(output_of([b"a", b"b"], stop=("b", "abc")), [0, 1]) == ("a", (0,), StopHit("b", 1))


STOPS = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.text("abé", max_size=24), STOPS, st.lists(st.integers(1, 4), max_size=40), st.booleans())
def test_the_stop_depends_on_the_text_only(text: str, stops: list[str], steps: list[int], include: bool) -> None:
    data, pieces = text.encode(), []
    for step in [*steps, 100]:
        pieces, data = [*pieces, data[:step]], data[step:]
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    got, tokens, hit = run(output_of(pieces, stop=tuple(stops), include_stop=include), list(range(len(pieces))))
    if not found:
        assert (got, hit, len(tokens)) == (text, None, len(pieces))
        return
    at, length, stop = min(found)
    end = at + length if include else at
    assert got == text[:end]
    assert hit is not None and hit.stop == stop and hit.kept == len(tokens)
    assert len(b"".join(pieces[: hit.kept])) <= len(text[:end].encode())


def test_a_stop_counts_only_after_min_tokens() -> None:
    text, tokens, hit = run(output_of([b"."] * 5, stop=(".",), min_tokens=3, max_tokens=9), [0, 1, 2, 3, 4])
    assert (text, tokens, hit) == ("...", (0, 1, 2), StopHit(".", 3))


def test_healed_bytes_are_swallowed_and_never_stop() -> None:
    output = output_of([b":", b"//x", b"://"], heal=b":/", stop=("://",))
    assert run(output, [0, 1, 2]) == ("/x", (0, 1), StopHit("://", 2))
    assert run(output_of([b" Yes"], heal=b" "), [0]) == ("Yes", (0,), None)


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    assert run(output_of([b"a", b"b"]), [0, EOS, 1]) == ("ab", (0, EOS, 1), None)
    assert run(output_of([b"a", b"b"], skip_special_tokens=False), [0, EOS, 1])[0] == "a<|end|>b"


def test_a_hidden_special_token_can_be_a_stop() -> None:
    assert run(output_of([b"a"], stop=("<|end|>",)), [0, EOS]) == ("a", (0,), StopHit("<|end|>", 1))
    assert run(output_of([b"a"], stop=("<|end|>",), include_stop=True), [0, EOS]) == ("a<|end|>", (0, EOS), StopHit("<|end|>", 2))


def test_log_probabilities_travel_with_their_tokens() -> None:
    output = output_of([b"a", b"!", b"b", b"!", b"?"], stop=("!?",))
    entries = [TokenLogprob(token, -float(token), b"") for token in range(5)]
    got: tuple[TokenLogprob, ...] = ()
    for token, entry in enumerate(entries):
        output.push(token, entry)
        got += output.take().logprobs
    assert got + output.finish().logprobs == tuple(entries[:3])


def test_a_scanner_holds_no_more_than_a_stops_beginning() -> None:
    scanner = StopScanner(("aab",))
    for count in range(1, 100):
        assert scanner.feed(b"a") is None
        assert scanner.safe == max(0, count - 2)
    match = scanner.feed(b"b")
    assert match is not None and (match.start, match.end) == (97, 100)


def test_forced_stretches_are_told_by_their_characters() -> None:
    output = output_of([b"a", "é".encode()[:1], "é".encode()[1:], b"bc", b"d<"], stop=("<e",))
    output.push(0)
    for token in (1, 2, 3):
        output.push(token, forced=True)
    assert output.take() == Piece("aébc", (0, 1, 2, 3), (), ((1, 4),))
    output.push(4, forced=True)
    assert output.take() == Piece("d", (), (), ((0, 1),))  # the rest could still become a stop
    output.push(0)
    assert output.finish() == Piece("<a", (4, 0), (), ((0, 1),))
