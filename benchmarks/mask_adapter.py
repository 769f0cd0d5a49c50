"""Branchpoint under the masks' harness: `run.py --engine branchpoint --adapter benchmarks/mask_adapter.py …`.

The harness (the folder that `benchmarks.masks` is given) says in the head of its `harness.py` what it asks of an adapter.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # the harness starts this file by its path

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Residue
from branchpoint.constrained.mask import allocate, is_allowed
from branchpoint.constrained.spec import Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary

__all__ = ["Adapter", "AdapterMatcher", "make"]


class Context(Protocol):
    """What the harness tells about its tokenizer, and the documents that schemas may refer to."""

    vocab: Sequence[bytes | None]
    vocab_size: int
    eos_id: int
    special_ids: frozenset[int]
    remotes: Mapping[str, object]

    def encode(self, text: str) -> list[int]: ...


class Adapter:
    """One compiler for the harness's vocabulary. The harness's instances have spaces, and keys in orders of their own."""

    def __init__(self, context: Context) -> None:
        self.vocabulary = _vocabulary(context)
        self._declared = os.environ.get("BRANCHPOINT_MASK_ORDER") == "declared"  # the harness passes no options on
        self.whole = os.environ.get("BRANCHPOINT_MASK_FILL") == "whole"
        self.compiler = GrammarCompiler(self.vocabulary, workers=1, documents=context.remotes)
        self.compiler.warm().result()  # as servers do at their start

    def constraint(self, grammar: object, kind: str = "json_schema") -> Constraint:
        """What the harness's grammar is to us."""
        if kind == "json_schema":
            return JsonSchema(json.dumps(grammar), whitespace="flexible", order="declared" if self._declared else "any")
        return Regex(str(grammar)) if kind == "regex" else Ebnf(str(grammar))

    def compile(self, grammar: object, kind: str = "json_schema") -> "AdapterMatcher":
        """A cursor at the start; raises the GrammarError of what is refused."""
        compiled = self.compiler.compile(self.constraint(grammar, kind)).result()
        return AdapterMatcher(self.vocabulary, compiled, whole=self.whole)

    def close(self) -> None:
        """End the compiler's threads and its process; the harness never calls it, its worker just ends."""
        self.compiler.close()


class LooseRow:
    """A row that a cursor filled loosely: what a sampler draws from it is asked about, as the harness asks about its tokens."""

    def __init__(self, row: MaskRow, residue: Residue) -> None:
        self._row, self._residue = row, residue

    def allows(self, token: int) -> bool:
        """Whether a token may come next."""
        return is_allowed(self._row, token) and self._residue.allows(token)


class AdapterMatcher:
    """A cursor with one mask row of its own. `whole`: whether rows are filled exactly, as for samplers that truncate."""

    def __init__(self, vocabulary: Vocabulary, grammar: CompiledGrammar, *, whole: bool) -> None:
        self.grammar = grammar
        self._vocabulary = vocabulary
        self._whole = whole
        self._matcher = grammar.matcher()
        self._row: MaskRow = allocate(1, vocabulary.size)[0]

    def fresh(self) -> "AdapterMatcher":
        """Another cursor at the start."""
        return AdapterMatcher(self._vocabulary, self.grammar, whole=self._whole)

    def mask(self) -> MaskRow | LooseRow:
        """The packed row of tokens that may come next."""
        if self._whole:
            self._matcher.fill(self._row)
            return self._row
        residue = self._matcher.fill_loosely(self._row)
        return self._row if residue is None else LooseRow(self._row, residue)

    def advance(self, token: int) -> bool:
        """Whether the token was taken."""
        return self._matcher.advance([token]) == 1

    def accepts_eos(self) -> bool:
        """Whether the value may end here."""
        return self._matcher.can_end


def make(context: Context) -> Adapter:
    """What the harness calls, once in its worker process."""
    return Adapter(context)


def _vocabulary(context: Context) -> Vocabulary:
    tokens = {token: text for token, text in enumerate(context.vocab) if text}

    def encode(text: bytes) -> list[int]:
        try:
            return context.encode(text.decode())
        except UnicodeDecodeError as error:
            raise ValueError("Expected bytes that are UTF-8.") from error

    return make_vocabulary(tokens, context.special_ids, (context.eos_id,), context.vocab_size, encode)
