"""What one generation knows. No tensors: tokens, how many of them have KV, which pages hold it, where its grammar stands.

Made by the engine at admission, changed only by scheduler and engine, read by runner and sampler.
"""

from dataclasses import dataclass, field
from enum import Enum

from branchpoint.constrained.grammar import Matcher
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Sequence", "Status"]


class Status(Enum):
    """Where a sequence stands. COMPILING waits for its grammar, WAITING for pages, RUNNING is in the batch."""

    COMPILING = "compiling"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a call. `tokens` is prompt + output; the first `num_computed` of them have KV in `pages`."""

    call_id: str
    index: int
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams
    seed: int
    namespace: str = ""
    status: Status = Status.WAITING
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    matcher: Matcher | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens generated so far, forced and drafted ones included."""
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.num_prompt :]
