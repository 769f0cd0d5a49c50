"""What a simulation gave: counts of the engine, and when programs were done."""

from dataclasses import dataclass, field
from statistics import mean

from branchpoint.runtime.messages import Usage

__all__ = ["Outcome"]


@dataclass(slots=True)
class Outcome:
    """`seconds` are simulated, `wall_seconds` what the engine's own Python took; `completions` the time of each program."""

    completions: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    longest_gap: float = 0.0

    def add(self, usage: Usage) -> None:
        """Count one call."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.prefilled_tokens += usage.prefilled_tokens
        self.preemptions += usage.preemptions

    @property
    def hit_rate(self) -> float:
        """Cached tokens by prompt tokens."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def mean_completion(self) -> float:
        """Seconds from a program's arrival to its end, on average."""
        return mean(self.completions)

    @property
    def p99_completion(self) -> float:
        """Seconds within which 99 % of the programs were done."""
        ordered = sorted(self.completions)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
