"""The main engine: JSON schemas, context-free grammars and regexes on llguidance's lexer and Earley parser.

Gets normalised text from `compiler.py`; turns the library's silent error states into errors of ours that stick.
"""

import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from branchpoint.constrained.engines.effects import Effects
from branchpoint.constrained.engines.llguidance_texts import TokenSource, refusal, whole_grammar
from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.errors import EmptyLanguage, GrammarError, LimitExceeded, MatcherError, shorten
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.lazy import Lazy
from branchpoint.constrained.mask import allocate, forbid, iterate_allowed
from branchpoint.constrained.prepared import PreparedGrammar
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["LlguidanceEngine", "LlguidanceGrammar", "LlguidanceMatcher"]

Inner = Mapping[str, "LlguidanceGrammar"]
_ENDLESS = 24_000  # the library gives up looking ahead a little beyond this
_MOST_RENEWALS = 4


class LlguidanceEngine:
    """Compiles grammars for one vocabulary. Thread-safe. `shapes` and `effects` give its tokens by their quotes and brackets."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = LLTokenizer(TokenSource(vocabulary), n_vocab=vocabulary.size, eos_token=list(vocabulary.eos))
        self._limits = LLParserLimits(verbose_errors=False)
        self.shapes = Lazy(lambda: TokenShapes(vocabulary))
        self.effects = Lazy(lambda: Effects(vocabulary))

    def json_schema(
        self, schema: str, options: Mapping[str, object], prefix: str = "", narrowed: tuple[Narrowing, ...] = ()
    ) -> "LlguidanceGrammar":
        """A grammar for a normalised schema (an object, as JSON text); `options` are llguidance's own."""
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=dict(options))
        except ValueError as error:
            raise GrammarError(shorten(error)) from error
        return self._compile(grammar, prefix, narrowed)

    def regex(self, pattern: str, prefix: str = "") -> "LlguidanceGrammar":
        """A grammar for a normalised pattern, matched in full."""
        return self._compile(LLMatcher.grammar_from_regex(pattern), prefix, ())

    def reads(self, pattern: str) -> bool:
        """Whether the engine's regex parser knows every part of a pattern."""
        return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), self._tokenizer)

    def lark(
        self, text: str, prefix: str = "", inner: "Inner | None" = None, narrowed: tuple[Narrowing, ...] = ()
    ) -> "LlguidanceGrammar":
        """A grammar in llguidance's Lark dialect; `inner` are those that it calls `@name`."""
        named = [{**json.loads(grammar.prepared.text)["grammars"][1], "name": name} for name, grammar in (inner or {}).items()]
        source = json.dumps({"grammars": [{"name": "lark", "lark_grammar": text}, *named]})
        return self._compile(source, prefix, narrowed)

    def _compile(self, source: str, prefix: str, narrowed: tuple[Narrowing, ...]) -> "LlguidanceGrammar":
        return self.prepared(PreparedGrammar(whole_grammar(source, prefix), narrowed))

    def prepared(self, grammar: PreparedGrammar) -> "LlguidanceGrammar":
        """Compile, and fill a first mask: lazy work is done here, and what is wrong only then is seen here.

        What takes long, the library does without Python's lock.
        """
        make = functools.partial(LLMatcher, self._tokenizer, grammar.text, log_level=0, limits=self._limits)
        template = make()
        if template.is_error():
            raise refusal(template.get_error())
        row = allocate(1, self.vocabulary.size)[0]
        template.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if template.is_error():
            raise refusal(template.get_error())
        probe = template.deep_copy()
        forced = len(probe.compute_ff_bytes())
        if probe.is_error() or forced > _ENDLESS:
            raise LimitExceeded(f"The constraint forces text without an end, {forced:,} bytes and more from its start.")
        forbid(row, self.vocabulary.eos)
        if not row.any() and not template.is_accepting():
            raise EmptyLanguage("Nothing can begin an output under this constraint; loosen it.")
        probe.try_consume_tokens(iterate_allowed(row)[-1:].tolist())
        if probe.is_error():  # so ambiguous that not even one token can be followed
            raise refusal(probe.get_error())
        return LlguidanceGrammar(self.vocabulary, template, grammar, make)


class LlguidanceGrammar:
    """A compiled grammar; cursors are copies of one that never moves (`grammar.CompiledGrammar`)."""

    def __init__(
        self, vocabulary: Vocabulary, template: LLMatcher, prepared: PreparedGrammar, make: Callable[[], LLMatcher]
    ) -> None:
        self.prepared = prepared
        self._make = make
        self._vocabulary = vocabulary
        self._template = template
        self._cuts = ForcedCuts(vocabulary)
        self._lock = threading.Lock()  # the library's objects allow one borrower at a time

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What was made stricter than asked."""
        return self.prepared.narrowed

    def matcher(self) -> "LlguidanceMatcher":
        """A new cursor at the start."""
        with self._lock:
            return LlguidanceMatcher(self._vocabulary, self._template.deep_copy(), self._cuts, self._renew)

    def _renew(self) -> LLMatcher:
        """A cursor whose lexer is its own: that of all copies breaks for good once they have explored too much together."""
        template, own = self._make(), self._make()
        with self._lock:
            self._template = template
        return own


class LlguidanceMatcher:
    """The cursor of one sequence (`grammar.Matcher`). End tokens are kept here, the library sees text only."""

    def __init__(self, vocabulary: Vocabulary, inner: LLMatcher, cuts: ForcedCuts, renew: Callable[[], LLMatcher]) -> None:
        self._vocabulary = vocabulary
        self._cuts = cuts
        self._inner = inner
        self._renew = renew
        self._renewals = _MOST_RENEWALS
        self._mask = allocate(1, vocabulary.size)[0]
        self._address = self._mask.ctypes.data  # which numpy takes microseconds to tell
        self._none = bytes(self._mask.nbytes)
        self._eos = frozenset(vocabulary.eos)
        self._eos_bits = [(token >> 5, np.left_shift(np.int32(1), token & 31, dtype=np.int32)) for token in self._eos]
        self._tokens: list[int] = []
        self._ended = False
        self._failure: str | None = None

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next; end tokens exactly where the value may end. Raises MatcherError, for good."""
        if self._failure is not None:
            self._check()
        mask = self._mask
        if self._ended:
            mask.fill(0)
        else:
            self._inner.unsafe_compute_mask_ptr(self._address, len(self._none))
            if self._inner.is_error():
                if self._is_renewed():
                    self._inner.unsafe_compute_mask_ptr(self._address, len(self._none))
                self._check_inner()
        if self._inner.is_accepting():  # elsewhere the library sets no end token
            for word, bit in self._eos_bits:
                mask[word] |= bit
        elif mask.tobytes() == self._none:
            self._fail("a dead end: no token can follow and the value is not complete")
        if len(row) == len(mask):
            row[:] = mask
        else:
            row[: len(mask)] = mask
            row[len(mask) :] = 0

    def fill_loosely(self, row: MaskRow) -> None:
        """Write the tokens that may come next, exactly: there is no quicker way."""
        self.fill(row)

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        self._check()
        taken = 0
        while taken < len(tokens) and not self._ended:
            run = self._text_run(tokens[taken:])
            if run:
                accepted = self._inner.try_consume_tokens(run)
                if self._is_renewed():
                    accepted = self._inner.try_consume_tokens(run)
                self._check_inner()
                self._tokens += run[:accepted]
                taken += accepted
                if accepted < len(run):
                    break
            elif tokens[taken] in self._eos and self._inner.is_accepting():
                self._tokens.append(tokens[taken])
                self._ended = True
                taken += 1
            else:
                break
        return taken

    def _text_run(self, tokens: Sequence[int]) -> list[int]:
        """The leading tokens that stand for text: no end tokens, no other specials, none out of range."""
        run: list[int] = []
        for token in tokens:
            if not 0 <= token < self._vocabulary.size or not self._vocabulary.tokens[token]:
                break
            run.append(token)
        return run

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._check()
        if not 0 <= count <= len(self._tokens):
            raise MatcherError(f"Expected to take back 0 to {len(self._tokens)} tokens, got {count}.")
        if not count:
            return
        del self._tokens[-count:]
        text = count - 1 if self._ended else count
        self._ended = False
        if text:
            self._inner.rollback(text)
            self._check_inner()

    def forced(self) -> list[int]:
        """The tokens that follow without a choice, cut as the tokenizer would."""
        self._check()
        if self._ended or self._inner.is_accepting():
            return []
        forced = self._inner.compute_ff_bytes()
        if self._is_renewed():
            forced = self._inner.compute_ff_bytes()
        self._check_inner()
        if not forced:
            return []
        cut = self._cuts.cut(self._tokens, forced)
        if len(cut.whole) > len(cut.settled) and self._ends_after(list(cut.whole)):
            return list(cut.whole)
        return list(cut.settled)

    def _ends_after(self, tokens: list[int]) -> bool:
        accepted = self._inner.try_consume_tokens(tokens)
        ends = accepted == len(tokens) and bool(self._inner.is_stopped())
        if accepted:
            self._inner.rollback(accepted)
        self._check_inner()
        return ends

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete sentence."""
        self._check()
        return bool(self._inner.is_accepting())

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        self._check()
        if self._ended:
            return True
        if not self._inner.is_accepting():
            return False
        if self._inner.is_stopped():
            return True
        row = allocate(1, self._vocabulary.size)[0]
        self.fill(row)
        forbid(row, self._eos)
        return not row.any()

    def _check(self) -> None:
        if self._failure is not None:
            raise MatcherError(self._failure)

    def _is_renewed(self) -> bool:
        """Where the shared lexer broke: put a cursor with one of its own in the same place; whether that was done."""
        if not self._inner.is_error() or "lexer error" not in self._inner.get_error() or not self._renewals:
            return False
        self._renewals -= 1
        self._inner = self._renew()
        self._inner.try_consume_tokens(self._tokens)
        return not self._inner.is_error()

    def _check_inner(self) -> None:
        if self._inner.is_error():
            self._fail(shorten(self._inner.get_error()))

    def _fail(self, reason: str) -> None:
        self._failure = f"The grammar can't be followed any further after {len(self._tokens)} tokens: {reason}."
        raise MatcherError(self._failure)
