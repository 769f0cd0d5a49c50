"""Which parts of a grammar the engine's lexer may take as one piece, so that it reads exactly the texts the grammar derives.

That lexer takes the longest piece, always. A part becomes one lexeme only where no shorter reading of it could go on with what
the longer one takes; any other is cut into smaller ones, down to single characters, about which nothing can go wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Raw, Ref, Rep, Seq, Term, children, recursive
from branchpoint.constrained.charset import CharSet, lead_blocks, overlap, union
from branchpoint.constrained.follow import follow_chars
from branchpoint.constrained.positions import Automaton, Reads, TooManyPositions

__all__ = ["Lexemes", "cut_lexemes"]

_POSITIONS = 20_000
_MEETINGS = 60_000
_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Lexemes:
    """`rules` over Terms, Refs and Raws, by name; `terms` are the regular parts that they number; `regular` the rules within."""

    rules: Mapping[str, Part]
    start: str
    terms: tuple[Part, ...]
    regular: Mapping[str, Part]


def cut_lexemes(cfg: Cfg) -> Lexemes:
    """The grammar (pruned) cut into lexemes, as large as they may be."""
    cutter = _Cutter(cfg)
    for attempt in range(_ROUNDS + 1):
        lexemes = cutter.cut()
        if cutter.finest or (len(lexemes.terms) == 1 and not cfg.follow and isinstance(lexemes.rules[cfg.start], Term)):
            break
        try:
            clashing = _clashes(lexemes, cfg.follow)
        except TooManyPositions:
            clashing = None
        if clashing is None or attempt == _ROUNDS:
            cutter.finest = True
        elif clashing:
            cutter.broken.update(id(lexemes.terms[term]) for term in clashing)
        else:
            break
    return lexemes


@dataclass(slots=True)
class _Cutter:
    """Cuts again and again, each time with more parts broken; parts are known by identity."""

    cfg: Cfg
    broken: set[int] = field(default_factory=set)
    finest: bool = False
    recursive: frozenset[str] = frozenset()
    terms: dict[int, Term] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    rules: dict[str, Part] = field(default_factory=dict)
    grouped: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    singles: dict[CharSet, Chars] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recursive = recursive(self.cfg.rules)

    def cut(self) -> Lexemes:
        self.terms, self.parts, self.rules = {}, [], {}
        waiting = [self.cfg.start]
        while waiting:
            name = waiting.pop()
            if name not in self.rules:
                self.rules[name] = self._lower(self.cfg.rules[name], waiting)
        regular = {name: part for name, part in self.cfg.rules.items() if name not in self.recursive}
        return Lexemes(self.rules, self.cfg.start, tuple(self.parts), regular)

    def _lower(self, part: Part, waiting: list[str]) -> Part:
        if isinstance(part, Raw):
            return part
        if isinstance(part, Chars):
            return self._term(self.singles.setdefault(part.chars, part))
        if not (self.finest or id(part) in self.broken) and self._is_regular(part):
            return self._term(part) if not isinstance(part, Seq) or part.parts else part
        match part:
            case Ref(name):
                waiting.append(name)
                return part
            case Rep(body, low, high):
                return Rep(self._lower(body, waiting), low, high)
            case Alt():
                return Alt(tuple(self._lower(each, waiting) for each in self._groups(part)))
            case _:
                return Seq(tuple(self._lower(each, waiting) for each in self._groups(part)))

    def _term(self, part: Part) -> Term:
        if id(part) not in self.terms:
            self.terms[id(part)] = Term(len(self.parts))
            self.parts.append(part)
        return self.terms[id(part)]

    def _is_regular(self, part: Part) -> bool:
        waiting = [part]
        while waiting:
            at = waiting.pop()
            if isinstance(at, Raw) or (isinstance(at, Ref) and at.name in self.recursive):
                return False
            waiting.extend(children(at))
        return True

    def _groups(self, part: Part) -> tuple[Part, ...]:
        """The parts of a sequence, a choice or a text; neighbours that are regular are drawn together where the whole isn't."""
        found = self.grouped.get(id(part))
        if found is None:
            found = self.grouped[id(part)] = self._grouped(part)
        return found

    def _grouped(self, part: Part) -> tuple[Part, ...]:
        if isinstance(part, Lit):
            return tuple(Chars(((ord(char), ord(char)),)) for char in part.text)
        below = children(part)
        if self._is_regular(part) or not isinstance(part, Seq | Alt):
            return below
        if isinstance(part, Alt):
            regular = tuple(each for each in below if self._is_regular(each))
            others = tuple(each for each in below if not self._is_regular(each))
            return (Alt(regular), *others) if len(regular) > 1 else below
        runs: list[list[Part]] = []
        for each in below:
            if runs and self._is_regular(each) and self._is_regular(runs[-1][-1]):
                runs[-1].append(each)
            else:
                runs.append([each])
        return tuple(run[0] if len(run) == 1 else Seq(tuple(run)) for run in runs)


def _clashes(lexemes: Lexemes, follow: CharSet) -> set[int] | None:
    """Terms that may run on over the end of another; None where there is too much to look at. Raises TooManyPositions."""
    automaton = Automaton(lexemes.regular, _POSITIONS)
    reads: list[Reads] = []
    owner: list[int] = []
    for number, part in enumerate(lexemes.terms):
        reads.append(automaton.add(part))
        owner += [number] * (len(automaton.chars) - len(owner))
    firsts = [(union(span for at in read.first for span in automaton.chars[at]), read.nullable) for read in reads]
    after = follow_chars(lexemes.rules, lexemes.start, firsts, follow)
    onward = [union(span for at in following for span in automaton.chars[at]) for following in automaton.follow]
    led = [lead_blocks(chars) for chars in onward]
    ends = [at in reads[number].last for at, number in enumerate(owner)]
    clashing: set[int] = set()
    seen: set[tuple[int, int]] = set()
    starts = [at for read in reads for at in read.first]
    waiting = list(_meeting(starts, starts, automaton.chars))
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if len(seen) > _MEETINGS:
            return None
        one, other = pair
        for ended, going in ((one, other), (other, one)):
            if ends[ended] and onward[going] and overlap(led[going], after[owner[ended]]):
                clashing.add(owner[going])
        waiting += _meeting(automaton.follow[one], automaton.follow[other], automaton.chars)
    return clashing


def _meeting(these: Iterable[int], those: Iterable[int], chars: Sequence[CharSet]) -> set[tuple[int, int]]:
    """Pairs of positions, the lower one first, that may read the same character."""
    by_chars: dict[CharSet, list[int]] = {}
    for position in those:
        by_chars.setdefault(chars[position], []).append(position)
    found: set[tuple[int, int]] = set()
    overlapping: dict[CharSet, list[int]] = {}
    for one in these:
        read = chars[one]
        if read not in overlapping:
            overlapping[read] = [other for key, others in by_chars.items() if overlap(read, key) for other in others]
        found.update((min(one, other), max(one, other)) for other in overlapping[read])
        if len(found) > _MEETINGS:
            break  # more than will be looked at
    return found
