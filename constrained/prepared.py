"""Constraints made ready for the engine: what a trial hands back, so that only the engine's own part is done twice.

`json_grammar.py` and `engines/llguidance.py` make them; processes hand them to one another (`sandbox.py`).
"""

from dataclasses import dataclass

from branchpoint.constrained.outline import Outline
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.spots import Seams

__all__ = ["Prepared", "PreparedGrammar", "PreparedSchema", "PreparedTag"]


@dataclass(frozen=True, slots=True)
class PreparedGrammar:
    """A grammar as the library's JSON, the healed text in front and all."""

    text: str
    narrowed: tuple[Narrowing, ...]


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """The engine's grammar of a schema, and what its judge is made of.

    `root` is the normalised schema; `loose` and `free` hold dicts of it, see `Judge`, which there go by their ids.
    """

    grammar: PreparedGrammar
    root: Schema
    loose: tuple[tuple[SchemaMap, frozenset[str]], ...]
    free: tuple[tuple[SchemaMap, frozenset[str] | None], ...]

    @property
    def is_judged(self) -> bool:
        """Whether the engine's grammar takes more than the schema does."""
        return bool(self.loose or self.free)


@dataclass(frozen=True, slots=True)
class PreparedTag:
    """The engine's grammar of a structural tag, where its values stand, and those that are judged, by their names."""

    grammar: PreparedGrammar
    outline: Outline
    seams: Seams
    judged: tuple[tuple[str, PreparedSchema], ...]


Prepared = PreparedSchema | PreparedTag | PreparedGrammar
