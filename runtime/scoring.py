"""A call that only scores: its continuations as a trie, each of whose tokens is computed, and each of whose rows read, once.

The engine makes a `Scoring` for each way through the trie; nothing is sampled. `generation.py` is its sibling for calls that
generate.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from branchpoint.runtime.generation import Finish
from branchpoint.runtime.plan import RowResult, Slot
from branchpoint.runtime.sequence import Sequence

__all__ = ["Path", "ScoreNode", "ScoreTrie", "Scoring"]


@dataclass(slots=True, eq=False)
class ScoreNode:
    """A beginning that continuations share: `logprobs` of each token that goes on from it, None where not known yet."""

    logprobs: dict[int, float | None] = field(default_factory=dict)
    children: dict[int, "ScoreNode"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Path:
    """The `tokens` from the prompt's end to a place where no continuation goes two tokens further.

    `own` are the nodes on its way that no earlier path has, the last ones of it.
    """

    tokens: tuple[int, ...]
    own: tuple[ScoreNode, ...]


class ScoreTrie:
    """The continuations of one call. Only tokens with another behind them need computing: they are the nodes but for the root."""

    def __init__(self, continuations: Seq[Seq[int]]) -> None:
        self._continuations = continuations
        self._root = ScoreNode()
        for continuation in continuations:
            node = self._root
            for place, token in enumerate(continuation):
                node.logprobs.setdefault(token)
                if place < len(continuation) - 1:
                    node = node.children.setdefault(token, ScoreNode())

    def paths(self) -> Iterator[Path]:
        """All ways to the leaves, those that share a beginning next to each other."""
        tokens, own = list[int](), [self._root]
        waiting = [iter(self._root.children.items())]
        while waiting:
            token, node = next(waiting[-1], (None, None))
            if token is not None and node is not None:
                tokens.append(token)
                own.append(node)
                waiting.append(iter(node.children.items()))
                continue
            if own:  # not since the last path: the way ends here
                yield Path(tuple(tokens), tuple(own))
                own = []
            waiting.pop()
            del tokens[-1:]

    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        """Of each token of each continuation, once all paths are computed."""
        return tuple(tuple(self._along(continuation)) for continuation in self._continuations)

    def _along(self, continuation: Seq[int]) -> Iterator[float]:
        node = self._root
        for token in continuation:
            logprob = node.logprobs[token]
            assert logprob is not None, "a continuation was given out before it was scored"
            yield logprob
            node = node.children.get(token, node)


class Scoring:
    """One way through `trie`. `sequence` is prompt and path, and any one token behind, so that all of the path is computed.

    Its first wanted row is that of its first own node.
    """

    def __init__(self, sequence: Sequence, trie: ScoreTrie, own: Seq[ScoreNode]) -> None:
        self.sequence = sequence
        self.trie = trie
        self._left = iter(own)
        sequence.asked = {sequence.next_row + place: tuple(node.logprobs) for place, node in enumerate(own) if node.logprobs}

    @property
    def computed(self) -> int:
        """Tokens that had to be computed for it so far, those that a preemption cost included; 0 before its admission."""
        sequence = self.sequence
        return 0 if sequence.cached is None else sequence.target - sequence.cached + sequence.recomputed

    def commit(self, slot: Slot, rows: Seq[RowResult]) -> Finish | None:
        """Take in the rows of `slot`; a Finish once every node has its log-probabilities."""
        for row in rows:
            node = next(self._left)
            assert len(row.asked) == len(node.logprobs), f"a row at {slot.start} came back without what was asked of it"
            node.logprobs.update(zip(node.logprobs, row.asked, strict=True))
        return Finish("length") if self.sequence.num_computed >= self.sequence.target else None
