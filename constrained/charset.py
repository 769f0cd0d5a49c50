"""Sets of Unicode scalar values as sorted ranges: what a regex's classes, categories and case folding come to.

Used by `regex.py` only. Surrogates are in no set: no UTF-8 text has them.
"""

import _sre  # type: ignore[import-not-found]  # the very case mapping that `re` compiles with; not in typeshed
import bisect
from collections.abc import Callable, Iterable
from functools import cache
from re import _casefix  # type: ignore[attr-defined]  # the extra equivalences that `re` compiles with; not in typeshed

__all__ = [
    "ANY",
    "NEWLINE",
    "CharSet",
    "category",
    "complement",
    "fold_case",
    "holds",
    "lead_blocks",
    "liked",
    "overlap",
    "union",
    "warm",
]

CharSet = tuple[tuple[int, int], ...]
"""Disjoint, ascending, inclusive ranges of code points."""

ANY: CharSet = ((0, 0xD7FF), (0xE000, 0x10FFFF))
NEWLINE: CharSet = ((10, 10),)
_BLOCKS = ((0, 0x7F, 1), (0x80, 0x7FF, 1 << 6), (0x800, 0xFFFF, 1 << 12), (0x10000, 0x10FFFF, 1 << 18))
"""Characters by the length of their UTF-8: from, to, and how many share a first byte."""
_LIKED = (0x61, 0x30, 0x41)  # a, 0, A
_LAST_LETTER = 0x3FFFF  # no letter, digit or space lies beyond the third supplementary plane
_LAST_CASED = 0x1FFFF  # no script with case lies beyond the first supplementary plane


def union(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The set of all values in `ranges`, which may overlap and come in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(piece for low, high in merged for piece in _without_surrogates(low, high))


def _without_surrogates(low: int, high: int) -> Iterable[tuple[int, int]]:
    for start, end in ANY:
        if low <= end and high >= start:
            yield max(low, start), min(high, end)


def holds(chars: CharSet, code: int) -> bool:
    """Whether a character is in a set."""
    at = bisect.bisect_right(chars, (code, 0x110000)) - 1
    return at >= 0 and chars[at][0] <= code <= chars[at][1]


def liked(chars: CharSet) -> int:
    """A character of a set: a letter or digit where there is one."""
    for code in _LIKED:
        if holds(chars, code):
            return code
    return next((max(low, 0x21) for low, high in chars if high >= 0x21), chars[0][0])


def overlap(one: CharSet, other: CharSet) -> bool:
    """Whether the sets have a value in common."""
    if len(one) > len(other):
        one, other = other, one
    for low, high in one:
        at = bisect.bisect_right(other, (high, 0x110000)) - 1
        if at >= 0 and other[at][1] >= low:
            return True
    return False


def lead_blocks(chars: CharSet) -> CharSet:
    """Every character whose UTF-8 begins with the same byte as that of one in `chars`."""
    widened: list[tuple[int, int]] = []
    for low, high in chars:
        for first, last, size in _BLOCKS:
            if low <= last and high >= first:
                begin, end = max(low, first), min(high, last)
                widened.append((begin - begin % size, min(last, end - end % size + size - 1)))
    return union(widened)


def complement(chars: CharSet) -> CharSet:
    """Every scalar value that isn't in `chars`."""
    gaps: list[tuple[int, int]] = []
    at = 0
    for low, high in chars:
        if at < low:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= 0x10FFFF:
        gaps.append((at, 0x10FFFF))
    return union(gaps)


_TESTS: dict[str, Callable[[str], bool]] = {
    "digit": str.isdecimal,
    "space": str.isspace,
    "word": lambda char: char.isalnum() or char == "_",
}


@cache
def category(name: str, *, ascii_only: bool) -> CharSet:
    r"""What `\d` ("digit"), `\s` ("space") or `\w` ("word") matches in `re`."""
    test = _TESTS[name]
    if ascii_only and name == "space":  # the four separators U+001C to U+001F are spaces to str, not to an ASCII `\s`
        return union((ord(char), ord(char)) for char in " \t\n\r\f\v")
    return union(_runs(code for code in range(0x80 if ascii_only else _LAST_LETTER + 1) if test(chr(code))))


def _runs(codes: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Ascending values as ranges."""
    low = high = -2
    for code in codes:
        if code != high + 1:
            if high >= 0:
                yield low, high
            low = code
        high = code
    if high >= 0:
        yield low, high


def warm() -> None:
    """Have all tables ready: the first to need one would keep Python's lock for a tenth of a second."""
    for ascii_only in (False, True):
        _cased(ascii_only=ascii_only)
        for name in _TESTS:
            category(name, ascii_only=ascii_only)


def fold_case(chars: CharSet, *, ascii_only: bool) -> CharSet:
    """The set with everything that `re.IGNORECASE` holds equal to one of its members."""
    groups = _case_groups(ascii_only=ascii_only)
    cased = _cased(ascii_only=ascii_only)
    found: set[int] = set()
    for low, high in chars:
        for code in cased[bisect.bisect_left(cased, low) : bisect.bisect_right(cased, high)]:
            found.update(groups[code])
    return union([*chars, *((code, code) for code in found)])


@cache
def _cased(*, ascii_only: bool) -> tuple[int, ...]:
    return tuple(sorted(_case_groups(ascii_only=ascii_only)))


@cache
def _case_groups(*, ascii_only: bool) -> dict[int, tuple[int, ...]]:
    """By code point: all that differ from it in case only, itself among them. Those without case are left out."""
    groups: dict[int, set[int]] = {}
    for code in range(0x80 if ascii_only else _LAST_CASED + 1):
        lower = _sre.unicode_tolower(code)
        if lower != code:
            groups.setdefault(lower, {lower}).add(code)
    for lower, others in () if ascii_only else _casefix._EXTRA_CASES.items():
        joined = set().union(*(groups.get(each, {each}) for each in (lower, *others)))
        groups |= dict.fromkeys((lower, *others), joined)
    return {code: tuple(group) for group in groups.values() for code in group}
