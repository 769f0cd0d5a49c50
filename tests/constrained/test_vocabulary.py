"""Every token's bytes are exact, whichever kind of tokenizer they come from; special ids have none."""

import json

import numpy as np
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import InvalidVocabulary
from branchpoint.constrained.mask import allocate, allow, allow_all, forbid, is_allowed, iterate_allowed, pack
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary, vocabulary_from_ranks, vocabulary_from_tokenizer_json
from tests.constrained.corpus import allowed, compiled


def no_encode(text: bytes) -> list[int]:
    raise ValueError("not needed")


def bytewise(size: int = 261, eos: tuple[int, ...] = (260,)) -> Vocabulary:
    """Every byte as a token, and a few longer ones; a width that is no multiple of 32."""
    tokens = {byte: bytes([byte]) for byte in range(256)} | {256: b"ab", 257: b"\xc3\xa9", 258: b'":'}
    return make_vocabulary(tokens, (259,), eos, size, list)


def test_smollm2_has_all_its_bytes(vocabulary: Vocabulary) -> None:
    assert vocabulary.size == len(vocabulary.tokens) == 49152
    assert vocabulary.eos == (2, 0)
    assert vocabulary.special >= {0, 1, 2}
    assert all(vocabulary.tokens[token] == b"" for token in vocabulary.special)
    text = "Ünïcödé 🙂 text,\n\twith \\ tabs".encode()
    assert vocabulary.text(vocabulary.encode(text)) == text


def test_sentencepiece_pieces_are_read() -> None:
    layout = {
        "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
                  "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "▁the": 4, "é": 5, "▁▁": 6, "[x]": 7}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}, {"id": 2, "content": "</s>", "special": True},
                         {"id": 7, "content": "[x]", "special": False}],
    }  # fmt: skip
    found = vocabulary_from_tokenizer_json(json.dumps(layout), [2], 10, no_encode)
    assert found.tokens == (b"", b"", b"", b"\n", b" the", "é".encode(), b"  ", b"[x]", b"", b"")
    assert found.special == {0, 1, 2}


def test_unigram_pieces_come_in_order() -> None:
    layout = {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]]},
        "decoder": {"type": "Metaspace"},
    }
    assert vocabulary_from_tokenizer_json(json.dumps(layout), [3], 4, no_encode).tokens == (b"", b" a", b"b", b"")


def test_byte_level_pieces_and_added_text_are_read() -> None:
    layout = {
        "model": {"type": "BPE", "vocab": {"a": 0, "Ġa": 1, "Ċ": 2, "Ã©": 3, "日本": 4}},
        "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 5, "content": " é", "special": False}, {"id": 6, "content": "<end>", "special": True}],
    }  # fmt: skip
    found = vocabulary_from_tokenizer_json(json.dumps(layout), [6], 7, no_encode)
    assert found.tokens == (b"a", b" a", b"\n", "é".encode(), "日本".encode(), " é".encode(), b"")


def test_tiktoken_tables_are_read() -> None:
    assert vocabulary_from_ranks({b"a": 0, b"\xff": 1}, {"<end>": 2}, [2], 3, no_encode).tokens == (b"a", b"\xff", b"")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"model":{}}', '{"model":{"vocab":{"a":0}}}', '{"model":{"vocab":{"a":0}},"decoder":{"type":"WordPiece"}}'],
)
def test_a_tokenizer_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidVocabulary):
        vocabulary_from_tokenizer_json(text, [0], 1, no_encode)


def test_ids_beyond_the_logits_and_no_end_are_refused() -> None:
    with pytest.raises(InvalidVocabulary, match="width 2"):
        make_vocabulary({2: b"a"}, (), [0], 2, no_encode)
    with pytest.raises(InvalidVocabulary, match="end token"):
        make_vocabulary({1: b"a"}, (), [], 2, no_encode)


def test_the_fingerprint_tells_vocabularies_apart() -> None:
    prints = {bytewise().fingerprint, bytewise(size=262).fingerprint, bytewise(eos=(259,)).fingerprint}
    assert len(prints) == 3
    assert bytewise().fingerprint in prints


@pytest.mark.parametrize(
    "constraint",
    [
        Choice(("aé", "ab")),
        Regex("(ab|é)+"),
        Regex("(ab|é)+", engine="outlines"),
        JsonSchema('{"type":"string"}'),
        Ebnf('start: "ab"+ | "é"'),
        None,
    ],
)
def test_a_width_that_is_no_multiple_of_32_leaves_the_last_bits_clear(constraint: Constraint | None) -> None:
    vocabulary = bytewise()
    compiler = GrammarCompiler(vocabulary, workers=1)
    try:
        matcher = compiled(compiler, constraint).matcher()
        row = np.full(11, -1, dtype=np.int32)
        matcher.fill(row)
        assert iterate_allowed(row).max() < 261
        assert not row[9:].any()
        if constraint is not None:
            assert allowed(matcher, vocabulary).isdisjoint({259, 260})
    finally:
        compiler.close()


def test_rows_are_packed_least_significant_bit_first() -> None:
    row = allocate(2, 70)[1]
    assert row.shape == (3,)
    allow(row, [0, 31, 33, 69])
    assert row.tolist() == [-(2**31) + 1, 2, 32]
    assert iterate_allowed(row).tolist() == [0, 31, 33, 69]
    forbid(row, [31, 69])
    assert [token for token in range(70) if is_allowed(row, token)] == [0, 33]
    assert np.array_equal(pack([0, 33], 70), row)
    allow_all(row, 70)
    assert iterate_allowed(row).tolist() == list(range(70))
