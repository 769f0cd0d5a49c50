"""The library's lexer, which all cursors of one grammar share, breaks for good once enough of it is explored."""

import json
import random

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import Matcher
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary

WIDE = {"type": "string", "minLength": 1, "maxLength": 5000, "pattern": "^(?:\\S+\\s+){0,99}\\S+$"}


def breaks(matcher: Matcher, vocabulary: Vocabulary, source: random.Random) -> bool:
    """Whether a cursor breaks on a few tokens drawn at random."""
    row = allocate(1, vocabulary.size)[0]
    matcher.advance(vocabulary.encode(b'{"a":"'))
    try:
        for _ in range(12):
            matcher.fill(row)
            matcher.advance((source.choice(iterate_allowed(row).tolist()),))
    except MatcherError:
        return True
    return False


def test_an_output_that_breaks_the_lexer_breaks_no_other(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": WIDE, "b": {"type": "string"}}, "additionalProperties": False}
    grammar = compiler.compile(JsonSchema(json.dumps(schema))).result(60)
    row, begun = allocate(1, vocabulary.size)[0], grammar.matcher()
    start = vocabulary.encode(b'{"b":"x')
    assert begun.advance(start) == len(start)
    source = random.Random(0)
    assert any(breaks(grammar.matcher(), vocabulary, source) for _ in range(40))
    begun.fill(row)
    end = vocabulary.encode(b'y"}')
    assert begun.advance(end) == len(end) and begun.can_end
    begun.rollback(len(end))
    assert begun.advance(end) == len(end)
    grammar.matcher().fill(row)
    assert row.any()
