"""What jsonschema-rs says of complete values and of names, each schema and pattern made ready once.

Used by `judge.py`.
"""

from typing import Any

import jsonschema_rs

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.errors import InvalidSchema, shorten
from branchpoint.constrained.partial import Node
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Validators"]


class Validators:
    """For the subschemas of one schema, whose definitions these are; only remembers validators."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._made: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}

    def is_valid(self, schema: Schema, node: Node) -> bool:
        """What the validator says of a complete value."""
        if isinstance(schema, bool):
            return schema
        known = node.verdicts.get(id(schema))
        if known is None:
            known = node.verdicts[id(schema)] = bool(self.make(schema).is_valid(node.value))
        return known

    def make(self, schema: SchemaMap) -> Any:
        """The validator of a subschema. Raises InvalidSchema where there can be none."""
        validator = self._made.get(id(schema))
        if validator is None:
            whole = self._definitions.whole({key: value for key, value in schema.items() if key != "$defs"})
            try:
                validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
            except ValueError as error:
                raise InvalidSchema(f"Expected a schema that values can be judged by: {shorten(error)}") from error
            self._made[id(schema)] = validator
        return validator

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern finds something in a name."""
        if pattern not in self._patterns:
            self._patterns[pattern] = jsonschema_rs.Draft202012Validator({"pattern": pattern})
        return bool(self._patterns[pattern].is_valid(name))
