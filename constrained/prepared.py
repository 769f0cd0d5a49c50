"""Constraints made ready for the engine: what a trial hands back, so that only the engine's own part is done twice.

`json_grammar.py` and `engines/llguidance.py` make them; processes hand them to one another (`sandbox.py`).
"""

from dataclasses import dataclass

from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Prepared", "PreparedGrammar", "PreparedSchema"]


@dataclass(frozen=True, slots=True)
class PreparedGrammar:
    """A grammar as the library's JSON, the healed text in front and all."""

    text: str
    narrowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """The engine's grammar of a schema, and what its judge is made of.

    `root` is the normalised schema; `loose` and `free` hold dicts of it, see `Judge`, which there go by their ids.
    """

    grammar: PreparedGrammar
    root: Schema
    loose: tuple[tuple[SchemaMap, frozenset[str]], ...]
    free: tuple[tuple[SchemaMap, frozenset[str] | None], ...]


Prepared = PreparedSchema | PreparedGrammar
