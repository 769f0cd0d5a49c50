"""Cuts plain text, in which nothing is special, into tokens. Used by `tokenizer.py` for each stretch of a prompt.

Some tokenizers put a space before a text: they do so here where a text begins, not in the middle of one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.tokenizer_layout import SpecialTokens, Stretch

__all__ = ["PlainText"]

_SPACE_INSIDE = re.compile(r"[^Ġ▁ĉĊċČč\s][Ġ▁ ]")  # a space behind a word, within a token, as tokenizers write white space


class PlainText:
    """The `tokenizers` tokenizer of `layout` (its JSON), for text alone. `json` is what is left of it. Thread-safe."""

    def __init__(self, layout: dict[str, Any], special: SpecialTokens) -> None:
        self.json = _plain_json(layout, special)
        self._fresh = _plain_backend(self.json)
        bare = _without_prefix(json.loads(self.json))
        self._bare = self._fresh if bare is None else _plain_backend(bare)
        self._cuts_at_spaces = not any(map(_SPACE_INSIDE.search, self._fresh.get_vocab(with_added_tokens=False)))
        self._prefix_after_special = '"Prepend"' in self.json or '"prepend_scheme": "always"' in self.json

    @property
    def ids(self) -> Iterable[int]:
        """All ids that the tokenizer knows, those of special tokens too."""
        return self._fresh.get_vocab(with_added_tokens=True).values()

    def encode(self, stretch: Stretch) -> Encoding:
        """Ids, and for each where it lies in the text, in characters. Raises InvalidRequest for text that is no Unicode."""
        fresh = stretch.after == "start" or (stretch.after == "special" and self._prefix_after_special)
        try:
            return (self._fresh if fresh else self._bare).encode(stretch.text, add_special_tokens=False)
        except TypeError as error:
            raise InvalidRequest("Text must be valid Unicode; it holds half of a surrogate pair.", param="prompt") from error

    def settle(self, stretch: Stretch) -> tuple[Sequence[int], Stretch]:
        """The ids at the start of a text that stay as they are whatever follows it, and the rest of the text.

        They end before the last space behind a word, where no token of the vocabulary goes over such a place.
        """
        text = stretch.text
        cut = next((at for at in range(len(text) - 1, 0, -1) if text[at] == " " and not text[at - 1].isspace()), 0)
        if not cut or not self._cuts_at_spaces:
            return (), stretch
        left, right = self.encode(Stretch(text[:cut], stretch.after)), Stretch(text[cut:], "ids")
        if [*left.ids, *self.encode(right).ids] != self.encode(stretch).ids:
            return (), stretch  # it normalises over words
        return left.ids, right

    def continue_with(self, stretch: Stretch, options: Iterable[str]) -> Iterator[tuple[list[int], int]]:
        """For each option the ids of the text and it together, and how many of them, from the start, lie in the text alone."""
        end = len(stretch.text)
        for option in options:
            encoding = self.encode(Stretch(stretch.text + option, stretch.after))
            yield encoding.ids, sum(1 for _ in takewhile(lambda span: span[1] <= end, encoding.offsets))

    def encode_bytes(self, text: bytes) -> list[int]:
        """Ids of text that stands inside another. Raises ValueError for bytes that are no UTF-8."""
        return list(self._bare.encode(text.decode(), add_special_tokens=False).ids)


def _plain_json(layout: dict[str, Any], special: SpecialTokens) -> str:
    """The tokenizer for text alone: nothing added around it, no cutting to a length, every control token flagged as special."""
    for entry in layout["added_tokens"]:
        entry["special"] = entry["special"] or entry["content"] in special.by_text
    return json.dumps(layout | {"post_processor": None, "truncation": None, "padding": None}, ensure_ascii=False)


def _plain_backend(text: str) -> Backend:
    backend: Backend = Backend.from_str(text)
    backend.encode_special_tokens = True  # a special token's text is text
    cutter = backend.pre_tokenizer
    if isinstance(backend.model, BPE) and (cutter is None or len(cutter.pre_tokenize_str("a b")) == 1):
        # it keeps 10,000 words, and a whole text is one here: tens of megabytes that nobody asks for
        backend.model._resize_cache(0)
    return backend


def _without_prefix(layout: dict[str, Any]) -> str | None:
    """The tokenizer that puts no space before a text; None where it puts none anyway."""
    before = json.dumps(layout, ensure_ascii=False)
    normalizer = layout["normalizer"] or {}
    if normalizer.get("type") == "Prepend":
        layout["normalizer"] = None
    elif normalizer.get("type") == "Sequence":
        normalizer["normalizers"] = [step for step in normalizer["normalizers"] if step["type"] != "Prepend"]
    cutter = layout["pre_tokenizer"] or {}
    for step in (cutter, *cutter.get("pretokenizers", ())):
        if step.get("type") == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step.get("type") == "ByteLevel":
            step["add_prefix_space"] = False
    after = json.dumps(layout, ensure_ascii=False)
    return None if after == before else after
