"""An independent judge of grammars for tests: all the ends of what a part can derive, by fixed points over a given text.

And grammars to judge.
"""

import random

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Ref, Rep, Seq

ALPHABET = "ab"


class Derivation:
    """What the rules of `grammar` derive within `text`."""

    def __init__(self, grammar: Cfg, text: str) -> None:
        self._rules = grammar.rules
        self._start = grammar.start
        self._text = text
        self._known: dict[tuple[str, int], set[int]] = {}

    def holds(self) -> bool:
        """Whether the whole text is a sentence."""
        while True:
            before = sum(map(len, self._known.values()))
            self._asked: set[tuple[str, int]] = set()
            ends = self._ends(Ref(self._start), 0)
            if before == sum(map(len, self._known.values())):
                return len(self._text) in ends

    def _ends(self, part: Part, at: int) -> set[int]:
        match part:
            case Lit(literal):
                return {at + len(literal)} if self._text.startswith(literal, at) else set()
            case Chars(chars):
                fits = at < len(self._text) and any(low <= ord(self._text[at]) <= high for low, high in chars)
                return {at + 1} if fits else set()
            case Seq(parts):
                reached = {at}
                for each in parts:
                    reached = {end for start in reached for end in self._ends(each, start)}
                return reached
            case Alt(branches):
                return {end for each in branches for end in self._ends(each, at)}
            case Rep(body, low, high):
                return self._repeated(body, low, high, at)
            case Ref(name):
                if (name, at) not in self._asked:
                    self._asked.add((name, at))
                    known = self._known.setdefault((name, at), set())
                    known |= self._ends(self._rules[name], at)
                return self._known.setdefault((name, at), set())
        raise AssertionError("no such part in a grammar that was read")

    def _repeated(self, body: Part, low: int, high: int | None, at: int) -> set[int]:
        found: set[int] = set()
        reached, count = {at}, 0
        while reached and (high is None or count <= high):
            if count >= low:
                if reached <= found:
                    break
                found |= reached
            reached = {end for start in reached for end in self._ends(body, start)}
            count += 1
            if count > low + len(self._text) + 2:
                break
        return found


def random_grammar(choose: random.Random) -> Cfg:
    """Three rules that refer to one another and themselves as they like; each has a sentence."""

    def part(depth: int) -> Part:
        kind = choose.randrange(7 if depth < 3 else 3)
        if kind == 0:
            return Lit("".join(choose.choices(ALPHABET, k=choose.randrange(3))))
        if kind == 1:
            return Chars(choose.choice((((97, 97),), ((97, 98),))))
        if kind == 2:
            return Ref(f"r{choose.randrange(3)}")
        if kind == 6:
            low = choose.randrange(3)
            return Rep(part(depth + 1), low, choose.choice((None, max(low, 1), low + 2)))
        parts = tuple(part(depth + 1) for _ in range(choose.randrange(1, 4)))
        return Alt(parts) if kind == 3 else Seq(parts)

    return Cfg({f"r{number}": Alt((part(0), part(1), Lit("a"))[choose.randrange(2) :]) for number in range(3)}, "r0")
