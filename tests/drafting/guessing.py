"""A drafter for tests that knows what the scripted model will say, and lies now and then."""

import random
from collections.abc import Mapping

from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.messages import Call
from branchpoint.runtime.sequence import Sequence
from tests.runtime.expected import expect
from tests.runtime.scripted import VOCABULARY


class Oracle:
    """Guesses the true continuation of each of `calls`, each token wrong with probability `lies`.

    With more than one of `branches` the guesses are a tree: up to so many tokens at each place, the true one among them.
    """

    name = "oracle"

    def __init__(self, calls: Mapping[str, Call], length: int, lies: float, seed: int = 0, branches: int = 1) -> None:
        self._truth: dict[tuple[str, int], list[int]] = {}
        self._calls = calls
        self._length = length
        self._lies = lies
        self._random = random.Random(seed)
        self._branches = branches
        self.finished: list[Sequence] = []

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        found = {}
        for sequence, count in wanted.items():
            key = (sequence.call_id, sequence.index)
            if key not in self._truth:
                self._truth[key] = expect(self._calls[sequence.call_id], sequence.index, self._length).tokens
            rest = self._truth[key][sequence.num_output :][:count]
            if self._branches > 1:
                found[sequence] = self._tree(rest, count)
                continue
            rest += [self._random.randrange(VOCABULARY) for _ in range(self._random.randrange(3))]
            tokens = [self._random.randrange(VOCABULARY) if self._random.random() < self._lies else token for token in rest]
            if tokens:
                found[sequence] = Proposal(tuple(tokens[:count]))
        return found

    def _tree(self, truth: list[int], count: int) -> Proposal:
        rng, tokens, depths = self._random, list[int](), list[int]()

        def grow(depth: int, *, is_true: bool) -> None:
            beside = {rng.randrange(VOCABULARY) for _ in range(rng.randrange(self._branches))}
            true = truth[depth] if is_true and depth < len(truth) and rng.random() >= self._lies else None
            others = [*beside, *([] if true is None else [true])]
            for token in rng.sample(others, len(others)):
                tokens.append(token)
                depths.append(depth)
                if depth + 1 < count and len(tokens) < 24 and (token == true or rng.random() < 0.4):
                    grow(depth + 1, is_true=token == true)

        grow(0, is_true=True)
        return Proposal(tuple(tokens), 0, (), tuple(depths))

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        self.finished.append(sequence)

    def close(self) -> None:
        self._truth.clear()


class Parrot:
    """Always guesses the same."""

    def __init__(self, *tokens: int, name: str = "parrot") -> None:
        self.name = name
        self._tokens = tokens

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        return {sequence: Proposal(self._tokens[:count]) for sequence, count in wanted.items() if self._tokens}

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        pass

    def close(self) -> None:
        pass


def all_of(drafter: object, most: int = 6, eos: frozenset[int] = frozenset(), *, adaptive: bool = False) -> Speculation:
    return Speculation((drafter,), most=most, ends=eos, adaptive=adaptive)  # type: ignore[arg-type]
