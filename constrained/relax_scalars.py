"""The part of `relax.py` that is about numbers and strings: bounds, multiples, patterns, formats."""

import math
from decimal import Decimal

from branchpoint.constrained.formats import FORMAT_LENGTHS, FORMAT_PATTERNS, LOOSE_FORMATS
from branchpoint.constrained.patterns import engine_patterns
from branchpoint.constrained.relax_objects import Context, Relaxing
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["ScalarRules", "is_exact"]

_MAX_EXACT = 1 << 53  # the largest number up to which the engine's arithmetic is exact
_MAX_EXPONENT = 22  # and the largest power of ten
_MAX_MULTIPLE = 1000
_BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


class ScalarRules:
    """What a schema says about numbers and strings, for one walk."""

    def __init__(self, walk: Relaxing) -> None:
        self._walk = walk

    def apply(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        """Everything that a schema says about numbers and strings."""
        self._numbers(schema, result, context)
        self._strings(schema, result, extra, context)

    def _numbers(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        for keyword in _BOUNDS:
            if keyword in schema and keyword not in self._walk.dropped and is_exact(schema[keyword]):
                result[keyword] = schema[keyword]
            elif keyword in schema:
                self._walk.give_up(context, keyword)
        if "multipleOf" in schema:
            if _numerator(schema["multipleOf"]) <= _MAX_MULTIPLE and "multipleOf" not in self._walk.dropped:
                result["multipleOf"] = schema["multipleOf"]
            else:
                self._walk.give_up(context, "multipleOf")

    def _strings(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        patterns: list[str] = []
        if "pattern" in schema:
            written = None if schema["pattern"] in self._walk.dropped else engine_patterns(schema["pattern"])
            if written is None:
                self._walk.give_up(context, "pattern")
            patterns += written or ()
        if schema.get("format") in FORMAT_PATTERNS:
            self._format(schema["format"], patterns, result, context)
        elif "format" in schema:
            result["format"] = schema["format"]
        if patterns:
            result["pattern"] = patterns[0]
            extra += [{"pattern": each} for each in patterns[1:]]

    def _format(self, name: str, patterns: list[str], result: SchemaMap, context: Context) -> None:
        patterns += engine_patterns(FORMAT_PATTERNS[name]) or ()
        if name in LOOSE_FORMATS:
            self._walk.give_up(context, "format")
        if name in FORMAT_LENGTHS:
            result["maxLength"] = min(FORMAT_LENGTHS[name], result.get("maxLength", FORMAT_LENGTHS[name]))


def is_exact(value: object) -> bool:
    """Whether the engine holds every number in `value` exactly: what has more digits it may read as a neighbour."""
    if isinstance(value, float):
        return math.isfinite(value) and _has_few_digits(value)
    if isinstance(value, int):
        return abs(value) <= _MAX_EXACT
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_exact, nested))


def _has_few_digits(value: float) -> bool:
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    return int("".join(map(str, digits))) <= _MAX_EXACT and abs(int(exponent)) <= _MAX_EXPONENT


def _numerator(value: float) -> float:
    """The size of an automaton for multiples: the value as an integer over a power of ten, without factors of ten."""
    if isinstance(value, int):
        while value % 10 == 0:
            value //= 10
        return value
    digits = f"{value:.12f}".rstrip("0").replace(".", "")
    return int(digits) if math.isclose(float(f"{value:.12f}"), value) and int(digits) else math.inf
