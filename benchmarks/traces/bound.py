"""What recorded calls need at least, whatever an engine knows of them: how much faster any order of them could still be."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.traces.recorder import Answered
from benchmarks.traces.reuse import Reuse
from branchpoint.runtime.messages import ScoreCall

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Forward passes, and the tokens that they computed."""

    steps: int
    tokens: int

    @classmethod
    def least(cls, log: Sequence[tuple[str, Answered]]) -> "Work":
        """The longest chain of calls of which each waits for the one before, and what a cache computes that forgets nothing."""
        reuse, depth = Reuse(), dict[Answered, int]()
        reuse.add(log)
        for answered in (answered for what, answered in log if what == "made"):
            before = max((depth[needed] for needed in answered.waits_for), default=0)
            depth[answered] = before + _steps(answered)
        fed = sum(max(0, len(answered.output) - 1) for answered in depth)  # the last token of an output needs no KV
        return cls(max(depth.values()), reuse.prompt - reuse.possible + fed)

    def most_gained(self, least: "Work") -> float:
        """How many times as fast as this `least` can be, where a step costs something, and a token something more."""
        return max(self.steps / least.steps, self.tokens / least.tokens)


def _steps(answered: Answered) -> int:
    """Tokens that had to be drawn one after another."""
    usage = answered.usage
    assert usage is not None, f"call {answered.call.id} has not ended"
    if isinstance(answered.call, ScoreCall):
        return 1
    return max(1, usage.completion_tokens - usage.forced_tokens - usage.accepted_tokens)
