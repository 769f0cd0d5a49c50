"""Drafts from repetition: what followed the longest repeated end, in this request's own text or in recent outputs.

Suffix automata find it at any length; the longer the match, the more is guessed (Hu et al. 2024, SAM-Decoding).
"""

from collections import OrderedDict
from collections.abc import Mapping

from branchpoint.runtime.drafting.drafter import Proposal, ask_each
from branchpoint.runtime.drafting.suffix_automaton import Cursor, SuffixAutomaton
from branchpoint.runtime.sequence import Sequence

__all__ = ["SuffixDrafter"]

SHORTEST = 2
LONGEST_TEXT = 16_384
MAX_REMEMBERED = 65_536
MAX_NAMESPACES = 64
LONGEST_MATCH = 64
BETWEEN = -1
"""Stands between two remembered outputs; no token is."""


class SuffixDrafter:
    """Follows each sequence in an automaton of its own text, and in one of what its namespace said lately. See `Drafter`.

    Of a long prompt only the last `LONGEST_TEXT` tokens are looked at; of each namespace about `remembered` tokens of output are
    kept (0: none). Nothing is shared between namespaces. With more than one of `branches`, so many are guessed where different
    tokens followed.
    """

    name = "suffix"

    def __init__(self, *, remembered: int = MAX_REMEMBERED, branches: int = 1) -> None:
        self._remembered = remembered
        self._branches = branches
        self._memories: OrderedDict[str, _Memory] = OrderedDict()
        self._followed: dict[Sequence, _Followed] = {}

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. The grade is the logarithm of the matched length, larger by 8 for other outputs than the own text."""
        return ask_each(wanted, self._propose)

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        self._followed.pop(sequence, None)
        if kept and self._remembered and sequence.num_output > SHORTEST:
            memory = self._memories.setdefault(sequence.space, _Memory())
            self._memories.move_to_end(sequence.space)
            context = sequence.tokens[max(0, sequence.num_prompt - SHORTEST) : sequence.num_prompt]
            memory.add([*context, *sequence.output], self._remembered // 2)
            if len(self._memories) > MAX_NAMESPACES:
                self._memories.popitem(last=False)

    def close(self) -> None:
        """See `Drafter`."""
        self._memories.clear()
        self._followed.clear()

    def _propose(self, sequence: Sequence, count: int) -> Proposal | None:
        followed = self._followed.get(sequence)
        if followed is None or followed.mistaken != sequence.mistaken:
            followed = self._followed[sequence] = _Followed(sequence)
        memory = self._memories.get(sequence.space)
        followed.catch_up(sequence.tokens, memory)
        length, found, state, end = followed.best(memory)
        if length < SHORTEST:
            return None
        text, limit = found.tokens, min(count, 2 * length)
        line = Proposal(_continuation(text, end, limit), min(length.bit_length(), 7) + 8 * (found is not followed.own))
        if self._branches == 1:
            return line
        forks = found.forks(state, line.tokens, self._branches - 1)
        return line.beside((place, _continuation(text, at, limit - place)) for place, at in forks)


class _Memory:
    """Recent outputs in two automata: the older one goes when the newer is full."""

    def __init__(self) -> None:
        self.parts = [SuffixAutomaton(), SuffixAutomaton()]  # another list each time that they move on

    def add(self, output: list[int], most: int) -> None:
        if len(self.parts[-1].tokens) >= most:
            self.parts = [self.parts[-1], SuffixAutomaton()]
        newest = self.parts[-1]
        for token in output[:most]:
            newest.extend(token)
        newest.extend(BETWEEN)


class _Followed:
    """One sequence: the automaton of its text, and where it stands in the memory's."""

    def __init__(self, sequence: Sequence) -> None:
        self.own = SuffixAutomaton()
        self.mistaken = sequence.mistaken
        self._seen = max(0, sequence.num_tokens - LONGEST_TEXT)
        self._cursors = [Cursor(), Cursor()]
        self._parts: list[SuffixAutomaton] = []  # where the cursors stand; a forgotten namespace that comes again has others

    def catch_up(self, tokens: list[int], memory: _Memory | None) -> None:
        """Take in the tokens that came since the last time."""
        fresh = tokens[self._seen :]
        self._seen = len(tokens)
        for token in fresh:
            self.own.extend(token)
        if memory is None:
            self._parts = []
            return
        if self._parts is not memory.parts or len(fresh) > LONGEST_MATCH:
            self._parts, self._cursors = memory.parts, [Cursor(), Cursor()]
            fresh = self.own.tokens[-LONGEST_MATCH:]
        for part, cursor in zip(memory.parts, self._cursors, strict=True):
            for token in fresh:
                part.step(cursor, token)

    def best(self, memory: _Memory | None) -> tuple[int, SuffixAutomaton, int, int]:
        """The longest match: its length, where it is, its state and the position behind it there. Of equals its own text wins."""
        length, end = self.own.repeat
        found = (length, self.own, self.own.repeat_state, end)
        for part, cursor in zip(memory.parts if memory else (), self._cursors, strict=False):
            if cursor.length > found[0]:
                found = (cursor.length, part, cursor.state, part.ends[cursor.state])
        return found


def _continuation(text: list[int], end: int, count: int) -> tuple[int, ...]:
    """The `count` tokens at `end`; past the text's own end the stretch from `end` on repeats itself."""
    guesses = text[end : end + count]
    if BETWEEN in guesses:
        return tuple(guesses[: guesses.index(BETWEEN)])
    while guesses and len(guesses) < count and end + len(guesses) >= len(text):
        guesses.append(guesses[len(guesses) - (len(text) - end)])
    return tuple(guesses)
