"""From a normalised schema to one that the grammar engine can follow and that accepts at least as much; and where it is more.

What can be rewritten exactly is. The rest is left out here, and its places are named: `judge.py` holds the output to them.
A place whose parts always apply is loose by itself; below `anyOf`, conditions and the like the outermost place answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from branchpoint.constrained.definitions import Definitions, mentions_reference, names_in_order
from branchpoint.constrained.partial import kind_of
from branchpoint.constrained.relax_objects import Context, ObjectRules
from branchpoint.constrained.relax_scalars import ScalarRules, is_exact
from branchpoint.constrained.rewriting import Rewriter
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.unordered import FREE, is_free, mark_free

__all__ = ["SIBLINGS", "Relaxed", "relax_schema"]

_MAX_NAMES = 200
_COPIED = ["type", "minLength", "maxLength", "minItems", "maxItems", "required"]
SIBLINGS = "siblings"  # dropped where the engine can't merge what stands beside a reference that recurs
_REWRITTEN = {"oneOf", "not", "if", "dependentRequired", "dependentSchemas"}
_DEEPEST = 4
_MERGED = {
    "$ref",
    "properties",
    "patternProperties",
    "additionalProperties",
    "allOf",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
}
_SOMETIMES = {"anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"}
_FINITE = {"boolean": 2, "null": 1}


@dataclass(frozen=True, slots=True)
class Relaxed:
    """`schema` for the engine; `loose`: by the ids of the normalised schema's dicts, the words that it is looser than."""

    schema: Schema
    loose: Mapping[int, frozenset[str]]


def relax_schema(root: Schema, rewriter: Rewriter, dropped: frozenset[str] = frozenset(), *, any_order: bool = False) -> Relaxed:
    """The schema for the engine. `dropped` names keywords (and patterns) that the engine refused before.

    `rewriter` knows the definitions of `root`. With `any_order`, objects whose keys `unordered.py` is to set free are marked.
    """
    if isinstance(root, bool):
        return Relaxed(root, {})
    return _Relaxer(root, rewriter, dropped).run(any_order=any_order)


class _Relaxer:
    """One walk over the schema and its definitions, and a fixed point over the references below conditions."""

    def __init__(self, root: SchemaMap, rewriter: Rewriter, dropped: frozenset[str]) -> None:
        self.root = root
        self.definitions = rewriter.definitions
        self.rewriter = rewriter
        self.dropped = dropped
        self.loose: dict[int, set[str]] = {}
        self.depends: dict[int, set[str]] = {}
        self._objects = ObjectRules(self)
        self._scalars = ScalarRules(self)

    def run(self, *, any_order: bool) -> Relaxed:
        schema = self.relax(self.root, Context(id(self.root), conditional=False, any_order=any_order))
        defined = {name: self.place(body) for name, body in self.root.get("$defs", {}).items()}
        if any_order:
            defined |= {f"{name}{FREE}": self.place(body, any_order=True) for name, body in self.root.get("$defs", {}).items()}
        if isinstance(schema, dict) and defined:
            schema = Definitions(defined).whole(schema) if any_order else {**schema, "$defs": defined}
        self._settle()
        return Relaxed(schema, {owner: frozenset(words) for owner, words in self.loose.items()})

    def _settle(self) -> None:
        """Who refers below a condition to something loose answers for it."""
        before = -1
        while before != len(self.loose):
            before = len(self.loose)
            reached: dict[str, bool] = {}
            for owner, names in self.depends.items():
                if owner not in self.loose and any(self._reaches(name, reached) for name in names):
                    self.loose.setdefault(owner, set()).update(_SOMETIMES)

    def _reaches(self, name: str, reached: dict[str, bool]) -> bool:
        """Whether something loose lies in a definition or behind it."""
        if name not in reached:
            reached[name] = False
            reached[name] = self._holds_loose(self.definitions[name], reached)
        return reached[name]

    def _holds_loose(self, at: object, reached: dict[str, bool]) -> bool:
        if isinstance(at, list):
            return any(self._holds_loose(each, reached) for each in at)
        if not isinstance(at, dict):
            return False
        reference = at.get("$ref")
        if id(at) in self.loose or (isinstance(reference, str) and self._reaches(reference, reached)):
            return True
        return any(self._holds_loose(value, reached) for key, value in at.items() if key not in ("const", "enum"))

    def give_up(self, context: Context, keyword: str) -> None:
        """Leave a keyword to the judge: where it applies only sometimes, with all words that it may stand under."""
        words = self.loose.setdefault(context.owner, set())
        words.update(_SOMETIMES if context.conditional else (keyword,))

    def place(self, schema: Schema, *, any_order: bool = False) -> Schema:
        """Relax a subschema that answers for itself; what is judged and holds nothing is refused from the start."""
        relaxed = self.relax(schema, Context(id(schema), conditional=False, any_order=any_order))
        if isinstance(schema, dict) and id(schema) in self.loose and self.rewriter.is_plainly_empty(schema):
            return False
        return relaxed

    def part(self, schema: Schema, context: Context) -> Schema:
        """Relax a subschema of a value's part: it answers for itself, unless its parent doesn't always apply."""
        return self.relax(schema, context) if context.conditional else self.place(schema, any_order=context.any_order)

    def branch(self, schema: Schema, context: Context) -> Schema:
        """Relax a subschema that applies sometimes."""
        return self.relax(schema, Context(context.owner, conditional=True))

    def relax(self, schema: Schema, context: Context) -> Schema:
        """The schema for the engine; what it leaves out is given up in the context's name."""
        if isinstance(schema, bool):
            return schema
        result: SchemaMap = {key: schema[key] for key in _COPIED if key in schema}
        extra: list[Schema] = []
        if "$ref" in schema:
            self._refer(schema, result, context)
            if SIBLINGS in self.dropped and schema.keys() - {"$ref", "$defs"}:
                for keyword in schema:
                    self.give_up(context, keyword)
                return {"$ref": schema["$ref"]}
        self._values(schema, result, extra, context)
        self._scalars.apply(schema, result, extra, context)
        self._arrays(schema, result, context)
        self._objects.apply(schema, result, extra, context)
        self._logic(schema, result, extra, context)
        if context.any_order and not extra and is_free(result):
            mark_free(result, id(schema))
        if extra:
            result["allOf"] = [*result.get("allOf", ()), *extra]
            self._order(schema, result)
        return False if False in result.get("allOf", ()) else result

    def _refer(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        alone = schema.keys() <= {"$ref", "$defs"}
        result["$ref"] = schema["$ref"] + (FREE if context.any_order and alone else "")
        if context.conditional:
            self.depends.setdefault(context.owner, set()).add(schema["$ref"])

    def _values(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        for keyword in ("const", "enum"):
            if keyword not in schema:
                continue
            listed = [schema["const"]] if keyword == "const" else schema["enum"]
            exact = [value for value in listed if is_exact(value)]
            if len(exact) == len(listed):
                result[keyword] = schema[keyword]
                continue
            self.give_up(context, keyword)
            others: list[Schema] = [{"type": kind_of(value)} for value in listed if not is_exact(value)]
            self._choose([*([{"enum": exact}] if exact else []), *others], result, extra)

    def _arrays(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        if "prefixItems" in schema:
            result["prefixItems"] = [self.part(each, context) for each in schema["prefixItems"]]
        if "items" in schema:
            result["items"] = self.part(schema["items"], context)
        if "contains" in schema and (schema.get("minContains", 1) > 0 or "maxContains" in schema):
            self.give_up(context, "contains")
            result["minItems"] = max(schema.get("minItems", 0), schema.get("minContains", 1))
        if schema.get("uniqueItems") and schema.get("maxItems", 2) > 1:
            self.give_up(context, "uniqueItems")
            self._bound_unique(schema, result)
        if "unevaluatedItems" in schema and schema["unevaluatedItems"] is not True:
            beside = {"$ref", "allOf", "anyOf", "oneOf", "if", "contains", "items"} & schema.keys()
            if not beside:
                result["items"] = self.branch(schema["unevaluatedItems"], context)
            elif "items" not in schema:
                self.give_up(context, "unevaluatedItems")

    def _bound_unique(self, schema: SchemaMap, result: SchemaMap) -> None:
        """No more items than there are values, so that the list never asks for one more."""
        items = schema.get("items", True)
        reference = items.get("$ref") if isinstance(items, dict) and len(items) == 1 else None
        if isinstance(reference, str):
            items = self.definitions[reference]
        if not isinstance(items, dict) or "prefixItems" in schema:
            return
        count = len(items["enum"]) if "enum" in items else 1 if "const" in items else _FINITE.get(str(items.get("type")))
        if count is not None:
            result["maxItems"] = min(count, result.get("maxItems", count))

    def _logic(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        if "allOf" in schema:
            held = Context(context.owner, context.conditional)  # what the engine merges comes in declared order
            extra += [self.part(each, held) for each in self._joinable(schema, context)]
        if "anyOf" in schema:
            self._choose(self._branches("anyOf", schema, result, context), result, extra)
        if "oneOf" in schema:
            self._one_of(schema, result, extra, context)
        if "not" in schema:
            self._exactly({"not": schema["not"]}, "not", extra, context)
        if "if" in schema and {"then", "else"} & schema.keys():
            if SIBLINGS in self.dropped:
                self.give_up(context, "if")
            else:
                self._condition(schema, extra, context)

    def _order(self, schema: SchemaMap, result: SchemaMap) -> None:
        """Name the properties in the order in which they are written, which rewriting doesn't keep."""
        if _REWRITTEN & schema.keys() and "additionalProperties" not in result:
            names = list(names_in_order(schema, self.definitions))
            if names and len(names) <= _MAX_NAMES:
                known = result.get("properties", {})
                result["properties"] = {**known, **{name: True for name in names if name not in known}}

    def _joinable(self, schema: SchemaMap, context: Context) -> list[Schema]:
        """Of parts that all apply, those that the engine can merge: where references recur, only one that has some, and none that
        says something of a property which the schema itself has.
        """
        parts: list[Schema] = schema["allOf"]
        if SIBLINGS not in self.dropped:
            return parts
        own = schema.get("properties", {}).keys()
        left_out = [each for each in parts if mentions_reference(each)][1:]
        left_out += [each for each in parts if isinstance(each, dict) and own & each.get("properties", {}).keys()]
        if left_out:
            self.give_up(context, "allOf")
        return [each for each in parts if not any(each is other for other in left_out)]

    def _choose(self, branches: list[Schema], result: SchemaMap, extra: list[Schema]) -> None:
        if "anyOf" in result:
            extra.append({"anyOf": branches})
        else:
            result["anyOf"] = branches

    def _one_of(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        branches = schema["oneOf"]
        overlaps = self.rewriter.disjoint(branches)
        if overlaps:
            exact = self.rewriter.exact({"oneOf": branches})
            if exact is not None:
                extra.append(self.branch(exact, context))
                return
            self.give_up(context, "oneOf")
        self._choose(self._branches("oneOf", schema, result, context), result, extra)

    def _branches(self, keyword: str, schema: SchemaMap, result: SchemaMap, context: Context) -> list[Schema]:
        """The branches of a choice. Where keys may come in any order, which branch they keep to is the judge's to see.

        What the engine would have to merge with them keeps them in declared order.
        """
        any_order = context.any_order and not _MERGED & schema.keys() and any(map(self._has_keys, schema[keyword]))
        if any_order:
            self.give_up(context, keyword)
            if result.pop("required", None):
                self.give_up(context, "required")
        return [self.relax(each, Context(context.owner, conditional=True, any_order=any_order)) for each in schema[keyword]]

    def _has_keys(self, schema: Schema, depth: int = 0) -> bool:
        """Whether a schema declares keys that may come in more than one order."""
        if isinstance(schema, bool) or depth > _DEEPEST:
            return False
        if "$ref" in schema and self._has_keys(self.definitions[schema["$ref"]], depth + 1):
            return True
        return len(schema.get("properties", ())) > 1 or any(
            self._has_keys(each, depth + 1) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        )

    def _exactly(self, schema: SchemaMap, keyword: str, extra: list[Schema], context: Context) -> None:
        exact = self.rewriter.exact(schema)
        if exact is None:
            self.give_up(context, keyword)
        elif exact is not True:
            extra.append(self.branch(exact, context))

    def _condition(self, schema: SchemaMap, extra: list[Schema], context: Context) -> None:
        otherwise = self.rewriter.exact({"not": schema["if"]})
        if otherwise is None:
            self.give_up(context, "if")
            otherwise = True
        holds: Schema = {"allOf": [schema["if"], schema.get("then", True)]}
        fails: Schema = {"allOf": [otherwise, schema.get("else", True)]}
        extra.append({"anyOf": [self.branch(holds, context), self.branch(fails, context)]})
