"""One sample of a call: turns the rows that the model gave into tokens, matcher moves and final output.

The engine makes one for each sample, hands it the committed rows of its slot and asks it what became final. `scoring.py` is
its sibling for calls that only score.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from branchpoint.constrained.engines.steered import Limit, SteerableGrammar
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.runtime.drafting.tally import Tally
from branchpoint.runtime.errors import RuntimeFailure
from branchpoint.runtime.messages import Call, FinishReason, TokenLogprob
from branchpoint.runtime.output import Piece, SampleOutput
from branchpoint.runtime.plan import RowResult, Slot
from branchpoint.runtime.sequence import Sequence

__all__ = ["Finish", "Generation", "TokenTable"]


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What the engine knows of a vocabulary: `size` ids (the width of logits), those that end a text, those with no text of
    their own, and the bytes of each.
    """

    size: int
    eos: frozenset[int]
    special: frozenset[int]
    bytes_of: Callable[[int], bytes]

    def logprob(self, token: int, value: float | None, top: tuple[tuple[int, float], ...]) -> TokenLogprob:
        """A reported token, with the bytes of it and its alternatives."""
        return TokenLogprob(token, value, self.bytes_of(token), tuple((other, each, self.bytes_of(other)) for other, each in top))


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sample ended; `stop` is the string or token id that ended it."""

    reason: FinishReason
    stop: str | int | None = None


class Generation:
    """The output of `sequence`, which has room for `room` tokens of it. `prompt_logprobs` and the counts are complete once
    `commit` has given a Finish.

    Tokens that only repeat bytes cut from the prompt (`Call.heal`) count neither as output nor towards `max_tokens`.
    """

    def __init__(self, call: Call, sequence: Sequence, table: TokenTable, room: int) -> None:
        self.sequence = sequence
        self.prompt_logprobs: list[TokenLogprob] = []
        self.decoded = 0
        self.forced = 0
        self.drafted = 0
        self.accepted = 0
        self.agreed: list[int] = []  # which guesses of the last slot turned out right
        self.tally = Tally()
        self._sampling = call.sampling
        self._constrained = call.constraint is not None
        self._unhealed = len(call.heal)
        self._repeated = 0  # leading tokens of the output that only repeat what was cut from the prompt
        self._pushed = 0
        self._table = table
        self._room = room
        self._output = SampleOutput(table.bytes_of, table.special, call.sampling, call.heal)
        self._ending: Finish | None = None  # decided, but rows of the last tokens are still to come
        if sequence.index == 0 and call.sampling.prompt_logprobs is not None and call.sampling.prompt_logprobs_start == 0:
            self.prompt_logprobs.append(table.logprob(call.prompt[0], None, ()))

    @property
    def completion_tokens(self) -> int:
        """Tokens that were made: those of a stop, which are not part of the output, too."""
        return self.decoded + self.forced + self.accepted

    def begin(self, grammar: CompiledGrammar) -> None:
        """The grammar is there: what it forces at the start is computed together with the prompt.

        Raises TooFewTokens where it is to be steered and no complete output is known that fits.
        """
        if self._sampling.close == "steer":
            assert isinstance(grammar, SteerableGrammar), "a grammar that is to be steered was compiled to be"
            grammar = grammar.within(Limit(self.sequence.max_output, self._room, self._unhealed))
        self.sequence.matcher, self.sequence.grammar = grammar.matcher(), grammar
        self.sequence.draftable = self._constrained  # one that only heals goes in the middle of a draft
        self._ending = self._force()
        if self._ending:
            self._close()

    def commit(self, slot: Slot, rows: Seq[RowResult], forced: Seq[tuple[int, ...]] = ()) -> Finish | None:
        """Take in the rows of `slot`, whose tokens have KV now. A Finish says that this sample has ended.

        Rows behind guesses are taken while the guesses are what was drawn (or forced); there may be fewer than the slot has. What
        is `forced` behind guesses was found out as they were masked, from the first that wasn't known by then.
        Raises RuntimeFailure where such a row is unusable.
        """
        sequence = self.sequence
        first_masked = max(sequence.num_tokens, slot.first_guess)
        self.agreed = []
        self.drafted += len(slot.draft)
        for at, row in self._way(slot, rows) if slot.draft else zip(slot.rows, rows, strict=True):
            finish, position = None, slot.position_of(at) if slot.depths else at
            if at >= slot.first_guess and not self._confirm(slot, at, row):
                break
            if position + 1 < sequence.num_prompt:
                self.prompt_logprobs.append(self._table.logprob(sequence.tokens[position + 1], row.known, row.top))
            elif position + 1 < sequence.num_tokens:
                if self._sampling.logprobs is not None:
                    finish = self._push_forced(sequence.tokens[position + 1], row)
            elif sequence.samples:
                behind = position + 1 - first_masked
                finish = self._take(row, slot, at, forced[behind] if behind < len(forced) else None)
            if finish:
                return finish
        if not sequence.samples and sequence.num_computed >= sequence.target:
            return self._ending or self._spent()
        return None

    def take(self) -> Piece:
        """Output that became final since the last call."""
        return self._output.take()

    def close(self, finish: Finish) -> tuple[Piece, Finish]:
        """The rest of the output, and how it really ended; cuts the sequence down to what is part of the output."""
        piece = self._output.finish()
        hit = self._output.hit
        if hit:
            del self.sequence.tokens[self.sequence.num_prompt + hit.kept :]
            return piece, Finish("stop", hit.stop)
        return piece, finish

    def _way(self, slot: Slot, rows: Seq[RowResult]) -> Iterator[tuple[int, RowResult]]:
        """The rows of `slot` that count, by number: behind what is certain those of guesses that have come true when asked."""
        certain, tokens = len(slot.rows) - len(slot.draft), self.sequence.tokens
        yield from zip(slot.rows[:certain], rows, strict=False)
        at: int | None = slot.first_guess - 1
        while at is not None and (following := slot.position_of(at) + 1) < len(tokens):
            at = slot.row_behind(at, tokens[following])
            if at is None or certain + at - slot.first_guess >= len(rows):
                return
            yield at, rows[certain + at - slot.first_guess]

    def _confirm(self, slot: Slot, at: int, row: RowResult) -> bool:
        """Whether row number `at`, that of a guess which came true, holds. Its token has KV then.

        Where a forced token stands behind it that isn't the first guess, and its log-probability is asked, the row is wanted once
        more; so it is where the residue refuses what was drawn behind it.
        """
        sequence, position = self.sequence, slot.position_of(at)
        following = position + 1
        self._agree(slot, at)
        reported = self._sampling.logprobs is not None and following < sequence.num_tokens
        if reported and slot.guess_behind(at) != sequence.tokens[following]:
            return False
        if following == sequence.num_tokens and self._is_refused(row):
            return False
        sequence.confirm(position)
        sequence.next_row = max(sequence.next_row, following)
        if failure := row.failure:
            raise failure
        return True

    def _agree(self, slot: Slot, at: int) -> None:
        """The guess of row number `at` came true."""
        guess = at - slot.first_guess
        if guess not in self.agreed[-1:]:
            self.agreed.append(guess)

    def _is_refused(self, row: RowResult) -> bool:
        """Whether what was drawn behind a guess leads nowhere, which is only told once the matcher stands there."""
        residue = self.sequence.residue
        return residue is not None and row.token is not None and not residue.allows(row.token)

    def _take(self, row: RowResult, slot: Slot, at: int, forced: Seq[int] | None) -> Finish | None:
        """Accept the token that was sampled in row number `at` of `slot`, and what the grammar forces behind it: that is
        `forced`, if it is known, where the token is the guess there.
        """
        token = row.token
        assert token is not None, "a row that was to be sampled has no token"
        logprob = None
        if self._sampling.logprobs is not None:
            logprob = self._table.logprob(token, row.logprob, row.top)
        guessed = slot.row_behind(at, token) if slot.draft else None
        if guessed is not None:
            self._agree(slot, guessed)
        if not self._repeats(token):
            self.accepted += guessed is not None
            self.decoded += guessed is None
        finish = self._append(token)
        if finish is None or self._sampling.include_stop:
            finish = self._push(token, logprob) or finish
        if finish is None and not self.sequence.samples:
            finish = Finish("stop") if self._is_whole() else self._spent()
        if finish is None and self.sequence.matcher is not None:
            finish = self._force(forced if guessed is not None else None)
            if finish and self._sampling.logprobs is not None and self.sequence.next_row < self.sequence.num_tokens - 1:
                self._ending, finish = finish, None
                self._close()
        return finish

    def _append(self, token: int) -> Finish | None:
        """Put `token` behind the sequence and move the matcher; a Finish where the token itself ends the output."""
        sequence, sampling = self.sequence, self._sampling
        finish = None
        if self._repeats(token):
            self._repeated += 1
            sequence.max_output = min(sequence.max_output + 1, self._room)
        elif token in sampling.stop_token_ids and sequence.num_output >= sampling.min_tokens:
            finish = Finish("stop", token)
        elif token in self._table.eos and (self._constrained or not sampling.ignore_eos):
            finish = Finish("stop")
        if finish is None or sampling.include_stop:
            sequence.tokens.append(token)
        if finish is None and sequence.matcher is not None:
            if sequence.matcher.advance((token,)) != 1:
                raise RuntimeFailure(f"Token {token} was sampled, but its grammar refuses it; please report this constraint.")
            self._heal(token)
        return finish

    def _heal(self, token: int) -> None:
        """Without a constraint the matcher only holds the output to the bytes that were cut from the prompt."""
        self._unhealed = max(0, self._unhealed - len(self._table.bytes_of(token)))
        if not self._constrained and not self._unhealed:
            self.sequence.matcher = None
            self.sequence.draftable = True

    def _repeats(self, token: int) -> bool:
        """Whether `token`, coming next, gives nothing but bytes that were cut from the prompt."""
        return self._unhealed > 0 and len(self._table.bytes_of(token)) <= self._unhealed

    def _is_whole(self) -> bool:
        matcher = self.sequence.matcher
        return self._constrained and matcher is not None and matcher.finished

    def _force(self, forced: Seq[int] | None = None) -> Finish | None:
        """Append what the grammar leaves no choice about (`forced`, where that is known), up to the output's cap; a Finish where
        that ends the output.

        Tokens whose log-probability is asked are only pushed with it, when their rows have come.
        """
        sequence = self.sequence
        matcher = sequence.matcher
        assert matcher is not None
        tokens = matcher.forced() if forced is None else forced
        for token in tokens[: sequence.max_output - sequence.num_output]:
            finish = self._append(token)
            if self._sampling.logprobs is None and (finish is None or self._sampling.include_stop):
                finish = self._push_forced(token, None) or finish
            if finish:
                return finish
        if self._sampling.logprobs is None and sequence.next_row >= sequence.num_prompt - 1:
            sequence.next_row = sequence.num_tokens - 1
        if self._is_whole():
            return Finish("stop")
        return None if sequence.samples else self._spent()

    def _spent(self) -> Finish:
        """How an output ends that has all its tokens: one that was steered stands at an end."""
        matcher = self.sequence.matcher
        ends = self._sampling.close == "steer" and matcher is not None and matcher.can_end
        return Finish("stop" if ends else "length")

    def _push_forced(self, token: int, row: RowResult | None) -> Finish | None:
        self.forced += self._pushed >= self._repeated
        return self._push(token, self._table.logprob(token, row.known, row.top) if row else None, forced=True)

    def _push(self, token: int, logprob: TokenLogprob | None, *, forced: bool = False) -> Finish | None:
        self._pushed += 1
        hit = self._output.push(token, logprob, forced=forced)
        return Finish("stop", hit.stop) if hit else None

    def _close(self) -> None:
        """Nothing more is drawn: the sequence ends with the rows of the tokens it has."""
        self.sequence.max_output = self.sequence.num_output
