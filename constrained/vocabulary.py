"""The bytes of every token: what masks are made over, and the only thing this room knows of a tokenizer.

Built once per model by `runtime.tokenizer` and handed to the compiler; every grammar is compiled against one.
"""

import bisect
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from branchpoint.constrained.errors import InvalidVocabulary, shorten

__all__ = ["CERTAIN_CUT", "Vocabulary", "make_vocabulary", "vocabulary_from_ranks", "vocabulary_from_tokenizer_json"]

Encode = Callable[[bytes], list[int]]
CERTAIN_CUT = re.compile(rb"[0-9A-Za-z][^0-9A-Za-z'\x80-\xff]")
"""Two bytes that usual tokenizers never join."""

_SPACE_MARK = "\u2581"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Byte-exact tokens of one model.

    `tokens[id]` is b"" for special and unused ids, which never match text. `eos` ids end an output; they are special.
    `size` is the width of the model's logits and the length of `tokens`. `encode` cuts bytes that stand inside a text as
    the tokenizer would: no special tokens, nothing added; it may raise ValueError for bytes it can't take. `joins`: a token
    has a CERTAIN_CUT within, so that cuts may hang on what is far behind.
    """

    tokens: tuple[bytes, ...]
    special: frozenset[int]
    eos: tuple[int, ...]
    size: int
    encode: Encode = field(repr=False)
    fingerprint: str
    by_bytes: Mapping[bytes, tuple[int, ...]] = field(repr=False)
    ordered: tuple[bytes, ...] = field(repr=False)
    longest: int
    joins: bool

    def extensions(self, prefix: bytes) -> Iterable[bytes]:
        """The tokens' bytes that begin with `prefix` and are longer, in byte order."""
        at = bisect.bisect_right(self.ordered, prefix)
        while at < len(self.ordered) and self.ordered[at].startswith(prefix):
            yield self.ordered[at]
            at += 1

    def has_extension(self, prefix: bytes) -> bool:
        """Whether some token begins with `prefix` and is longer."""
        at = bisect.bisect_right(self.ordered, prefix)
        return at < len(self.ordered) and self.ordered[at].startswith(prefix)

    def text(self, tokens: Iterable[int]) -> bytes:
        """The bytes that `tokens` stand for; special ids stand for none."""
        return b"".join(self.tokens[token] for token in tokens)


def make_vocabulary(
    tokens: Mapping[int, bytes], special: Iterable[int], eos_ids: Sequence[int], size: int, encode: Encode
) -> Vocabulary:
    """A vocabulary of `size` ids from the bytes of its text tokens. Raises InvalidVocabulary where ids don't fit `size`."""
    eos = tuple(dict.fromkeys(eos_ids))
    marked = frozenset(special) | frozenset(eos)
    out_of_range = [token for token in (*tokens, *eos) if not 0 <= token < size]
    if out_of_range:
        raise InvalidVocabulary(f"Token ids must lie below the logits' width {size}, got {out_of_range[0]}.")
    if not eos:
        raise InvalidVocabulary("At least one end token is needed, else no constrained output could end; got none.")
    table = [b""] * size
    grouped: dict[bytes, list[int]] = {}
    for token, text in sorted(tokens.items()):
        if token not in marked and text:
            table[token] = text
            grouped.setdefault(text, []).append(token)
    digest = hashlib.sha256(repr((size, eos, sorted(marked))).encode())
    for text in table:
        digest.update(len(text).to_bytes(4, "little") + text)
    ordered = tuple(sorted(grouped))
    return Vocabulary(
        tokens=tuple(table),
        special=frozenset(token for token in marked if token < size),
        eos=eos,
        size=size,
        encode=encode,
        fingerprint=digest.hexdigest(),
        by_bytes={text: tuple(ids) for text, ids in grouped.items()},
        ordered=ordered,
        longest=max(map(len, grouped), default=0),
        joins=CERTAIN_CUT.search(b"\xff".join(ordered)) is not None,
    )


def vocabulary_from_ranks(
    ranks: Mapping[bytes, int], special: Mapping[str, int], eos_ids: Sequence[int], size: int, encode: Encode
) -> Vocabulary:
    """A vocabulary from tiktoken's own tables: mergeable ranks (bytes to id) and special tokens (text to id)."""
    return make_vocabulary({token: text for text, token in ranks.items()}, special.values(), eos_ids, size, encode)


def vocabulary_from_tokenizer_json(text: str, eos_ids: Sequence[int], size: int, encode: Encode) -> Vocabulary:
    """A vocabulary from the JSON of a `tokenizers` tokenizer (`backend_tokenizer.to_str()`).

    Knows byte-level BPE (GPT-2's alphabet; converted tiktoken files are of this kind) and SentencePiece-style pieces
    (`▁` for a space, `<0xNN>` byte fallback; BPE or Unigram). Raises InvalidVocabulary for other kinds.
    """
    try:
        layout = json.loads(text)
        model = layout["model"]
        pieces = _pieces(model)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidVocabulary(f"Expected the JSON of a tokenizer with a vocabulary, got: {shorten(error)}") from error
    read = _piece_reader(layout)
    tokens = {token: read(piece) for piece, token in pieces.items()}
    special = {pieces[unknown] for unknown in _unknown_pieces(model, pieces)}
    for added in layout.get("added_tokens") or ():
        tokens[added["id"]] = str(added["content"]).encode()
        if added.get("special"):
            special.add(added["id"])
    return make_vocabulary(tokens, special, eos_ids, size, encode)


def _pieces(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [piece, score] in order of ids
        return {str(entry[0]): token for token, entry in enumerate(vocabulary)}
    return {str(piece): int(token) for piece, token in vocabulary.items()}


def _unknown_pieces(model: Mapping[str, Any], pieces: Mapping[str, int]) -> list[str]:
    if isinstance(model.get("unk_id"), int):
        return [piece for piece, token in pieces.items() if token == model["unk_id"]]
    return [piece for piece in (model.get("unk_token"),) if isinstance(piece, str) and piece in pieces]


def _piece_reader(layout: Mapping[str, Any]) -> Callable[[str], bytes]:
    """How a piece of this tokenizer spells bytes; told by its decoder and pre-tokenizer."""
    parts = list(_parts(layout.get("decoder"))) + list(_parts(layout.get("pre_tokenizer")))
    kinds = {str(part.get("type")) for part in parts}
    if "ByteLevel" in kinds:
        return _byte_level_reader()
    marked = "Metaspace" in kinds or any(_SPACE_MARK in json.dumps(part, ensure_ascii=False) for part in parts)
    if marked or "ByteFallback" in kinds:
        return _sentencepiece_reader(fallback="ByteFallback" in kinds or bool(layout["model"].get("byte_fallback")), mark=marked)
    raise InvalidVocabulary(
        "Expected a byte-level or SentencePiece-style tokenizer, got one whose decoder is "
        f"{shorten(sorted(kinds)) if kinds else 'absent'}; build its vocabulary with make_vocabulary."
    )


def _parts(stage: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    if not stage:
        return
    yield stage
    for nested in (*stage.get("decoders", ()), *stage.get("pretokenizers", ())):
        yield from _parts(nested)


def _byte_level_reader() -> Callable[[str], bytes]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the code points from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(hidden)}

    def read(piece: str) -> bytes:
        try:
            return bytes(alphabet[char] for char in piece)
        except KeyError:  # a token that was added as plain text
            return piece.encode()

    return read


def _sentencepiece_reader(*, fallback: bool, mark: bool) -> Callable[[str], bytes]:
    def read(piece: str) -> bytes:
        if fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(_SPACE_MARK, " ") if mark else piece).encode()

    return read
