"""Constraints made ready for the engine: what a trial hands back, so that only the engine's own part is done twice.

`json_grammar.py` and `engines/llguidance.py` make them; processes hand them to one another (`sandbox.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from branchpoint.constrained.cfg import Cfg
from branchpoint.constrained.outline import Outline, Until, Value
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.spots import Seams

__all__ = ["Prepared", "PreparedGrammar", "PreparedJudging", "PreparedSchema", "PreparedTag"]


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
    """The engine's grammar of a structural tag, and what it says: `cfg`, whose Raws say what `raws` tell.

    `roots` are the normalised schemas of its values, by their names. `judging`, where some of them are judged.
    """

    grammar: PreparedGrammar
    cfg: Cfg
    raws: Mapping[str, Until | Value]
    roots: Mapping[str, Schema]
    judging: "PreparedJudging | None"


@dataclass(frozen=True, slots=True)
class PreparedJudging:
    """Where the values of a structural tag stand, and those that are judged, by their names."""

    outline: Outline
    seams: Seams
    judged: tuple[tuple[str, PreparedSchema], ...]


Prepared = PreparedSchema | PreparedTag | PreparedGrammar
