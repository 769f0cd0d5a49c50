"""Structural tags: free text in which a trigger begins a part that follows a grammar, as tool calls are written.

All of it becomes one grammar of the engine's, so that tokens may reach over every seam. Called by the compiler.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from branchpoint.constrained.cfg import Alt, Cfg, Lit, Part, Raw, Ref, Rep, Seq, from_regex, prune, renamed
from branchpoint.constrained.charset import ANY, union
from branchpoint.constrained.documents import Documents
from branchpoint.constrained.ebnf import read_ebnf
from branchpoint.constrained.engines.judged import JudgedGrammar
from branchpoint.constrained.engines.llguidance import LlguidanceEngine, LlguidanceGrammar
from branchpoint.constrained.engines.tagged import TagWatch
from branchpoint.constrained.errors import GrammarError, InvalidGrammar, UnsupportedKeyword
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.json_grammar import prepare_json_schema, watch_value
from branchpoint.constrained.lark import write_lark
from branchpoint.constrained.lexemes import cut_lexemes
from branchpoint.constrained.outline import Unfollowable, Until, Value, make_outline
from branchpoint.constrained.prepared import PreparedJudging, PreparedSchema, PreparedTag
from branchpoint.constrained.regex import Choice, Series, literal, parse_regex, write_regex
from branchpoint.constrained.schema import Schema as Root
from branchpoint.constrained.spec import JsonSchema, Narrowing, StructuralTag
from branchpoint.constrained.spots import Spots
from branchpoint.constrained.tag_format import (
    Const,
    FreeText,
    Grammar,
    Many,
    Node,
    OneOf,
    Pattern,
    Row,
    Schema,
    Tag,
    Triggered,
    read_tag,
    wrong,
)
from branchpoint.constrained.work import Work

__all__ = ["compile_prepared_tag", "prepare_structural_tag"]

_NUMBERS = "0123456789.eE+-"
_DIGITS = "-0123456789"
_STARTS = {"object": "{", "array": "[", "string": '"', "number": _DIGITS, "integer": _DIGITS, "boolean": "tf", "null": "n"}
_Made = TypeVar("_Made")
Ends = tuple[str, ...] | None
"""What follows a part: texts of which one comes next; none, where the output ends; None, where it is anything else."""


def prepare_structural_tag(
    constraint: StructuralTag, prefix: str, engine: LlguidanceEngine, documents: Documents
) -> tuple[PreparedTag, LlguidanceGrammar]:
    """A structural tag after the text `prefix`, with the engine's grammar, which takes too much where values are judged.

    Raises GrammarErrors.
    """
    builder = _Builder(constraint, engine, documents)
    part = builder.whole(read_tag(constraint.format))
    cfg = prune(Cfg({**builder.rules, "root": part}, "root"))
    text = write_lark(cut_lexemes(cfg)) + "\n".join(f"{name}: {each}" for each, name in builder.terminals.items())
    grammar = engine.lark(text, prefix, builder.inner, tuple(builder.narrowed))
    judging = _judging(builder, part, prefix) if builder.judged else None
    return PreparedTag(grammar.prepared, cfg, builder.raws, builder.roots, judging), grammar


def _judging(builder: "_Builder", part: Part, prefix: str) -> PreparedJudging:
    try:
        outline = make_outline(part, builder.rules, builder.raws, prefix)
        seams = Spots(outline).explore()
    except Unfollowable as error:
        name, judged = next(iter(builder.judged.items()))
        keyword = min(judged.loose[0][1], default="properties")
        raise UnsupportedKeyword(keyword, builder.places[name], f"it is judged as the value is written, and {error}.") from error
    return PreparedJudging(outline, seams, tuple(builder.judged.items()))


def compile_prepared_tag(prepared: PreparedTag, grammar: LlguidanceGrammar, engine: LlguidanceEngine) -> CompiledGrammar:
    """The engine's grammar, with a judge for each value of which it takes too much."""
    judging = prepared.judging
    if judging is None:
        return grammar
    work = Work()
    watches = {name: watch_value(each, engine, work) for name, each in judging.judged}
    watch = TagWatch(engine.vocabulary, Spots(judging.outline), judging.seams, watches, work)
    return JudgedGrammar(engine.vocabulary, grammar, watch)


@dataclass(slots=True)
class _Builder:
    """`terminals` by what they say; `raws` are what the outline knows of these and of values.

    `roots` are the schemas of values by their names, `judged` those of them that are judged.
    """

    constraint: StructuralTag
    engine: LlguidanceEngine
    documents: Documents
    rules: dict[str, Part] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)
    inner: dict[str, LlguidanceGrammar] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    raws: dict[str, Until | Value] = field(default_factory=dict)
    roots: dict[str, Root] = field(default_factory=dict)
    judged: dict[str, PreparedSchema] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    narrowed: list[Narrowing] = field(default_factory=list)

    def whole(self, node: Node) -> Part:
        return self._closed(node, ())

    def _closed(self, node: Node, ends: Ends) -> Part:
        """A node and, where there are, one of the texts that end it."""
        match node:
            case FreeText(at, excludes):
                if ends is None:
                    raise wrong(at, "free text at the end of the output or of a tag, whose end tells where it stops")
                return self._text(ends, (), excludes)
            case Triggered():
                return self._triggered(node, ends)
            case OneOf(_, parts):
                return Alt(tuple(self._closed(each, ends) for each in parts))
            case Row(_, parts):
                return Seq((*(self._closed(each, None) for each in parts[:-1]), self._closed(parts[-1], ends)))
            case _:
                return Seq((self._plain(node, ends), *self._one_of(ends)))

    def _plain(self, node: Node, ends: Ends) -> Part:
        match node:
            case Const(_, text):
                return Lit(text)
            case Pattern(at, pattern):
                return from_regex(self._told(at, lambda: parse_regex(pattern)))
            case Grammar():
                return self._grammar(node)
            case Schema():
                self._check_end(node, ends)
                return self._schema(node)
            case Tag(_, begin, content):
                return Seq((Lit(begin), self._closed(content, node.ends)))
            case Many(_, body, low, high, separator):
                part = self._closed(body, None)
                if not separator or high == 1:
                    return Rep(part, low, high)
                return Rep(Seq((part, Rep(Seq((Lit(separator), part)), 0, None))), low, 1)
            case _:
                raise AssertionError(f"{node} is closed elsewhere")

    def _one_of(self, ends: Ends) -> tuple[Part, ...]:
        return (Alt(tuple(map(Lit, ends))),) if ends else ()

    def _triggered(self, node: Triggered, ends: Ends) -> Part:
        if ends is None or any(not end for end in ends):
            raise wrong(node.at, "triggered tags at the end of the output, or in a tag whose end tells where they stop")
        if not node.triggers:
            raise wrong(f"{node.at}/triggers", "at least one trigger")
        more = not node.stop_after_first or bool(ends)
        by_trigger: dict[str, list[Part]] = {}
        full: list[Part] = []
        for tag in node.tags:
            trigger = min((each for each in node.triggers if tag.begin.startswith(each)), key=len, default=None)
            if trigger is None:
                raise wrong(f"{tag.at}/begin", f"a beginning that starts with a trigger, got {tag.begin!r}")
            if more:
                self._check_closed(tag)
            closed = self._closed(tag.content, tag.ends)
            by_trigger.setdefault(trigger, []).append(Seq((Lit(tag.begin[len(trigger) :]), closed)))
            full.append(Seq((Lit(tag.begin), closed)))
        stops = (*node.triggers, *ends)
        begun = [Seq((self._until(each, stops, node.excludes), Alt(tuple(rest)))) for each, rest in by_trigger.items()]
        once = Seq((Alt(tuple(begun)), *self._one_of(ends)))
        if node.at_least_one and node.stop_after_first:
            return Seq((Alt(tuple(full)), *self._one_of(ends)))
        text = self._text(ends, node.triggers, node.excludes)
        if node.stop_after_first:
            return Alt((once, text))
        tags = Rep(Alt(tuple(begun)), 0, None)
        return Seq((Alt(tuple(full)), tags, text)) if node.at_least_one else Seq((tags, text))

    def _text(self, ends: tuple[str, ...], triggers: tuple[str, ...], excludes: tuple[str, ...]) -> Part:
        """Text without a trigger, up to and with the first of the ends; without ends, up to the end of the output."""
        if any(not end for end in ends):
            raise InvalidGrammar("Expected an end that isn't empty after free text, else nothing tells where it stops.")
        if ends:
            return Alt(tuple(self._until(end, (*triggers, *ends), excludes) for end in ends))
        stops = (*triggers, *excludes)
        barred = f" & ~/(?s:.)*(?:{_any_of(stops)})(?s:.)*/" if stops else ""
        return self._terminal(f"/(?s:.)*/{barred}", Until(None, triggers, excludes), nullable=True)

    def _until(self, stop: str, stops: tuple[str, ...], excludes: tuple[str, ...]) -> Part:
        """Text up to and with `stop`, in which none of `stops` ends before."""
        barred = f" & ~/(?s:.)*(?:{_any_of(excludes)})(?s:.)*/" if excludes else ""
        expression = f"/(?s:.)*{_any_of((stop,))}/ & ~/(?s:.)*(?:{_any_of(stops)})(?s:.)+/{barred}"
        return self._terminal(expression, Until(stop, stops, excludes), nullable=False)

    def _terminal(self, expression: str, meaning: Until, *, nullable: bool) -> Raw:
        name = self.terminals.setdefault(expression, f"TEXT{len(self.terminals)}")
        self.raws[name] = meaning
        return Raw(name, ANY, nullable)

    def _grammar(self, node: Grammar) -> Part:
        read = self._told(node.at, lambda: read_ebnf(node.text))
        name = f"g{len(self.rules)}n{len(self.inner)}"
        if isinstance(read, str):
            self.inner[name] = self.engine.lark(read)
            return Raw(f"@{name}", ANY, nullable=True)
        self.rules |= renamed(read, name).rules
        return Ref(f"{name}.{read.start}")

    def _schema(self, node: Schema) -> Part:
        if node.schema not in self.schemas:
            name = self.schemas[node.schema] = f"json{len(self.inner)}"
            asked = JsonSchema(node.schema, self.constraint.whitespace, strictness=self.constraint.strictness)
            prepared, grammar = self._told(node.at, lambda: prepare_json_schema(asked, "", self.engine, self.documents))
            self.inner[name] = grammar
            self.narrowed += [replace(each, pointer=node.at + each.pointer) for each in grammar.narrowed]
            self.raws[f"@{name}"] = Value(name, _starts(node))
            self.roots[name] = prepared.root
            if prepared.is_judged:
                self.judged[name] = prepared
                self.places[name] = node.at
        return Raw(f"@{self.schemas[node.schema]}", union((ord(char), ord(char)) for char in _starts(node)))

    def _check_closed(self, tag: Tag) -> None:
        """Where text follows, it has to be told from the tag."""
        if any(not end for end in tag.ends) and not (isinstance(tag.content, Schema) and _ends_itself(tag.content)):
            raise wrong(f"{tag.at}/end", "an end that isn't empty, or a JSON object as content, which ends by itself")

    def _check_end(self, node: Schema, ends: Ends) -> None:
        """A number mustn't run into what follows it."""
        if not _ends_itself(node) and (ends is None or any(end[:1] and end[0] in _NUMBERS for end in ends)):
            raise wrong(node.at, "a schema whose type is no number, or an end right behind it that no number could run into")

    def _told(self, at: str, make: Callable[[], _Made]) -> _Made:
        """What `make` makes; what it refuses is told with the place in the structural tag."""
        try:
            return make()
        except UnsupportedKeyword as error:
            raise UnsupportedKeyword(error.keyword, at + error.pointer, str(error)) from error
        except GrammarError as error:
            raise type(error)(f"{error} (at {at} of the structural tag)") from error


def _kinds(node: Schema) -> frozenset[str]:
    """The types that a schema names; none where it may be any, as where its draft may pass over what stands beside a `$ref`."""
    schema = json.loads(node.schema)
    if not isinstance(schema, dict) or ("$ref" in schema and "$schema" in schema):
        return frozenset()
    kinds = schema.get("type")
    return frozenset(kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str))


def _starts(node: Schema) -> str:
    """The characters that a value may begin with."""
    return "".join(_STARTS[kind] for kind in _kinds(node) or _STARTS)


def _ends_itself(node: Schema) -> bool:
    """Whether what follows a value can't be read as more of it: its `type` says that it is no number."""
    kinds = _kinds(node)
    return bool(kinds) and kinds.isdisjoint({"number", "integer"})


def _any_of(texts: Sequence[str]) -> str:
    return write_regex(Choice(tuple(Series(literal(text)) for text in texts)))
