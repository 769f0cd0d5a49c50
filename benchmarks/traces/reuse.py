"""How much of the prompts of a log was reused, and how much a perfect cache would have reused."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.traces.recorder import Answered
from benchmarks.trie import TokenTrie
from branchpoint.runtime.messages import ScoreCall

__all__ = ["Reuse"]


@dataclass(slots=True)
class Reuse:
    """Tokens: of all prompts, those that were not computed for them, and those that a perfect cache would not have computed. Of
    scored options too: what they share needs computing once, and their last tokens never.

    The perfect cache knows every prompt from the moment at which it is asked, and every output from its end. `distinct` are the
    tokens that it would hold at the end.
    """

    prompt: int = 0
    reused: int = 0
    possible: int = 0
    distinct: int = 0

    def add(self, log: Iterable[tuple[str, Answered]]) -> None:
        """Count the calls of `log`, which have all ended, and began with an empty cache."""
        trie = TokenTrie()
        for what, answered in log:
            call, usage = answered.call, answered.usage
            assert usage is not None, f"call {call.id} has not ended"
            if what == "ended":
                if not isinstance(call, ScoreCall):
                    trie.add(answered.computed)
                continue
            needed = len(call.prompt) - min(trie.add(call.prompt), len(call.prompt) - 1)  # the last one is always computed
            if isinstance(call, ScoreCall):
                options = TokenTrie()
                for option in call.continuations:
                    options.add(option[:-1])
                needed += options.num_tokens
            self.prompt += usage.prompt_tokens
            self.reused += usage.prompt_tokens - usage.prefilled_tokens
            self.possible += usage.prompt_tokens - needed
        self.distinct += trie.num_tokens

    @property
    def rate(self) -> float:
        """Reused tokens by prompt tokens."""
        return self.reused / self.prompt

    @property
    def best(self) -> float:
        """The rate of a perfect cache."""
        return self.possible / self.prompt
