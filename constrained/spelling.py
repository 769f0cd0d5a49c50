"""Whether tokens can spell given bytes to their end: vocabularies exist that lack some bytes, and a mask must not lead there.

Used by the grammars that know their bytes in advance, choices and healing.
"""

from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["finishable_positions"]


def finishable_positions(vocabulary: Vocabulary, text: bytes, *, open_end: bool = False) -> frozenset[int] | None:
    """The positions from which tokens spell the rest of `text`, or None where that is all of them.

    With `open_end` a token may reach over the end.
    """
    if all(bytes((byte,)) in vocabulary.by_bytes for byte in set(text)):
        return None
    good = {len(text)}
    for at in range(len(text) - 1, -1, -1):
        ends = range(at + 1, min(len(text), at + vocabulary.longest) + 1)
        within = any(end in good and text[at:end] in vocabulary.by_bytes for end in ends)
        if within or (open_end and vocabulary.has_extension(text[at:])):
            good.add(at)
    return frozenset(good)
