"""An independent judge of grammars for tests: all the ends of what a part can derive, by fixed points over a given text."""

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Ref, Rep, Seq


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
