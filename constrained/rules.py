"""A grammar's rules as slots that `reading.py` follows a text through, each with the price of the shortest text behind it.

The shortest sentences are found as Knuth does it ("A Generalization of Dijkstra's Algorithm", 1977), whatever refers to what.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Raw, Ref, Rep, Seq
from branchpoint.constrained.terminals import OneChar, Terminal, WordText

__all__ = ["ENDLESS", "LONGEST", "AnyTerminal", "Pricing", "Rule", "Slot", "Symbol", "Untold", "make_rules", "shortest_text"]

AnyTerminal = Terminal[Any]
Pricing = Callable[[str], int]
"""What a text costs: at least 1, but for the empty one, which costs 0."""

ENDLESS = 1 << 200
"""The price of what has no end that is known."""

LONGEST = 1 << 16
"""Characters up to which a text is written out."""


class Untold(Exception):
    """A part of the grammar says nothing about its texts."""


@dataclass(slots=True, eq=False)
class Rule:
    """`branches` are its productions by their first slots (None: the empty text), `best` is the cheapest of them, at `price`.

    A repeat has one branch, of one slot, which is read `low` to `high` times.
    """

    branches: tuple["Slot | None", ...] = ()
    repeats: bool = False
    low: int = 1
    high: int | None = 1
    price: int = ENDLESS
    best: "Slot | None" = None


@dataclass(slots=True, eq=False)
class Slot:
    """A symbol of one of `rule`'s productions, what follows it there, and the price of that (but of a repeat)."""

    rule: Rule
    symbol: "Symbol"
    following: "Slot | None" = None
    behind: int = 0
    price: int = ENDLESS

    def least(self, count: int) -> int:
        """The price of what follows in the production, this symbol having been read, in a repeat `count` times before."""
        rule = self.rule
        return max(0, rule.low - count - 1) * self.price if rule.repeats else self.behind

    def rest(self, count: int) -> "Iterator[Symbol]":
        """The symbols that follow, as few as may be."""
        if self.rule.repeats:
            yield from [self.symbol] * max(0, self.rule.low - count - 1)
            return
        slot = self.following
        while slot is not None:
            yield slot.symbol
            slot = slot.following


Symbol = AnyTerminal | Rule


def make_rules(cfg: Cfg, raws: Mapping[str, AnyTerminal], pricing: Pricing) -> Rule:
    """The rule that a (pruned) grammar starts with; `raws` are its Raws by what they say. Raises Untold for any other."""
    builder = _Builder(raws)
    builder.named = {name: builder.rule() for name in cfg.rules}
    for name, part in cfg.rules.items():
        builder.fill(builder.named[name], part)
    _price(builder.rules, pricing)
    return builder.named[cfg.start]


def shortest_text(symbols: Sequence[Symbol], written: str = "") -> str | None:
    """`written` and the cheapest text of symbols behind it; None where it is very long or unknown."""
    texts, length = [written], len(written)
    waiting = list(reversed(symbols))
    while waiting:
        symbol = waiting.pop()
        if isinstance(symbol, Rule):
            if symbol.best is not None and symbol.price:
                copies = symbol.low if symbol.repeats else 1
                waiting += [symbol.best.symbol, *symbol.best.rest(symbol.low)][::-1] * copies
        else:
            text = symbol.rest(symbol.start)
            if text is None:
                return None
            texts.append(text)
            length += len(text)
        if length > LONGEST or len(waiting) > LONGEST:
            return None
    return "".join(texts)


@dataclass(slots=True)
class _Builder:
    """`named` are the grammar's own rules, `rules` all."""

    raws: Mapping[str, AnyTerminal]
    named: dict[str, Rule] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)

    def rule(self) -> Rule:
        self.rules.append(Rule())
        return self.rules[-1]

    def fill(self, rule: Rule, part: Part) -> None:
        """Give a rule its productions."""
        if isinstance(part, Rep):
            rule.repeats, rule.low, rule.high = True, part.low, part.high
            rule.branches = (Slot(rule, self._symbol(part.body)),)
        else:
            rule.branches = tuple(self._production(rule, each) for each in (part.branches if isinstance(part, Alt) else (part,)))

    def _production(self, rule: Rule, part: Part) -> Slot | None:
        first: Slot | None = None
        for each in reversed(part.parts if isinstance(part, Seq) else (part,)):
            if not (isinstance(each, Lit) and not each.text):
                first = Slot(rule, self._symbol(each), first)
        return first

    def _symbol(self, part: Part) -> Symbol:
        match part:
            case Lit(text) if text:
                return WordText(text)
            case Chars(chars):
                return OneChar(chars)
            case Ref(name):
                return self.named[name]
            case Raw(name):
                if name not in self.raws:
                    raise Untold
                return self.raws[name]
            case _:
                rule = self.rule()
                self.fill(rule, part)
                return rule


def _slots(first: Slot | None) -> Iterator[Slot]:
    while first is not None:
        yield first
        first = first.following


def _price(rules: Sequence[Rule], pricing: Pricing) -> None:
    """Find the cheapest production of every rule, the cheapest rules first; then what is behind each slot."""
    productions = [(rule, first) for rule in rules for first in rule.branches]
    missing, users = list[int](), dict[Rule, list[int]]()
    waiting = list[tuple[int, int]]()
    for number, (rule, first) in enumerate(productions):
        needed = set[Rule]()
        for slot in _slots(first):
            if isinstance(slot.symbol, Rule):
                if not (rule.repeats and not rule.low):
                    needed.add(slot.symbol)
            else:
                text = slot.symbol.rest(slot.symbol.start)
                slot.price = pricing(text) if text is not None else ENDLESS
        for each in needed:
            users.setdefault(each, []).append(number)
        missing.append(len(needed))
        if not needed:
            waiting.append((_total(rule, first), number))
    heapq.heapify(waiting)
    done = set[Rule]()
    while waiting:
        price, number = heapq.heappop(waiting)
        rule, first = productions[number]
        if rule in done:
            continue
        done.add(rule)
        rule.price, rule.best = price, first
        for user in users.get(rule, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(waiting, (_total(*productions[user]), user))
    for _, first in productions:
        _set_behind(first)


def _symbol_price(slot: Slot) -> int:
    return slot.symbol.price if isinstance(slot.symbol, Rule) else slot.price


def _total(rule: Rule, first: Slot | None) -> int:
    total = sum(map(_symbol_price, _slots(first)))
    return total * rule.low if rule.repeats else total


def _set_behind(first: Slot | None) -> None:
    slots = list(_slots(first))
    behind = 0
    for slot in reversed(slots):
        slot.behind = behind
        slot.price = _symbol_price(slot)
        behind += slot.price
        if slot.rule.repeats and not slot.price:
            slot.rule.low = 0  # any number of empty texts may stand for what is missing
