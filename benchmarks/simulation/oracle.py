"""Runs programs at no cost, with a cache that forgets nothing: how much work they are, and the best hit rate possible."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.simulation.runner import token_at
from benchmarks.simulation.scripts import Ask, Fork, Score, Script, call_seed
from benchmarks.trie import TokenTrie

__all__ = ["Oracle"]


@dataclass(slots=True)
class Oracle:
    """Tokens of all prompts, how many of them a perfect cache would have, all calls, and the longest context. Options that are
    scored count as prompt, and what they share needs computing once.
    """

    calls: int = 0
    prompt_tokens: int = 0
    best_cached: int = 0
    output_tokens: int = 0
    longest: int = 0
    distinct_tokens: int = 0

    @classmethod
    def of(cls, scripts: Iterable[Script]) -> "Oracle":
        """Run `scripts`, one after another. They are used up."""
        oracle, trie = cls(), TokenTrie()
        for index, script in enumerate(scripts):
            oracle._run(trie, script, index, ())
        oracle.distinct_tokens = trie.num_tokens
        return oracle

    @property
    def best_hit_rate(self) -> float:
        """Cached tokens by prompt tokens, where nothing is ever evicted."""
        return self.best_cached / max(1, self.prompt_tokens)

    @property
    def least_computed(self) -> int:
        """Tokens of prompts that must be computed, where nothing is ever evicted."""
        return self.prompt_tokens - self.best_cached

    def _run(self, trie: TokenTrie, script: Script, program: int, path: tuple[int, ...]) -> object:
        sent: object = None
        calls = forks = 0
        try:
            while True:
                deed = script.send(sent)
                sent = None
                if isinstance(deed, Ask):
                    sent = self._ask(trie, deed, call_seed(program, path, calls))
                    calls += 1
                elif isinstance(deed, Score):
                    self._score(trie, deed)
                elif isinstance(deed, Fork):
                    sent = [self._run(trie, each, program, (*path, forks, place)) for place, each in enumerate(deed.branches)]
                    forks += 1
        except StopIteration as end:
            return end.value

    def _ask(self, trie: TokenTrie, ask: Ask, seed: int) -> list[int]:
        length = len(ask.prompt)
        output = [token_at(seed, position) for position in range(length, length + ask.max_tokens)]
        self.calls += 1
        self.prompt_tokens += length
        self.output_tokens += ask.max_tokens
        self.best_cached += min(trie.add(ask.prompt), length - 1)  # the last token is always computed: it gives the next one
        trie.add((*ask.prompt, *output[:-1]))  # the last one sampled is never fed
        self.longest = max(self.longest, length + ask.max_tokens)
        return output

    def _score(self, trie: TokenTrie, score: Score) -> None:
        length, options = len(score.prompt), TokenTrie()
        for option in score.options:
            options.add(option[:-1])  # the last token is read, never fed
        self.calls += 1
        self.prompt_tokens += length + sum(map(len, score.options))
        self.best_cached += min(trie.add(score.prompt), length - 1) + sum(map(len, score.options)) - options.num_tokens
        for option in score.options:
            trie.add((*score.prompt, *option[:-1]))
        self.longest = max(self.longest, length + max(map(len, score.options)))
