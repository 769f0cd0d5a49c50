"""One accepted call in the engine: its sequences, what they have in common, and the counts of its usage.

Made at the door (`admission.py`), owned by the engine until the call's one terminal event has been given out.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from itertools import chain

from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.spec import Narrowing
from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest, RuntimeFailure
from branchpoint.runtime.generation import Generation
from branchpoint.runtime.messages import Call, Completed, DrafterStats, Failed, ScoreCall, Scored, Usage
from branchpoint.runtime.pooling import Pooling
from branchpoint.runtime.scoring import Scoring
from branchpoint.runtime.sequence import Sequence, Status

__all__ = ["Group", "check_groups"]


class Group:
    """The samples of a Call, or the ways through the trie of a ScoreCall. `submitted`, `started`: seconds of the clock."""

    def __init__(self, call: Call | ScoreCall, members: Seq[Generation | Scoring], submitted: float) -> None:
        self.call = call
        self.members = {member.sequence: member for member in members}
        self.live = len(members)
        self.narrowed: tuple[Narrowing, ...] = ()
        self.submitted = submitted
        self.started: float | None = None
        self.mask_seconds = 0.0
        self.grammar_seconds = 0.0

    def begin(self, grammar: CompiledGrammar, now: float) -> None:
        """The grammar is there: each sample gets a matcher of its own."""
        self.grammar_seconds = now - self.submitted
        self.narrowed = grammar.narrowed
        for member in self.members.values():
            assert isinstance(member, Generation), "a call that only scores has a grammar"
            member.begin(grammar)

    def check(self) -> None:
        """Hold the count of what still runs against the members. Raises AssertionError."""
        left = sum(sequence.status is not Status.FINISHED for sequence in self.members)
        assert left == self.live > 0, f"call {self.call.id} counts {self.live} live sequences and has {left}"

    def usage(self) -> Usage:
        """The counts so far; all zero before the first sequence was admitted. See `messages.Usage`."""
        sequences = list(self.members)
        first = sequences[0]
        if first.cached is None:
            return Usage()
        if isinstance(self.call, ScoreCall):
            return self._scored(self.call)
        again = sum(sequence.recomputed for sequence in sequences) + sum(map(_unshared, sequences[1:]))
        generations = [member for member in self.members.values() if isinstance(member, Generation)]
        return Usage(
            prompt_tokens=first.num_prompt,
            cached_tokens=first.cached,
            prefilled_tokens=first.num_prompt - first.cached + again,
            completion_tokens=sum(generation.completion_tokens for generation in generations),
            forced_tokens=sum(generation.forced for generation in generations),
            drafters=_drafters(generations),
            drafted_tokens=sum(generation.drafted for generation in generations),
            accepted_tokens=sum(generation.accepted for generation in generations),
            preemptions=sum(sequence.preemptions for sequence in sequences),
            queue_seconds=self._queue_seconds,
            mask_seconds=self.mask_seconds,
            grammar_seconds=self.grammar_seconds,
        )

    @property
    def _queue_seconds(self) -> float:
        return (self.started or self.submitted) - self.submitted

    def _scored(self, call: ScoreCall) -> Usage:
        """Of prompt and continuations, what had to be computed so far; the rest was there, or needed no KV."""
        scorings = [member for member in self.members.values() if isinstance(member, Scoring)]
        prompt = len(call.prompt) + sum(map(len, call.continuations))
        computed = sum(scoring.computed for scoring in scorings)
        again = sum(sequence.recomputed for sequence in self.members)
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=max(0, prompt - (computed - again)),
            prefilled_tokens=computed,
            preemptions=sum(sequence.preemptions for sequence in self.members),
            queue_seconds=self._queue_seconds,
        )

    def result(self) -> Completed | Scored:
        """The terminal event of a call whose sequences have all ended well."""
        first = next(iter(self.members.values()))
        if isinstance(first, Scoring):
            vector = first.vector if isinstance(first, Pooling) else ()
            return Scored(self.call.id, first.trie.logprobs(), self.usage(), vector)
        return Completed(self.call.id, self.usage(), tuple(first.prompt_logprobs))

    def failure(self, error: BaseException) -> Failed:
        """The terminal event of a call that `error` ends; what isn't of our own tree is the engine's fault, not the caller's."""
        if isinstance(error, InvalidRequest | RuntimeFailure):
            return Failed(self.call.id, error.kind, str(error), error.param, self.usage())
        if isinstance(error, BranchpointError) and isinstance(error, ValueError):
            return Failed(self.call.id, InvalidRequest.kind, str(error), getattr(error, "param", None), self.usage())
        message = f"{type(error).__name__}: {str(error)[:500]}"
        return Failed(self.call.id, RuntimeFailure.kind, message, usage=self.usage())


def _drafters(generations: Seq[Generation]) -> tuple[DrafterStats, ...]:
    """Whose guesses were verified for these samples, and what came of them."""
    each = (Usage(drafters=generation.tally.stats()) for generation in generations)
    return sum(each, Usage()).drafters


def _unshared(sequence: Sequence) -> int:
    """Prompt tokens that a sequence after a call's first had to compute beyond the last one, which each needs itself."""
    return 0 if sequence.cached is None else max(0, sequence.num_prompt - 1 - sequence.cached)


def check_groups(groups: Collection[Group], owned: Iterable[Sequence], queues: Iterable[Iterable[Sequence]], queued: int) -> None:
    """Hold `groups` against the sequences in all queues, and the number of those that wait. Raises AssertionError."""
    live = {sequence for sequence in owned if sequence.status is not Status.FINISHED}
    assert live == {*chain.from_iterable(queues)}, "a live sequence is in no queue, or a queue holds one that has no call"
    assert queued == sum(group.started is None for group in groups), "queued calls are counted wrong"
    for group in groups:
        group.check()
