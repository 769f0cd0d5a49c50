"""A suffix automaton over a growing text: the longest part of it that some other text, or its own end, has just repeated.

Built token by token in constant time each (Blumer et al. 1985); `suffix.py` reads drafts out of it.
"""

from collections.abc import Sequence as Many

__all__ = ["Cursor", "SuffixAutomaton"]

CLIMB = 16
"""States above the newest whose latest end is renewed: enough for the matches that are long enough to matter."""


class SuffixAutomaton:
    """All substrings of `tokens`. State 0 is the empty one; lists are indexed by state.

    `lengths` are those of a state's longest substring, `links` the state of its longest proper suffix that occurs elsewhere,
    `ends` the position behind a late occurrence.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.lengths = [0]
        self.links = [-1]
        self.ends = [0]
        self._next: list[dict[int, int]] = [{}]
        self._last = 0
        self._repeat = (0, 0)

    @property
    def repeat(self) -> tuple[int, int]:
        """The longest end of the text that stands in it earlier: its length, and the position behind that occurrence."""
        return self._repeat

    @property
    def repeat_state(self) -> int:
        """The state of that longest end."""
        return max(0, self.links[self._last])

    def forks(self, state: int, line: Many[int], width: int) -> list[tuple[int, int]]:
        """Where, on the way along `line` from `state`, other tokens followed too: behind how many, and the position of each.

        At most `width` of each place, the latest first.
        """
        found = []
        for place, token in enumerate(line):
            following = self._next[state]
            others = sorted((self.ends[target] - 1 for other, target in following.items() if other != token), reverse=True)
            found += [(place, at) for at in others[:width]]
            if token not in following:
                break
            state = following[token]
        return found

    def extend(self, token: int) -> None:
        """Append a token."""
        self.tokens.append(token)
        end = len(self.tokens)
        state, at = self._add(self.lengths[self._last] + 1, 0, {}, end), self._last
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = state
            at = self.links[at]
        if at >= 0:
            self.links[state] = self._target(at, token)
        link = self.links[state]
        self._repeat = (self.lengths[link], self.ends[link])
        self._last = state
        for _ in range(CLIMB):
            if link <= 0:
                break
            self.ends[link] = end
            link = self.links[link]

    def step(self, cursor: "Cursor", token: int) -> None:
        """Move `cursor` to the longest substring here that ends the text it follows, now that `token` came."""
        state, length = cursor.state, cursor.length
        while state > 0 and length <= self.lengths[self.links[state]]:  # the state was split since
            state = self.links[state]
        while state > 0 and token not in self._next[state]:
            state = self.links[state]
            length = self.lengths[state]
        following = self._next[state].get(token)
        cursor.state, cursor.length = (0, 0) if following is None else (following, length + 1)

    def check(self) -> None:
        """Hold links, lengths and ends against the text. Raises AssertionError."""
        for state in range(1, len(self.lengths)):
            length, end, link = self.lengths[state], self.ends[state], self.links[state]
            assert self.lengths[link] < length <= end <= len(self.tokens), f"state {state} is out of order"
            suffix = self.tokens[end - self.lengths[link] : end]
            late = self.ends[link]
            assert link == 0 or suffix == self.tokens[late - self.lengths[link] : late], f"link of state {state} is no suffix"

    def _target(self, at: int, token: int) -> int:
        """The state that `at` leads to by `token`, split where longer substrings lead there too."""
        target = self._next[at][token]
        if self.lengths[target] == self.lengths[at] + 1:
            return target
        clone = self._add(self.lengths[at] + 1, self.links[target], dict(self._next[target]), self.ends[target])
        self.links[target] = clone
        while at >= 0 and self._next[at].get(token) == target:
            self._next[at][token] = clone
            at = self.links[at]
        return clone

    def _add(self, length: int, link: int, following: dict[int, int], end: int) -> int:
        self.lengths.append(length)
        self.links.append(link)
        self.ends.append(end)
        self._next.append(following)
        return len(self.lengths) - 1


class Cursor:
    """A place in an automaton: of the text that it follows, the last `length` tokens are a substring of `state`."""

    __slots__ = ("length", "state")

    def __init__(self) -> None:
        self.state = 0
        self.length = 0
