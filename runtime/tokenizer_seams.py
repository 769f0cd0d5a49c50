"""Where generated ids meet the text around them. Used by `tokenizer_layout.py`.

The first token of a healed output also carries the end of the text before it; a stop may leave text after the last whole token.
The ids' own text says both, so that a prompt that goes on from them has every byte once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from branchpoint.runtime.messages import Ids

__all__ = ["Seam", "Seams"]


@dataclass(frozen=True, slots=True)
class Seam:
    """`cut` bytes at the end of the text before are in the ids too; `rest` is text that the ids don't hold."""

    cut: int = 0
    rest: str = ""


class Seams:
    """Finds seams. `token_bytes` gives a token's bytes; those of `hidden` tokens aren't in an output's text."""

    def __init__(self, token_bytes: Callable[[int], bytes], hidden: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden

    def find(self, before: str, ids: Ids) -> Seam:
        """The seam of `ids` after the text `before`; none where the ids come without their text, or the two don't match."""
        if not ids.text:
            return Seam()
        head = before.encode("utf-8", "surrogatepass")
        text = ids.text.encode("utf-8", "surrogatepass")
        made = b"".join(self._token_bytes(token) for token in ids.tokens if token not in self._hidden)
        matching = [cut for cut in self._cuts(head, made) if text.startswith(made[cut:])]
        if not matching:
            return self._shown(ids.text, made, self._cuts(head, made))
        cut = next((cut for cut in matching if len(made) - cut == len(text)), matching[0])
        rest = text[len(made) - cut :]
        return Seam(cut, rest.decode("utf-8", "replace"))

    @staticmethod
    def _shown(text: str, made: bytes, cuts: Iterable[int]) -> Seam:
        """As `find`, for an output that is no UTF-8: its text has U+FFFD where bytes make no character."""
        for cut in cuts:
            shown = made[cut:].decode("utf-8", "replace")
            if text.startswith(shown):
                return Seam(cut, text[len(shown) :])
        return Seam()

    @staticmethod
    def _cuts(head: bytes, made: bytes) -> Iterable[int]:
        """How many bytes could belong to both, in whole characters."""
        for cut in range(min(len(head), len(made)) + 1):
            if cut == 0 or (head.endswith(made[:cut]) and made[0] & 0xC0 != 0x80):
                yield cut
