"""What one sample has said so far: from sampled tokens to final text. Used by the engine, one object for each sample.

Stops, healed bytes and unfinished characters are dealt with here, so that text and tokens which were given out once are never
taken back.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from branchpoint.runtime.detokenizer import Detokenizer
from branchpoint.runtime.messages import TokenLogprob
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.stop import StopMatch, StopScanner

__all__ = ["Piece", "SampleOutput", "StopHit"]


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string fired. The first `kept` pushed tokens are the output; the others are as if never made."""

    stop: str
    kept: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Output that became final: text, the tokens that end within it, and their log-probabilities where they were given.

    `forced` are the stretches of the text, from one character up to another, that forced tokens gave.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    forced: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class SampleOutput:
    """Collects the tokens of one sample.

    `token_bytes` gives a token's bytes (a special token's are its text), `special` are the ids that `skip_special_tokens` hides.
    The first `len(heal)` bytes repeat the end of the prompt: they are swallowed. Stop strings count only after `min_tokens`.
    A hidden special token whose text is a stop string fires it too.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], special: frozenset[int], sampling: SamplingParams, heal: bytes = b""
    ) -> None:
        self._token_bytes = token_bytes
        self._hidden = special if sampling.skip_special_tokens else frozenset[int]()
        self._sampling = sampling
        self._to_swallow = len(heal)
        self._scanner = StopScanner(sampling.stop) if sampling.stop else None
        self._detokenizer = Detokenizer()
        self._tokens: list[int] = []
        self._ends: list[int] = []  # for each token, the byte of the output at which it ends
        self._logprobs: list[TokenLogprob | None] = []
        self._forced = set[int]()  # places of the tokens that the grammar left no choice about
        self._pending = bytearray()  # bytes [taken, total) of the output
        self._total = 0
        self._taken = 0
        self._taken_tokens = 0
        self.hit: StopHit | None = None
        self._limit: int | None = None  # byte at which the output ends, once a stop fired

    def push(self, token: int, logprob: TokenLogprob | None = None, *, forced: bool = False) -> StopHit | None:
        """Append a token; the stop that it completes, if any. Nothing may be pushed after a stop or `finish`."""
        assert self._limit is None, "a token was pushed after the end of the output"
        data = self._token_bytes(token)
        if token in self._hidden:
            hidden, data = data, b""
        else:
            hidden = b""
            swallowed = min(self._to_swallow, len(data))
            self._to_swallow -= swallowed
            data = data[swallowed:]
        if forced:
            self._forced.add(len(self._tokens))
        self._tokens.append(token)
        self._logprobs.append(logprob)
        self._append(data)
        if self._scanner is None:
            return None
        if len(self._tokens) <= self._sampling.min_tokens:
            self._scanner.skip(data)
            return None
        match = self._scanner.feed(data)
        if match is None and hidden.decode("utf-8", "replace") in self._sampling.stop:
            match = self._scanner.finish() or self._hidden_stop(hidden)
        return self._stop(match) if match else None

    def take(self) -> Piece:
        """What became final since the last call. Without stops that is everything but an unfinished character."""
        final = self._total if self._scanner is None else self._scanner.safe
        return self._release(final if self._limit is None else self._limit, last=False)

    def finish(self) -> Piece:
        """The output has ended: the rest. `hit` is set where a stop turned out to have fired (see StopScanner.finish)."""
        if self._limit is None:
            match = self._scanner.finish() if self._scanner else None
            if match:
                self._stop(match)
            else:
                self._limit = self._total
        assert self._limit is not None
        return self._release(self._limit, last=True)

    def _append(self, data: bytes) -> None:
        self._pending += data
        self._total += len(data)
        self._ends.append(self._total)

    def _hidden_stop(self, hidden: bytes) -> StopMatch:
        """The text of a hidden special token is a stop: here it enters the output, to be shown where stops are included."""
        start = self._total
        self._pending += hidden
        self._total = self._ends[-1] = start + len(hidden)
        return StopMatch(hidden.decode(), start, self._total)

    def _stop(self, match: StopMatch) -> StopHit:
        self._limit = match.end if self._sampling.include_stop else match.start
        self.hit = StopHit(match.stop, bisect_right(self._ends, self._limit))
        return self.hit

    def _release(self, end: int, *, last: bool) -> Piece:
        first, self._taken_tokens = self._taken_tokens, bisect_right(self._ends, end)
        text, forced = self._decode(first, end)
        if last:
            text += self._detokenizer.flush()
        del self._pending[: end - self._taken]
        self._taken = end
        span = slice(first, self._taken_tokens)
        logprobs = tuple(entry for entry in self._logprobs[span] if entry is not None)
        return Piece(text, tuple(self._tokens[span]), logprobs, forced)

    def _decode(self, first: int, end: int) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text up to byte `end`, to which the tokens from `first` on add, and its forced stretches."""
        data = bytes(self._pending[: end - self._taken])
        if not any(place in self._forced for place in range(first, len(self._tokens))):
            return self._detokenizer.push(data), ()
        text, at, forced = "", 0, list[tuple[int, int]]()
        for place in range(first, len(self._tokens)):
            until = min(self._ends[place], end) - self._taken
            start, text, at = len(text), text + self._detokenizer.push(data[at:until]), until
            if place in self._forced and len(text) > start:
                if forced and forced[-1][1] == start:
                    start = forced.pop()[0]
                forced.append((start, len(text)))
        return text, tuple(forced)
