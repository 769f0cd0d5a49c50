"""What the llguidance library is given, its tokens and grammars, and what its messages mean: for `llguidance.py`."""

import json

from branchpoint.constrained.errors import EmptyLanguage, GrammarError, LimitExceeded, shorten
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["TokenSource", "refusal", "whole_grammar"]

_TOO_COMPLEX = ("fuel", "too complex", "too large", "too many", "limit", "max is")
_UNSATISFIABLE = ("unsatisfiable", "noextension", "is empty")


class TokenSource:
    """What llguidance wants to see of a tokenizer. Special ids have no bytes here, so no grammar can name them."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos[0]
        self.tokens = vocabulary.tokens
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a text."""
        return self._encode(text.encode() if isinstance(text, str) else text)


def whole_grammar(grammar: str, prefix: str) -> str:
    """The grammar after a literal, which may be empty.

    Without `no_forcing` the library narrows masks to its own cut of forced text; here a mask has every token that fits.
    """
    inner = json.loads(grammar)["grammars"]
    inner[0]["name"] = "body"
    literal = json.dumps(prefix, ensure_ascii=False) if prefix else ""
    lark = f'%llguidance {{"no_forcing": true}}\nstart: {literal} @body'
    return json.dumps({"grammars": [{"name": "main", "lark_grammar": lark}, *inner]})


def refusal(message: str) -> GrammarError:
    """The error of ours that a message of the library means."""
    lowered = message.lower()
    if any(word in lowered for word in _UNSATISFIABLE):
        return EmptyLanguage(f"Nothing satisfies this constraint: {shorten(message)}")
    if any(word in lowered for word in _TOO_COMPLEX):
        return LimitExceeded(f"The constraint is too complex to compile: {shorten(message)}")
    return GrammarError(shorten(message))
