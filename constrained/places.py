"""Where the outputs of a constraint start, for the search for ways to their ends: what is known of it besides its grammar."""

from collections.abc import Iterator
from dataclasses import dataclass

from branchpoint.constrained.cfg import Alt, Cfg, Lit, from_regex
from branchpoint.constrained.completion import Place, Standing, pieces
from branchpoint.constrained.ebnf import read_ebnf
from branchpoint.constrained.grammar_place import grammar_place
from branchpoint.constrained.guide import Guide, json_place
from branchpoint.constrained.json_text import JsonText
from branchpoint.constrained.outline import Until
from branchpoint.constrained.prepared import Prepared, PreparedSchema, PreparedTag
from branchpoint.constrained.regex import parse_regex
from branchpoint.constrained.rules import AnyTerminal, Pricing
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, Regex
from branchpoint.constrained.terminals import FreeText
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.words import Words

__all__ = ["starting_point"]

_MOST_OPTIONS = 512  # that are followed; of more, ways are sought
_TOKEN = 1 << 20
"""The price of a token, beside 1 for a byte."""


@dataclass(frozen=True, slots=True)
class _Behind:
    """A place behind bytes that come first, of which `left` are missing."""

    left: bytes
    place: Place

    def after(self, text: bytes) -> Place:
        """The place after some more text, which the grammar takes."""
        if len(text) < len(self.left):
            return _Behind(self.left[len(text) :], self.place)
        return self.place.after(text[len(self.left) :])

    def guesses(self) -> Iterator[bytes]:
        """What is missing, and what then may come."""
        yield from (self.left + guess for guess in self.place.guesses())
        yield self.left


def starting_point(constraint: Constraint | None, prefix: bytes, prepared: Prepared | None, vocabulary: Vocabulary) -> Standing:
    """Before the first token of an output that begins with `prefix` and then follows a constraint, made of `prepared`."""
    place = _place(constraint, prepared, vocabulary)
    is_json = isinstance(prepared, PreparedSchema | PreparedTag)
    return Standing(is_json, _Behind(prefix, place) if prefix and place is not None else place)


def _place(constraint: Constraint | None, prepared: Prepared | None, vocabulary: Vocabulary) -> Place | None:
    if isinstance(prepared, PreparedSchema):
        return json_place(prepared.root)
    if isinstance(prepared, PreparedTag):
        return grammar_place(prepared.cfg, _terminals(prepared), _pricing(vocabulary))
    match constraint:
        case Choice(options) if len(options) <= _MOST_OPTIONS:
            return grammar_place(Cfg({"root": Alt(tuple(map(Lit, options)))}, "root"), {}, _pricing(vocabulary))
        case Regex(pattern):
            return grammar_place(Cfg({"root": from_regex(parse_regex(pattern))}, "root"), {}, _pricing(vocabulary))
        case Ebnf(text):
            read = read_ebnf(text)
            return None if isinstance(read, str) else grammar_place(read, {}, _pricing(vocabulary))
        case _:
            return None


def _terminals(tag: PreparedTag) -> dict[str, AnyTerminal]:
    """What reads the free text of a structural tag, and its values."""
    guides = {name: Guide(root) for name, root in tag.roots.items()}
    words = {(raw.stops, raw.excludes): Words(raw.stops, raw.excludes) for raw in tag.raws.values() if isinstance(raw, Until)}
    return {
        name: FreeText(raw, words[raw.stops, raw.excludes]) if isinstance(raw, Until) else JsonText(guides[raw.name], raw.starts)
        for name, raw in tag.raws.items()
    }


def _pricing(vocabulary: Vocabulary) -> Pricing:
    def price(text: str) -> int:
        encoded = text.encode()
        return len(pieces(vocabulary, encoded)) * _TOKEN + len(encoded)

    return price
