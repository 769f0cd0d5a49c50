"""The engine's door: a call that can't be served is refused here, with the numbers; what passes is made into sequences.

Everything behind it may rely on ids that lie in the vocabulary and on lengths that fit.
"""

from collections.abc import Sequence as Seq

from branchpoint.runtime.errors import CapacityError, InvalidRequest
from branchpoint.runtime.generation import Generation, TokenTable
from branchpoint.runtime.lora.adapter import ADAPTER_BEGIN, Adapter
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import Call, ScoreCall
from branchpoint.runtime.pooling import Pooling
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scoring import ScoreTrie, Scoring
from branchpoint.runtime.sequence import Sequence

__all__ = ["Admission", "derive_seed"]

MASK64 = 2**64 - 1


def derive_seed(seed: int, index: int) -> int:
    """The seed of sample `index`: the call's own for the first, for the others a scrambled one (splitmix64's finaliser)."""
    if index == 0:
        return seed & MASK64
    mixed = (seed + index * 0x9E3779B97F4A7C15) & MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK64
    return mixed ^ (mixed >> 31)


class Admission:
    """Checks calls against a vocabulary, a context of `context_length` tokens, a pool that holds `capacity` tokens, and the
    adapters that are loaded.
    """

    def __init__(self, table: TokenTable, context_length: int, capacity: int, adapters: Adapters) -> None:
        self._table = table
        self._context_length = context_length
        self._capacity = capacity
        self._adapters = adapters

    def generations(self, call: Call, seed: int, arrival: int) -> list[Generation]:
        """A sequence for each sample; only the first collects the prompt's log-probabilities.

        Raises InvalidRequest, or CapacityError where the prompt and one token behind it can never fit.
        """
        sampling = call.sampling
        sampling.check_against(self._table.size)
        if sampling.close == "steer" and call.constraint is None:
            raise InvalidRequest('close="steer" needs a constraint, to whose end the output is steered; got none.', param="close")
        self._check_prompt(call.prompt, 0 if sampling.max_tokens == 0 else 1, "The prompt")
        last_row = len(call.prompt) - 1
        if sampling.prompt_logprobs_start > last_row:
            raise InvalidRequest(
                f"prompt_logprobs_start must lie inside the prompt of {len(call.prompt)} tokens, "
                f"got {sampling.prompt_logprobs_start}.",
                param="prompt_logprobs_start",
            )
        room = min(self._context_length, self._capacity) - len(call.prompt)
        max_output = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        generations, adapter = [], self._adapter(call)
        for index in range(sampling.n):
            sequence = self._sequence(call, index, call.prompt, sampling, adapter)
            sequence.seed = derive_seed(seed, index)
            sequence.max_output = max_output
            sequence.arrival = arrival
            if index == 0 and sampling.prompt_logprobs is not None:
                sequence.next_row = min(last_row, max(sampling.prompt_logprobs_start - 1, 0))
            generations.append(Generation(call, sequence, self._table, room))
        return generations

    def scorings(self, call: ScoreCall, arrival: int) -> list[Scoring]:
        """A sequence for each way through the trie of the call's continuations, or one to be pooled.

        Raises InvalidRequest, or CapacityError where a continuation can never fit.
        """
        if call.pooling:
            return [self._pooling(call, arrival)]
        if not call.continuations:
            raise InvalidRequest("continuations must hold at least one, got none.", param="continuations")
        self._check_prompt(call.prompt, 0, "The prompt")
        for index, continuation in enumerate(call.continuations):
            self._check_ids(continuation, "continuations")
            self._check_length(len(call.prompt) + len(continuation), 0, f"The prompt with continuation {index}")
        trie, scorings, adapter = ScoreTrie(call.continuations), [], self._adapter(call)
        for index, path in enumerate(trie.paths()):
            computed = (*call.prompt, *path.tokens)
            last = next(iter(path.own[-1].logprobs), None)
            tokens = computed if last is None else (*computed, last)
            sequence = self._sequence(call, index, tokens, SamplingParams(temperature=0.0), adapter)
            sequence.num_prompt = len(computed)
            sequence.next_row = len(computed) - len(path.own)
            sequence.max_output = len(tokens) - len(computed)
            sequence.goes_on = len(call.prompt)
            sequence.arrival = arrival
            scorings.append(Scoring(sequence, trie, path.own))
        return scorings

    def _pooling(self, call: ScoreCall, arrival: int) -> Pooling:
        if call.continuations:
            raise InvalidRequest("pooling takes no continuations; leave out one of them.", param="pooling")
        self._check_prompt(call.prompt, 0, "The prompt")
        sequence = self._sequence(call, 0, (*call.prompt, 0), SamplingParams(temperature=0.0), self._adapter(call))
        sequence.max_output = 0  # the token behind it is never computed: no page is needed for that
        sequence.arrival = arrival
        sequence.pooled = True
        sequence.next_row = 0 if call.pooling == "mean" else len(call.prompt) - 1
        return Pooling(sequence)

    def _adapter(self, call: Call | ScoreCall) -> Adapter | None:
        """The adapter of all sequences of a call. Raises UnknownModel, and InvalidRequest for a namespace that names one."""
        if ADAPTER_BEGIN in call.namespace:
            raise InvalidRequest(f"namespace must not contain {ADAPTER_BEGIN!r}.", param="namespace")
        return self._adapters.find(call.adapter) if call.adapter else None

    def _sequence(
        self, call: Call | ScoreCall, index: int, tokens: Seq[int], sampling: SamplingParams, adapter: Adapter | None
    ) -> Sequence:
        return Sequence(
            call_id=call.id,
            index=index,
            tokens=list(tokens),
            num_prompt=len(call.prompt),
            sampling=sampling,
            seed=0,
            namespace=call.namespace,
            next_row=len(call.prompt) - 1,
            hints=call.hints,
            adapter=adapter,
        )

    def _check_prompt(self, prompt: Seq[int], room: int, what: str) -> None:
        if not prompt:
            raise InvalidRequest("prompt must hold at least one token, got none.", param="prompt")
        self._check_ids(prompt, "prompt")
        self._check_length(len(prompt), room, what)

    def _check_ids(self, tokens: Seq[int], param: str) -> None:
        low, high = min(tokens, default=0), max(tokens, default=0)
        if low < 0 or high >= self._table.size:
            wrong = low if low < 0 else high
            raise InvalidRequest(f"{param} must hold token ids in [0, {self._table.size}), got {wrong}.", param=param)

    def _check_length(self, length: int, room: int, what: str) -> None:
        asked = f"{what} has {length} tokens" + (" and needs room for one more" if room else "")
        if length + room > self._context_length:
            raise CapacityError(f"{asked}; the context holds {self._context_length} tokens. Shorten it.", param="prompt")
        if length + room > self._capacity:
            remedy = "Shorten it, or give the engine more pages (num_pages, kv_memory_gib)."
            raise CapacityError(f"{asked}; the KV pool holds {self._capacity} tokens. {remedy}", param="prompt")
