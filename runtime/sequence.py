"""What one generation knows. No tensors: tokens, how many of them have KV, which pages hold it, where its grammar stands.

Made by the engine at admission, changed only by scheduler and engine, read by runner and sampler.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from branchpoint.constrained.grammar import CompiledGrammar, Matcher, Residue
from branchpoint.radix import Standing
from branchpoint.runtime.lora.adapter import ADAPTER_BEGIN, Adapter
from branchpoint.runtime.messages import Hints
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Sequence", "Status"]

_FADING = 0.9


class Status(Enum):
    """Where a sequence stands. COMPILING waits for its grammar, WAITING for pages, RUNNING is in the batch."""

    COMPILING = "compiling"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a call, or one way through what is scored. `tokens` is prompt + output; the first `num_computed` of them have
    KV in `pages`.

    Output ends at `max_output` tokens. `next_row` is the first position whose logits somebody still wants; all after it are
    wanted too. `arrival` numbers the calls in the order in which they came, `turn` their programs by age. The last fields count
    what usage reports: `cached` are the prompt tokens that others had computed (None before the first admission), `peak` the most
    tokens that ever had KV, `recomputed` those that were computed once more after a preemption. `grammar` is what `matcher` is a
    cursor in; a matcher that broke on a guess is made anew from it. Nothing is drafted where `draftable` is false. `residue` is
    what is left to ask about what this step draws, None where the masks tell all. `asked` are the tokens whose log-probabilities
    a row is asked for, by position: a way's prompt are all its tokens but the last.
    Its last `untaken` tokens were drawn, and not taken in yet: the matcher stands before them; `mistaken` counts how often they
    were other ones when they were.
    Where it is `pooled`, hidden states are wanted of its rows instead of logits. Its tokens are computed with `adapter`.
    `goes_on` counts the tokens that its program goes on from in any case; None where that is all of them, as it isn't for one of
    several ways. `mask_cost` are the CPU seconds that a token's mask has taken lately at worst, `passed_over` the steps that
    it has waited for its turn on account of them.
    """

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
    max_output: int = 2**31
    next_row: int = 0
    arrival: int = 0
    turn: int = 0
    hints: Hints = Hints()
    cached: int | None = None
    peak: int = 0
    recomputed: int = 0
    preemptions: int = 0
    grammar: CompiledGrammar | None = None
    draftable: bool = True
    residue: Residue | None = None
    untaken: int = 0
    mistaken: int = 0
    asked: dict[int, tuple[int, ...]] = field(default_factory=dict)
    pooled: bool = False
    adapter: Adapter | None = None
    goes_on: int | None = None
    mask_cost: float = 0.0
    passed_over: int = 0

    def note_mask(self, seconds: float) -> None:
        """A token's mask, or what was asked about it, took so long; what is slow once is taken for slow for some tokens more."""
        self.mask_cost = max(seconds, _FADING * self.mask_cost)

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens generated so far, forced and drafted ones included."""
        return len(self.tokens) - self.num_prompt

    @property
    def guide(self) -> Matcher | None:
        """Its matcher, where that stands behind all tokens: whoever guesses asks this one."""
        return None if self.untaken else self.matcher

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.num_prompt :]

    @property
    def samples(self) -> bool:
        """Whether a token is to be drawn behind the last one."""
        return self.num_output < self.max_output

    @property
    def target(self) -> int:
        """How many tokens need KV before the next decision. The last token of an output that is complete needs none."""
        return self.num_tokens if self.samples or self.num_output == 0 else self.num_tokens - 1

    @property
    def final_length(self) -> int:
        """Tokens that the next decision may bring the sequence to: what it needs room for."""
        return min(self.num_tokens + 1, self.num_prompt + self.max_output)

    @property
    def looks_back(self) -> bool:
        """Whether what may be drawn behind a token hangs on it by more than the logits: by a grammar or by penalties."""
        return self.matcher is not None or self.sampling.penalises

    @property
    def in_prefill(self) -> bool:
        """Whether prompt tokens are still without KV, or others that had it before a preemption."""
        return self.num_computed < max(self.num_prompt, self.peak)

    @property
    def program(self) -> Hashable:
        """The program that it belongs to: a name within its namespace. A call of none is one of its own."""
        return (self.namespace, self.hints.program) if self.hints.program else self.call_id

    @property
    def space(self) -> str:
        """The namespace of its KV, and of what is guessed from what others said: its own, with its adapter."""
        return self.namespace if self.adapter is None else f"{self.namespace}{ADAPTER_BEGIN}{self.adapter.identity}"

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sorts the important before the others, then the old before the young."""
        return (-self.hints.priority, self.arrival, self.index)

    @property
    def standing(self) -> Standing:
        """Compares what this sequence has, or will need again, with what others have: priority, then the older program."""
        return (self.hints.priority, -self.turn)

    def note_match(self) -> None:
        """Count an admission, at which `num_computed` tokens were found in the cache."""
        known = min(self.peak, self.num_prompt)
        self.cached = (self.cached or 0) + max(0, min(self.num_computed, self.num_prompt) - known)
        self.recomputed += max(0, self.peak - self.num_computed)
        self.peak = max(self.peak, self.num_computed)

    def confirm(self, position: int) -> None:
        """The token at `position` was computed as a guess, and is what the sequence has there."""
        self.num_computed = position + 1
        self.peak = max(self.peak, self.num_computed)

    def rows(self, start: int, count: int) -> tuple[int, ...]:
        """The positions among `count` from `start` on whose logits are wanted."""
        last = self.num_tokens if self.samples else self.num_tokens - 1
        return tuple(range(max(start, self.next_row), min(start + count, last)))
