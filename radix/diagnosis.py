"""Why prompts don't share more: long stretches that are the same in two prompts, but stand behind an early difference.

Asked on demand with the prompts of late (a bounded ring that the caller keeps) or with `RadixTree.recent`. The cost is
bounded: stretches are found by hashes of sampled runs of tokens (winnowing by content, Schleimer et al., SIGMOD 2003), then
compared exactly.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from branchpoint.radix.key import PrefixKey, common_prefix

__all__ = ["LostReuse", "find_lost_reuse"]

MAX_PROMPTS = 256
MAX_TOKENS = 32_768
GRAM = 16  # tokens in a hashed run
SAMPLED = 8  # one run in so many is hashed
MAX_PARTNERS = 4
MAX_RUNS = 64
MAX_QUOTED = 16


@dataclass(frozen=True, slots=True)
class LostReuse:
    """`num_prompts` prompts of `namespace` agree with earlier ones on `at` tokens, then differ, and agree again behind that.

    `before` are the last tokens that agree; `here` and `there` what stands in a prompt and in the earlier one from the first
    differing token to where they agree again (at least one token, at most `MAX_QUOTED`). `lost_tokens` of all the prompts
    together would have been in the cache if the difference had come last.
    """

    namespace: str
    at: int
    before: tuple[int, ...]
    here: tuple[int, ...]
    there: tuple[int, ...]
    num_prompts: int
    lost_tokens: int

    def describe(self, decode: Callable[[list[int]], str]) -> str:
        """The finding in words, tokens as text."""
        before, here, there = (repr(decode(list(tokens))) for tokens in (self.before, self.here, self.there))
        return (
            f"{self.num_prompts} prompts agree with earlier ones on {self.at} tokens, up to {before}; then comes {here}, where "
            f"an earlier one has {there}. {self.lost_tokens} tokens behind that are the same and were computed again: put what "
            "changes behind what doesn't."
        )


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: "array[int]"
    runs: dict[int, int]  # hash of a sampled run → where it first stands


def find_lost_reuse(prompts: Iterable[PrefixKey], *, min_tokens: int = 64, most: int = 10) -> list[LostReuse]:
    """The `most` costly places where prompts differ early, though at least `min_tokens` tokens behind are the same.

    `prompts` come in the order of their use; the last `MAX_PROMPTS` and of each the first `MAX_TOKENS` tokens are looked at.
    What an earlier prompt shares from the start isn't lost, however many others differ. Stretches under about 64 tokens may
    be missed.
    """
    spaces: dict[str, list[PrefixKey]] = defaultdict(list)
    for key in list(prompts)[-MAX_PROMPTS:]:
        spaces[key.namespace].append(key)
    found: dict[tuple[str, int, bytes], LostReuse] = {}
    for namespace, keys in spaces.items():
        for place, loss in _losses(namespace, keys, min_tokens):
            name = (namespace, loss.at, place)
            known = found.get(name)
            if known:
                num_prompts, lost = known.num_prompts + 1, known.lost_tokens + loss.lost_tokens
                loss = replace(known, num_prompts=num_prompts, lost_tokens=lost)
            found[name] = loss
    return sorted(found.values(), key=lambda loss: -loss.lost_tokens)[:most]


def _losses(namespace: str, keys: list[PrefixKey], min_tokens: int) -> Iterator[tuple[bytes, LostReuse]]:
    """For each prompt the greatest loss against earlier ones, and the prefix on which the two agree."""
    earlier: list[_Prompt] = []
    ordered: list[tuple[int, ...]] = []
    holders: dict[int, list[int]] = defaultdict(list)  # hash → numbers of the earlier prompts that have it
    for key in keys:
        prompt = _sample(key)
        reused = _longest_shared(ordered, tuple(prompt.tokens))
        behind = (run for run, at in prompt.runs.items() if at >= reused)
        partners = Counter(number for run in behind for number in holders.get(run, ()))
        losses = [_compare(namespace, prompt, earlier[number], reused) for number, _ in partners.most_common(MAX_PARTNERS)]
        worst = max(losses, key=lambda loss: loss.lost_tokens, default=None)
        if worst is not None and worst.lost_tokens >= min_tokens:
            yield prompt.tokens[: worst.at].tobytes(), worst
        for run in prompt.runs:
            holders[run] = [*holders[run][1 - MAX_PARTNERS :], len(earlier)]
        earlier.append(prompt)


def _sample(key: PrefixKey) -> _Prompt:
    """Hash the runs that begin at places chosen by content, so that they are the same in every prompt that has them."""
    tokens = key.packed[:MAX_TOKENS]
    chosen = [at for at, (one, two) in enumerate(pairwise(tokens)) if ((one * 2654435761 ^ two * 40503) >> 7) % SAMPLED == 0]
    runs: dict[int, int] = {}
    for at in chosen:
        if at + GRAM <= len(tokens):
            runs.setdefault(hash(tokens[at : at + GRAM].tobytes()), at)
    return _Prompt(tokens, runs)


def _longest_shared(ordered: list[tuple[int, ...]], tokens: tuple[int, ...]) -> int:
    """The longest prefix shared with any of `ordered`, into which `tokens` are put: one of the two neighbours has it."""
    at = bisect_left(ordered, tokens)
    neighbours = ordered[max(0, at - 1) : at + 1]
    ordered.insert(at, tokens)
    packed = array("q", tokens)
    return max((common_prefix(packed, array("q", other)) for other in neighbours), default=0)


def _compare(namespace: str, prompt: _Prompt, other: _Prompt, reused: int) -> LostReuse:
    """Where the two part, where they meet again, and how many tokens behind `reused` are the same."""
    here, there = prompt.tokens, other.tokens
    parted = common_prefix(here, there)
    at, other_at, lost = parted, parted, 0
    meet: tuple[int, int] | None = None
    runs = 0
    for run, start in prompt.runs.items():
        other_start = other.runs.get(run, -1)
        if start < at or other_start < other_at or runs == MAX_RUNS:
            continue
        while start > at and other_start > other_at and here[start - 1] == there[other_start - 1]:
            start, other_start = start - 1, other_start - 1
        length = common_prefix(here[start:], there[other_start:])
        if length < GRAM:
            continue  # two runs of one hash
        meet = meet or (start, other_start)
        at, other_at = start + length, other_start + length
        lost += max(0, at - max(start, reused))
        runs += 1
    end, other_end = meet or (parted + MAX_QUOTED, parted + MAX_QUOTED)
    return LostReuse(
        namespace,
        parted,
        before=tuple(here[max(0, parted - MAX_QUOTED // 2) : parted]),
        here=tuple(here[parted : min(max(end, parted + 1), parted + MAX_QUOTED)]),
        there=tuple(there[parted : min(max(other_end, parted + 1), parted + MAX_QUOTED)]),
        num_prompts=1,
        lost_tokens=lost,
    )
