"""What outputs of each grammar said after the same few tokens: the memory of the drafter `grammar`.

Grown when an output is whole; bounded by the number of grammars and of places in each.
"""

from collections import OrderedDict
from collections.abc import Sequence as Many

from branchpoint.constrained.grammar import CompiledGrammar

__all__ = ["Choices"]

MAX_GRAMMARS = 64
MAX_PLACES = 8192


class Choices:
    """The token that last followed each run of `CONTEXT` tokens or fewer, by namespace and grammar."""

    CONTEXT = 3

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, CompiledGrammar], OrderedDict[tuple[int, ...], int]] = OrderedDict()

    def remember(self, namespace: str, grammar: CompiledGrammar, tokens: Many[int], start: int) -> None:
        """An output of `grammar`: what `tokens` hold from `start` on."""
        places = self._known.setdefault((namespace, grammar), OrderedDict())
        self._known.move_to_end((namespace, grammar))
        for at in range(max(start, 1), len(tokens)):
            for length in range(1, min(self.CONTEXT, at) + 1):
                key = tuple(tokens[at - length : at])
                places[key] = tokens[at]
                places.move_to_end(key)
        while len(places) > MAX_PLACES:
            places.popitem(last=False)
        if len(self._known) > MAX_GRAMMARS:
            self._known.popitem(last=False)

    def after(self, namespace: str, grammar: CompiledGrammar, history: Many[int]) -> int | None:
        """What followed the end of `history` last time, as much of it as is known; None where nothing is."""
        places = self._known.get((namespace, grammar))
        for length in range(min(self.CONTEXT, len(history)) if places else 0, 0, -1):
            assert places is not None
            token = places.get(tuple(history[-length:]))
            if token is not None:
                return token
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
