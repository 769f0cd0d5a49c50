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
    """The `branches` different tokens that last followed each run of `CONTEXT` tokens or fewer, by namespace and grammar."""

    CONTEXT = 3

    def __init__(self, branches: int = 1) -> None:
        self._branches = branches
        self._known: OrderedDict[tuple[str, CompiledGrammar], OrderedDict[tuple[int, ...], tuple[int, ...]]] = OrderedDict()

    def remember(self, namespace: str, grammar: CompiledGrammar, tokens: Many[int], start: int) -> None:
        """An output of `grammar`: what `tokens` hold from `start` on."""
        places = self._known.setdefault((namespace, grammar), OrderedDict())
        self._known.move_to_end((namespace, grammar))
        for at in range(max(start, 1), len(tokens)):
            for length in range(1, min(self.CONTEXT, at) + 1):
                key = tuple(tokens[at - length : at])
                others = [token for token in places.get(key, ()) if token != tokens[at]]
                places[key] = (tokens[at], *others[: self._branches - 1])
                places.move_to_end(key)
        while len(places) > MAX_PLACES:
            places.popitem(last=False)
        if len(self._known) > MAX_GRAMMARS:
            self._known.popitem(last=False)

    def after(self, namespace: str, grammar: CompiledGrammar, history: Many[int]) -> tuple[int, ...]:
        """What followed the end of `history`, as much of it as is known, the latest first."""
        places = self._known.get((namespace, grammar))
        for length in range(min(self.CONTEXT, len(history)) if places else 0, 0, -1):
            assert places is not None
            tokens = places.get(tuple(history[-length:]))
            if tokens is not None:
                return tokens
        return ()

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
