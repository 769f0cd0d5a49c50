"""A prompt's segments, cut into ids and stretches of text that are tokenised as one. Used by `tokenizer.py`.

Special tokens are found here, and in a template's own text only; the rest joins its neighbours.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from branchpoint.runtime.messages import Ids, Segment
from branchpoint.runtime.tokenizer_seams import Seams

__all__ = ["Part", "SpecialToken", "SpecialTokens", "Stretch"]

After = Literal["start", "special", "ids"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Text that is tokenised as one, and what stands before it (some tokenizers put a space at the start of a text).

    Its last `cut` bytes are carried by the ids that follow: the tokens at its end that hold them are left out.
    """

    text: str
    after: After
    cut: int = 0


Part = Stretch | tuple[int, ...]
"""A stretch of text, or ids."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that is matched whole in a template's text; some swallow the white space beside them."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class SpecialTokens:
    """All special tokens of a tokenizer, to be looked up by text."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self.by_text = {token.text: token for token in tokens}
        ordered = sorted(self.by_text.values(), key=lambda token: len(token.text), reverse=True)
        patterns = [
            (r"\s*" if token.lstrip else "") + "(" + re.escape(token.text) + ")" + (r"\s*" if token.rstrip else "")
            for token in ordered
        ]
        self._pattern = re.compile("|".join(patterns) if patterns else r"(?!)")

    def lay_out(self, segments: Sequence[Segment], seams: Seams) -> list[Part]:
        """The parts of a prompt, in order; neighbouring stretches are joined, empty ones left out."""
        parts: list[Part] = []
        buffer: list[str] = []
        after: After = "start"

        def close(ids: tuple[int, ...], then: After, cut: int = 0) -> None:
            nonlocal after
            if text := "".join(buffer):
                parts.append(Stretch(text, after, cut))
            buffer.clear()
            if ids:
                parts.append(ids)
                after = then

        for segment in segments:
            if isinstance(segment, Ids):
                seam = seams.find("".join(buffer), segment)
                close(segment.tokens, "ids", seam.cut)
                buffer.append(seam.rest)
            elif segment.special:
                for text, token in self._split(segment.text):
                    buffer.append(text)
                    if token:
                        close((token.id,), "special")
            else:
                buffer.append(segment.text)
        close((), after)
        return parts

    def span(self, text: str) -> tuple[int, int] | None:
        """Where the first special token in `text` begins and the last one ends; None where it has none."""
        found = [match.span() for match in self._pattern.finditer(text)]
        return (found[0][0], found[-1][1]) if found else None

    def _split(self, text: str) -> Iterable[tuple[str, SpecialToken | None]]:
        at = 0
        for found in self._pattern.finditer(text):
            yield text[at : found.start()], self.by_text[found.group(found.lastindex or 0)]
            at = found.end()
        yield text[at:], None
