"""Makes one constraint into a grammar, in the thread that asks, with the engines of one vocabulary.

Used by the compiler; what it was made from may come from another process, and may be handed to one (`sandbox.py`, `trial.py`).
"""

import contextlib

from branchpoint.constrained.automaton import count_states
from branchpoint.constrained.documents import Documents
from branchpoint.constrained.ebnf import normalise_ebnf
from branchpoint.constrained.engines.choice import ChoiceGrammar
from branchpoint.constrained.engines.llguidance import LlguidanceEngine, LlguidanceGrammar
from branchpoint.constrained.engines.outlines import OutlinesEngine
from branchpoint.constrained.errors import GrammarError, InvalidGrammar, InvalidRegex, LimitExceeded, UnsupportedKeyword, shorten
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.json_grammar import compile_prepared, prepare_json_schema
from branchpoint.constrained.lazy import Lazy
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.prepared import Prepared, PreparedGrammar, PreparedSchema, PreparedTag
from branchpoint.constrained.regex import Series, literal, parse_regex, write_regex
from branchpoint.constrained.sandbox import RiskyConstraint
from branchpoint.constrained.spec import Choice, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.constrained.tags import compile_prepared_tag, prepare_structural_tag
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["GrammarMaker"]


class GrammarMaker:
    """For one vocabulary; thread-safe. `engine()` is made at its first call, which takes a tenth of a second."""

    def __init__(self, vocabulary: Vocabulary, limits: CompilerLimits, documents: Documents) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._documents = documents
        self.engine = Lazy(lambda: LlguidanceEngine(vocabulary))
        self._outlines = Lazy(lambda: OutlinesEngine(vocabulary))

    def make(
        self, constraint: RiskyConstraint, prefix: str, prepared: Prepared | None = None
    ) -> tuple[CompiledGrammar, Prepared | None]:
        """The grammar after the text `prefix`, and what it was made from, if that may be kept. Raises GrammarErrors."""
        match constraint:
            case JsonSchema():
                return self._json_schema(constraint, prefix, prepared)
            case StructuralTag():
                return self._structural_tag(constraint, prefix, prepared)
        if isinstance(prepared, PreparedGrammar):
            return self.engine().prepared(prepared), prepared
        grammar = self._regex(constraint, prefix) if isinstance(constraint, Regex) else self._ebnf(constraint, prefix)
        return grammar, grammar.prepared if isinstance(grammar, LlguidanceGrammar) else None

    def choice(self, constraint: Choice, prefix: bytes) -> CompiledGrammar:
        """One of some options after `prefix`. Raises LimitExceeded, InvalidGrammar."""
        options = constraint.options
        if len(options) > self._limits.options:
            raise LimitExceeded(f"A choice may have {self._limits.options:,} options, got {len(options):,}.")
        try:
            encoded = [prefix + option.encode() for option in options]
        except UnicodeEncodeError as error:
            raise InvalidGrammar(f"Expected options that are Unicode text, got a lone surrogate: {shorten(error)}") from error
        if sum(map(len, encoded)) > self._limits.option_bytes:
            raise LimitExceeded(f"The options may have {self._limits.option_bytes:,} bytes in all (with the healed prefix).")
        return ChoiceGrammar(self._vocabulary, encoded)

    def _json_schema(self, constraint: JsonSchema, prefix: str, known: Prepared | None) -> tuple[CompiledGrammar, Prepared]:
        if constraint.engine == "outlines":
            raise UnsupportedKeyword("engine", "", "outlines-core drops schema keywords in silence; leave the engine to us.")
        engine = self.engine()
        if isinstance(known, PreparedSchema):
            prepared, grammar = known, engine.prepared(known.grammar)
        else:
            prepared, grammar = prepare_json_schema(constraint, prefix, engine, self._documents)
        return compile_prepared(prepared, grammar, prefix, engine), prepared

    def _structural_tag(self, constraint: StructuralTag, prefix: str, known: Prepared | None) -> tuple[CompiledGrammar, Prepared]:
        engine = self.engine()
        if isinstance(known, PreparedTag):
            prepared, grammar = known, engine.prepared(known.grammar)
        else:
            prepared, grammar = prepare_structural_tag(constraint, prefix, engine, self._documents)
        return compile_prepared_tag(prepared, grammar, engine), prepared

    def _ebnf(self, constraint: Ebnf, prefix: str) -> CompiledGrammar:
        try:
            return self.engine().lark(normalise_ebnf(constraint.grammar), prefix)
        except GrammarError as error:
            raise error if type(error) is not GrammarError else InvalidGrammar(f"Expected a grammar: {error}") from error

    def _regex(self, constraint: Regex, prefix: str) -> CompiledGrammar:
        node = parse_regex(constraint.pattern)
        if prefix:
            node = Series((*literal(prefix), node))
        pattern = write_regex(node)
        if constraint.engine == "outlines" and count_states(node, self._limits.index_states) is not None:
            with contextlib.suppress(InvalidRegex):  # what the index can't hold, the other engine does
                return self._outlines().regex(pattern)
        try:
            return self.engine().regex(pattern)
        except GrammarError as error:
            raise error if type(error) is not GrammarError else InvalidRegex(f"Expected a pattern: {error}") from error
