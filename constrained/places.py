"""Where the outputs of a constraint start, for the search for ways to their ends: what is known of it besides its grammar."""

from branchpoint.constrained.completion import Standing
from branchpoint.constrained.documents import Documents
from branchpoint.constrained.guide import json_place
from branchpoint.constrained.normalise import normalise_schema
from branchpoint.constrained.prepared import Prepared, PreparedSchema
from branchpoint.constrained.regex_guide import regex_place
from branchpoint.constrained.schema import parse_schema
from branchpoint.constrained.spec import Constraint, JsonSchema, Regex, StructuralTag

__all__ = ["starting_point"]


def starting_point(constraint: Constraint | None, prefix: int, prepared: Prepared | None, documents: Documents) -> Standing:
    """Before the first token of an output that begins with `prefix` bytes and then follows a constraint, which compiles.

    `prepared` is what a trial of it came to, if there was one.
    """
    match constraint:
        case JsonSchema(schema=schema):
            known = prepared.root if isinstance(prepared, PreparedSchema) else None
            root = known if known is not None else normalise_schema(parse_schema(schema), documents)
            return Standing(is_json=True, place=json_place(root, prefix))
        case Regex(pattern=pattern):
            return Standing(is_json=False, place=regex_place(pattern, prefix))
        case _:
            return Standing(is_json=isinstance(constraint, StructuralTag))
