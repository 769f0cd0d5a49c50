"""How a grammar reads a text so far, character by character, and the cheapest text that makes a sentence of it.

Earley's algorithm ("An Efficient Context-Free Parsing Algorithm", 1970) over the slots of `rules.py`, with Leo's short cut
through rules that end with themselves. A reading is never changed; those after longer texts refer to it.
"""

import heapq
from collections.abc import Iterator
from typing import Any

from branchpoint.constrained.rules import AnyTerminal, Pricing, Rule, Slot, Symbol, shortest_text

__all__ = ["Reading", "read_nothing"]

_MOST_ITEMS = 1024
_Item = tuple[Slot, int, "Reading"]
"""A slot whose symbol is being read, how often its repeat was read before, and the reading where its production began."""


class Reading:
    """What may be read on from one place in a text.

    `scans` are the terminals that are being read, with their states; `waiting`, by rule, the items that wait for it to be read
    from here; `outer`, by rule, the least price of what must follow it, and the item that tells what (None: it is the whole).
    """

    __slots__ = ("is_sentence", "jumps", "outer", "scans", "waiting")

    def __init__(self) -> None:
        self.scans: list[tuple[AnyTerminal, Any, _Item]] = []
        self.waiting: dict[Rule, list[_Item]] = {}
        self.outer: dict[Rule, tuple[int, _Item | None]] = {}
        self.jumps: dict[Rule, tuple[Rule, Reading]] = {}
        self.is_sentence = False

    def step(self, char: str) -> "Reading | None":
        """What may be read behind one more character; None where nothing may, or too much to follow."""
        maker = _Maker()
        for terminal, state, item in self.scans:
            following, ends = terminal.step(state, char)
            if following is not None:
                maker.reading.scans.append((terminal, following, item))
            if ends:
                maker.advance(item)
        return maker.made()

    def rests(self, pricing: Pricing, most: int) -> Iterator[str]:
        """Texts that make a sentence of what is read, at most `most`, the cheapest first."""
        found = list[tuple[int, int]]()
        for number, (terminal, state, (slot, count, origin)) in enumerate(self.scans):
            text = terminal.rest(state)
            if text is not None:
                price = slot.price if state == terminal.start else pricing(text)
                found.append((price + slot.least(count) + origin.outer[slot.rule][0], number))
        for _, number in heapq.nsmallest(most, found):
            terminal, state, item = self.scans[number]
            whole = shortest_text(list(_behind(item)), terminal.rest(state) or "")
            if whole is not None:
                yield whole

    def guesses(self) -> Iterator[str]:
        """What terminals guess that may come next."""
        for terminal, state, _ in self.scans:
            yield from terminal.guesses(state)


def read_nothing(start: Rule) -> Reading:
    """The reading of the empty text, by the rule of whole sentences."""
    maker = _Maker()
    maker.predict(start)
    maker.reading.outer[start] = 0, None
    maker.reading.is_sentence = not start.price
    return maker.made() or maker.reading


def _behind(item: _Item) -> Iterator[Symbol]:
    """What must follow an item's symbol up to the end of the sentence, as little as may be."""
    at: _Item | None = item
    while at is not None:
        slot, count, origin = at
        yield from slot.rest(count)
        _, at = origin.outer[slot.rule]


class _Maker:
    """Makes one reading of what was read of items that began before."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._seen = set[tuple[Slot | Rule, int, Reading]]()
        self._items = list[_Item]()
        self._complete = list[tuple[Rule, Reading]]()

    def advance(self, item: _Item) -> None:
        """An item's symbol is read."""
        slot, count, origin = item
        rule = slot.rule
        if not rule.repeats:
            if slot.following is not None:
                self._add(slot.following, 0, origin)
            else:
                self._end(rule, origin)
            return
        count = count + 1 if rule.high is not None else min(count + 1, rule.low)
        if rule.high is None or count < rule.high:
            self._add(slot, count, origin)
        if count >= rule.low:
            self._end(rule, origin)

    def predict(self, rule: Rule) -> None:
        """Begin a rule here."""
        for branch in rule.branches:
            if branch is not None:
                self._add(branch, 0, self.reading)

    def _add(self, slot: Slot, count: int, origin: Reading) -> None:
        if (slot, count, origin) not in self._seen:
            self._seen.add((slot, count, origin))
            self._items.append((slot, count, origin))

    def _end(self, rule: Rule, origin: Reading) -> None:
        """A rule is read; one of which nothing was read has been passed over already."""
        if origin is not self.reading and (rule, 0, origin) not in self._seen:
            self._seen.add((rule, 0, origin))
            self._complete.append((rule, origin))

    def made(self) -> Reading | None:
        """The reading; None where nothing may be read on, or too much to follow."""
        reading = self.reading
        while self._items or self._complete:
            if self._items:
                self._place(self._items.pop())
            else:
                self._resume(*self._complete.pop())
            if len(self._seen) > _MOST_ITEMS:
                return None
        if not reading.scans and not reading.is_sentence:
            return None
        self._look_out()
        return reading

    def _place(self, item: _Item) -> None:
        symbol = item[0].symbol
        if not isinstance(symbol, Rule):
            self.reading.scans.append((symbol, symbol.start, item))
        elif symbol in self.reading.waiting:
            self.reading.waiting[symbol].append(item)
        else:
            self.reading.waiting[symbol] = [item]
            self.predict(symbol)
        if not item[0].price and not item[0].rule.repeats:
            self.advance(item)

    def _resume(self, rule: Rule, origin: Reading) -> None:
        """Go on with what waited for a rule that was begun at `origin`."""
        while rule in origin.jumps:
            rule, origin = origin.jumps[rule]
        self.reading.is_sentence = self.reading.is_sentence or origin.outer[rule][1] is None
        for item in origin.waiting.get(rule, ()):
            self.advance(item)

    def _look_out(self) -> None:
        """Find what must follow each rule that begins here, the least first."""
        reading = self.reading
        own = dict[Rule, list[tuple[Rule, _Item]]]()
        found = [(price, number, rule, item) for number, (rule, (price, item)) in enumerate(reading.outer.items())]
        reading.outer = {}
        for rule, items in reading.waiting.items():
            for item in items:
                slot, count, origin = item
                if origin is reading:
                    own.setdefault(slot.rule, []).append((rule, item))
                else:
                    found.append((slot.least(count) + origin.outer[slot.rule][0], len(found), rule, item))
        heapq.heapify(found)
        pushed = len(found)
        while found:
            price, _, rule, via = heapq.heappop(found)
            if rule in reading.outer:
                continue
            reading.outer[rule] = price, via
            self._shorten(rule)
            for inner, item in own.get(rule, ()):
                pushed += 1
                heapq.heappush(found, (price + item[0].least(item[1]), pushed, inner, item))

    def _shorten(self, rule: Rule) -> None:
        """Where only one item waits for a rule, and ends with it, what waits for that may go on at once."""
        waiting = self.reading.waiting.get(rule, ())
        if len(waiting) == 1 and self.reading.outer[rule][1] is not None:
            slot, _, origin = waiting[0]
            if slot.following is None and not slot.rule.repeats:
                self.reading.jumps[rule] = origin.jumps.get(slot.rule, (slot.rule, origin))
