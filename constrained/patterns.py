"""What a pattern of a JSON schema becomes for the engine: one pattern or several that must all match.

`relax.py` asks. Look-aheads at the start become patterns of their own, negative ones by their complement. `unordered.py` and
`simplify.py` ask for the pattern of given texts.
"""

from collections.abc import Iterable
from functools import lru_cache

from branchpoint.constrained.complement import complement_pattern
from branchpoint.constrained.ecma import closing, engine_pattern, has_branches

__all__ = ["engine_patterns", "exact_pattern"]

_AHEAD, _NEVER = "(?=", "(?!"
_LITERAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def exact_pattern(texts: Iterable[str]) -> str:
    """A pattern of exactly these texts."""
    return f"^(?:{'|'.join(''.join(map(_literal, text)) for text in texts)})$"


def _literal(char: str) -> str:
    return char if char in _LITERAL else f"\\x{{{ord(char):X}}}"


@lru_cache(maxsize=1024)
def engine_patterns(pattern: str) -> list[str] | None:
    """Patterns that together match where `pattern` does (not to be changed), None where the engine has no words for it."""
    ahead, barred, rest = _leading(pattern)
    if (ahead or barred) and has_branches(rest):
        return None  # they would hold for the first branch only
    found = [*ahead, *(complement_pattern(each) for each in barred), *([rest] if rest != "^" else [])]
    written = [None if each is None else engine_pattern(each) for each in found]
    return None if None in written else [each for each in written if each is not None]


def _leading(pattern: str) -> tuple[list[str], list[str], str]:
    """Look-aheads right after the first `^`, positive and negative, each as a pattern from there; the pattern without them."""
    found: dict[str, list[str]] = {_AHEAD: [], _NEVER: []}
    at = 1
    while pattern.startswith("^") and pattern[at : at + 3] in found:
        end = closing(pattern, at)
        if end is None:
            break
        inner = pattern[at + 3 : end]
        whole = inner.endswith("$") and not inner.endswith("\\$") and not has_branches(inner)
        found[pattern[at : at + 3]].append(f"^(?:{inner[:-1]})$" if whole else f"^(?:{inner})")
        at = end + 1
    return found[_AHEAD], found[_NEVER], f"^{pattern[at:]}" if at > 1 else pattern
