"""Where the outputs of a constraint start, for the search for ways to their ends: what is known of it besides its grammar."""

from branchpoint.constrained.cfg import to_regex
from branchpoint.constrained.completion import Standing
from branchpoint.constrained.ebnf import read_ebnf
from branchpoint.constrained.guide import json_place
from branchpoint.constrained.prepared import Prepared, PreparedSchema
from branchpoint.constrained.regex import parse_regex
from branchpoint.constrained.regex_guide import regex_place
from branchpoint.constrained.spec import Constraint, Ebnf, Regex, StructuralTag

__all__ = ["starting_point"]


def starting_point(constraint: Constraint | None, prefix: int, prepared: Prepared | None) -> Standing:
    """Before the first token of an output that begins with `prefix` bytes and then follows a constraint, made of `prepared`."""
    if isinstance(prepared, PreparedSchema):
        return Standing(is_json=True, place=json_place(prepared.root, prefix))
    match constraint:
        case Regex(pattern):
            return Standing(is_json=False, place=regex_place(parse_regex(pattern), prefix))
        case Ebnf(text):
            read = read_ebnf(text)
            node = None if isinstance(read, str) else to_regex(read)
            return Standing(is_json=False, place=None if node is None else regex_place(node, prefix))
        case _:
            return Standing(is_json=isinstance(constraint, StructuralTag))
