"""Where a text stands in a grammar, and the shortest text from there to the end of a sentence.

Asked by `completion.py`, as `guide.py` is for JSON.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from branchpoint.constrained.cfg import Cfg, prune
from branchpoint.constrained.characters import missing_bytes
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.reading import Reading, read_nothing
from branchpoint.constrained.rules import AnyTerminal, Pricing, Untold, make_rules

__all__ = ["GrammarPlace", "grammar_place"]

_MOST_RESTS = 2


@dataclass(frozen=True, slots=True)
class GrammarPlace:
    """`reading` is how the text is read (None: it is followed no longer), `pending` bytes of a character that isn't whole."""

    pricing: Pricing
    reading: Reading | None
    pending: bytes = b""

    def after(self, text: bytes) -> "GrammarPlace":
        """The place after some more text, which the grammar takes."""
        text = self.pending + text
        whole = text.decode(errors="ignore")
        reading = self.reading
        for char in whole:
            if reading is None:
                break
            reading = reading.step(char)
        return replace(self, reading=reading, pending=text[len(whole.encode()) :])

    def guesses(self) -> Iterator[bytes]:
        """Texts that lead to an end, the cheapest first; then what else may come next."""
        missing = missing_bytes(self.pending)
        reading = self.after(missing).reading if missing else self.reading
        if reading is not None:
            for text in (*reading.rests(self.pricing, _MOST_RESTS), *reading.guesses()):
                yield missing + text.encode()


def grammar_place(cfg: Cfg, raws: Mapping[str, AnyTerminal], pricing: Pricing) -> GrammarPlace | None:
    """The place before a sentence of a grammar whose Raws say what `raws` tell; None where these don't tell all of them."""
    try:
        return GrammarPlace(pricing, read_nothing(make_rules(prune(cfg), raws, pricing)))
    except (Untold, GrammarError):
        return None
