"""A JSON-schema constraint from text to compiled grammar: normalise, relax, prune, compile; leave to the judge what is left.

Called by the compiler. What the engine refuses of the relaxed schema is left out too, and it is tried again. What leads up
to the grammar may be done in another process (`sandbox.py`).
"""

import re
from collections.abc import Iterator
from typing import Any

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.documents import Documents
from branchpoint.constrained.engines.judged import JudgedGrammar
from branchpoint.constrained.engines.llguidance import LlguidanceEngine, LlguidanceGrammar
from branchpoint.constrained.engines.watch import ValueWatch
from branchpoint.constrained.errors import EmptyLanguage, GrammarError, UnsupportedKeyword
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.inhabited import prune_uninhabited
from branchpoint.constrained.json_options import has_open_keys, json_options
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.narrowing import leave_out
from branchpoint.constrained.normalise import normalise_schema
from branchpoint.constrained.patterns import engine_patterns
from branchpoint.constrained.prepared import PreparedSchema
from branchpoint.constrained.refusals import explain_refusal
from branchpoint.constrained.relax import relax_schema
from branchpoint.constrained.rewriting import Rewriter
from branchpoint.constrained.schema import Schema, SchemaMap, parse_schema
from branchpoint.constrained.simplify import simplify_schema
from branchpoint.constrained.spec import JsonSchema, Narrowing
from branchpoint.constrained.unordered import unordered_schema
from branchpoint.constrained.work import Work

__all__ = ["compile_prepared", "prepare_json_schema", "watch_value"]

_MAX_TRIES = 6
_MOST_LEFT_OUT = 100
_DROPS = (
    (re.compile(r"min/maxProperties only supported"), "minProperties"),
    (re.compile(r"patternProperty regexes .* are not disjoint"), "patternProperties"),
    (re.compile(r"circular references with sibling keys"), "siblings"),
    (re.compile(r"integer range|number range"), "minimum maximum exclusiveMinimum exclusiveMaximum"),
)
_EMPTY = re.compile(r"Unsatisfiable schema.* processing \S*#/\$defs/([^\s/]+)$")


def compile_prepared(
    prepared: PreparedSchema, grammar: LlguidanceGrammar, prefix: str, engine: LlguidanceEngine
) -> CompiledGrammar:
    """The engine's grammar, with a judge where it takes too much."""
    if not prepared.is_judged:
        return grammar
    return JudgedGrammar(engine.vocabulary, grammar, watch_value(prepared, engine, Work(), len(prefix.encode())))


def watch_value(prepared: PreparedSchema, engine: LlguidanceEngine, work: Work, prefix: int = 0) -> ValueWatch:
    """The judge of a value and what asks it, `prefix` bytes before the value; what is spent counts on `work`."""
    loose = {id(place): words for place, words in prepared.loose}
    judge = Judge(prepared.root, loose, {id(place): names for place, names in prepared.free}, work)
    return ValueWatch(engine.vocabulary, engine.shapes(), engine.effects(), judge, prefix)


def prepare_json_schema(
    constraint: JsonSchema, prefix: str, engine: LlguidanceEngine, documents: Documents
) -> tuple[PreparedSchema, LlguidanceGrammar]:
    """The schema as the engine takes it, with the engine's grammar, which takes too much where something is loose or free.

    What can't be held is refused, or, where the constraint may be stricter, left out.
    """
    schema, left_out = parse_schema(constraint.schema), list[Narrowing]()
    refused: UnsupportedKeyword | None = None
    while True:
        try:
            return _prepare(constraint, schema, prefix, engine, documents, left_out)
        except EmptyLanguage as error:
            raise refused or error from error
        except UnsupportedKeyword as error:
            narrower = leave_out(schema, error.pointer) if constraint.strictness == "stricter" else None
            if narrower is None or len(left_out) == _MOST_LEFT_OUT:
                raise
            refused = refused or error
            schema, where = narrower
            left_out.append(Narrowing(error.pointer, error.keyword, f"nothing is written that the schema at {where} is about"))


def _prepare(
    constraint: JsonSchema,
    parsed: Schema,
    prefix: str,
    engine: LlguidanceEngine,
    documents: Documents,
    left_out: list[Narrowing],
) -> tuple[PreparedSchema, LlguidanceGrammar]:
    root = normalise_schema(parsed, documents)
    rewriter = Rewriter(Definitions(root.get("$defs", {}) if isinstance(root, dict) else {}))
    dropped, empty = frozenset[str](), frozenset[str]()
    for attempt in range(_MAX_TRIES):
        relaxed = relax_schema(root, rewriter, dropped, any_order=constraint.order == "any")
        pruned = prune_uninhabited(_without(simplify_schema(relaxed.schema), empty))
        free = unordered_schema(pruned)
        options = json_options(free.schema, constraint.whitespace, parsed, open_keys=has_open_keys(pruned))
        narrowed = (*left_out, *options.narrowed, *(free.narrowed if constraint.order == "any" else ()))
        try:
            grammar = engine.json_schema(options.text, options.engine, prefix, narrowed)
        except GrammarError as error:
            before = dropped, empty
            dropped |= frozenset(_refused(error, root, engine))
            empty |= frozenset(_EMPTY.findall(str(error)))
            if (dropped, empty) == before or attempt == _MAX_TRIES - 1:
                raise explain_refusal(error, parsed) from error
            continue
        break
    if (
        relaxed.loose
        and isinstance(root, dict)
        and rewriter.is_empty({key: each for key, each in root.items() if key != "$defs"})
    ):
        raise EmptyLanguage("Nothing satisfies this schema: its parts contradict one another.")
    places = _places(root)
    loose = tuple((places[number], words) for number, words in relaxed.loose.items() if number in places)
    names = tuple((places[number], each) for number, each in free.names.items())
    return PreparedSchema(grammar.prepared, root, loose, names), grammar


def _without(schema: Schema, empty: frozenset[str]) -> Schema:
    """The schema with definitions that nothing satisfies refused wherever they are referred to."""
    if not empty or isinstance(schema, bool):
        return schema
    return {**schema, "$defs": {name: name not in empty and body for name, body in schema["$defs"].items()}}


def _places(root: Schema) -> dict[int, SchemaMap]:
    """The dicts of a schema by id."""
    found: dict[int, SchemaMap] = {}
    waiting: list[Any] = [root]
    while waiting:
        at = waiting.pop()
        if isinstance(at, dict):
            found[id(at)] = at
            waiting += at.values()
        elif isinstance(at, list):
            waiting += at
    return found


def _refused(error: GrammarError, root: Schema, engine: LlguidanceEngine) -> Iterator[str]:
    """What to leave out after this error."""
    message = str(error)
    for seen, words in _DROPS:
        if seen.search(message):
            yield from words.split()
    if "Unable to determine if regex is empty" in message:
        yield from _patterns(root)
    elif "regex" in message:
        yield from (pattern for pattern in _patterns(root) if not _readable(pattern, engine))


def _patterns(at: Any) -> Iterator[str]:
    if isinstance(at, dict):
        if isinstance(at.get("pattern"), str):
            yield at["pattern"]
        if isinstance(at.get("patternProperties"), dict):
            yield from at["patternProperties"]
        for key, value in at.items():
            if key not in ("const", "enum"):
                yield from _patterns(value)
    elif isinstance(at, list):
        for value in at:
            yield from _patterns(value)


def _readable(pattern: str, engine: LlguidanceEngine) -> bool:
    return all(map(engine.reads, engine_patterns(pattern) or ()))
