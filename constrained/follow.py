"""Which characters may come right after each lexeme of a grammar, by the textbook's FIRST and FOLLOW sets.

Asked by `lexemes.py`. Sets of lexemes are the bits of an integer; bit `END` is what follows the grammar's end.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from branchpoint.constrained.cfg import Alt, Part, Raw, Ref, Rep, Seq, Term, rule_users
from branchpoint.constrained.charset import CharSet, union

__all__ = ["follow_chars"]

_END = 1


Rules = Mapping[str, Part]


def follow_chars(rules: Rules, start: str, terms: Sequence[tuple[CharSet, bool]], end: CharSet) -> list[CharSet]:
    """By lexeme: what may come right after it. `terms` are what each may begin with, and whether it may be empty."""
    sets = _Sets(rules, [nullable for _, nullable in terms])
    sets.find_first()
    follow = sets.find_follow(start)
    firsts = [end, *(chars for chars, _ in terms), *(raw.first for raw in sets.raws)]
    known: dict[int, CharSet] = {}
    for mask in follow:
        if mask not in known:
            known[mask] = union(span for bit, chars in enumerate(firsts) if mask >> bit & 1 for span in chars)
    return [known[mask] for mask in follow]


@dataclass(slots=True)
class _Sets:
    rules: Rules
    nullable_terms: list[bool]
    raws: list[Raw] = field(default_factory=list)
    bits: dict[int, int] = field(default_factory=dict)
    first: dict[str, tuple[int, bool]] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    found: list[int] = field(default_factory=list)

    def find_first(self) -> None:
        """FIRST and nullability of every rule, to the fixed point."""
        self.first = dict.fromkeys(self.rules, (0, False))
        users = rule_users(self.rules)
        waiting = dict.fromkeys(self.rules)
        while waiting:
            name, _ = waiting.popitem()
            now = self._first(self.rules[name])
            if now != self.first[name]:
                self.first[name] = now
                waiting |= dict.fromkeys(users[name])

    def find_follow(self, start: str) -> list[int]:
        """FOLLOW of every lexeme."""
        self.found = [0] * len(self.nullable_terms)
        self.after = dict.fromkeys(self.rules, 0)
        self.after[start] = _END
        waiting = dict.fromkeys(self.rules)
        while waiting:
            name, _ = waiting.popitem()
            for reached in self._walk(self.rules[name], self.after[name]):
                waiting[reached] = None
        return self.found

    def _first(self, part: Part) -> tuple[int, bool]:
        match part:
            case Term(number):
                return 2 << number, self.nullable_terms[number]
            case Raw():
                return self._bit(part), part.nullable
            case Ref(name):
                return self.first[name]
            case Rep(body, low, _):
                mask, nullable = self._first(body)
                return mask, nullable or not low
            case Alt(branches):
                read = [self._first(each) for each in branches]
                return functools.reduce(operator.or_, (bits for bits, _ in read)), any(nullable for _, nullable in read)
            case Seq(parts):
                mask = 0
                for each in parts:
                    bits, nullable = self._first(each)
                    mask |= bits
                    if not nullable:
                        return mask, False
                return mask, True
            case _:
                raise AssertionError(f"{part} was left uncut")

    def _bit(self, raw: Raw) -> int:
        if id(raw) not in self.bits:
            self.bits[id(raw)] = 2 << len(self.nullable_terms) + len(self.raws)
            self.raws.append(raw)
        return self.bits[id(raw)]

    def _walk(self, part: Part, after: int) -> list[str]:
        """Note what follows each lexeme of a part; the rules about which something new was learnt."""
        match part:
            case Term(number):
                self.found[number] |= after
            case Ref(name):
                if self.after[name] | after != self.after[name]:
                    self.after[name] |= after
                    return [name]
            case Rep(body, _, high):
                return self._walk(body, after if high == 1 else after | self._first(body)[0])
            case Alt(branches):
                return [name for each in branches for name in self._walk(each, after)]
            case Seq(parts):
                reached: list[str] = []
                for each in reversed(parts):
                    reached += self._walk(each, after)
                    mask, nullable = self._first(each)
                    after = after | mask if nullable else mask
                return reached
        return []
