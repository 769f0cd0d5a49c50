"""Logits to tokens: bias, penalties, min_tokens, grammar mask, temperature, top-k, top-p, min-p, then noise and argmax.

Called by the runner after each forward pass. A row's token depends on its logits, options, history and seed, never on the
rest of the batch; a row that can't be used is an error of that row alone. Of a mask that takes too much, what is drawn is judged.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.grammar import Residue
from branchpoint.kernels.drawing import Cut, draw_row
from branchpoint.kernels.sample import first_argmax
from branchpoint.runtime.logprobs import RowReport, WantedRow, report_rows
from branchpoint.runtime.penalties import adjust, changes_logits, suppressed_tokens
from branchpoint.runtime.plan import Refusal, RowResult, TokenMask
from branchpoint.runtime.sampling import SamplingParams

__all__ = [
    "Drawn",
    "Sampler",
    "checked",
    "cut_of",
    "grammar_failure",
    "num_output",
    "row_result",
    "signed",
    "with_suppressed",
]

PATIENCE = 8
"""Refusals in a row after which all tokens of a row are looked at."""

MOST_REFUSALS = 64
"""Refusals after which what the exact row takes is taken: what can follow is asked a token at a time, and all others wait."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows being drawn: `tokens` int64 [R] on the device (anything where a row has none); `collect` waits for the results."""

    tokens: Tensor
    collect: Callable[[], list[RowResult]]


class Sampler:
    """Draws tokens for the rows of a batch. `eos` are the model's end tokens, held back while a sequence is below min_tokens."""

    def __init__(self, eos: tuple[int, ...]) -> None:
        self._eos = eos

    def sample(self, logits: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        """One result for each row of logits, float32 [R, V]; `mask` has a row for each, or is None where none is masked.

        Never raises for what the logits hold. The logits are left as they came.
        """
        reports = report_rows(logits, rows)
        masked = [False] * len(rows)
        if mask is not None:
            hidden = (mask != -1).any(axis=1).tolist()
            masked = [hides or row.residue is not None for row, hides in zip(rows, hidden, strict=True)]
        simple = [row.sample and not hidden and self._is_plain(row) for row, hidden in zip(rows, masked, strict=True)]
        best = self._greedy(logits, simple)
        results = []
        for index, row in enumerate(rows):
            token: int | str | None = None
            if simple[index]:
                token = best[index]
            elif row.sample:
                token = self._draw(logits[index], row, mask[index] if mask is not None and masked[index] else None)
            chosen = float(logits[index, token]) if index in reports and isinstance(token, int) else None
            results.append(row_result(token, row, reports.get(index), chosen))
        return results

    def warm_up(self, vocabulary: int, device: torch.device) -> None:
        """Have compiled what drawing may need: an engine that serves waits for no compiler. This form needs nothing."""

    def begin(self, logits: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> Drawn:
        """Start to `sample`. This form has done it when it returns."""
        results = self.sample(logits, rows, mask)
        return Drawn(torch.tensor([result.token or 0 for result in results], device=logits.device), lambda: results)

    def _is_plain(self, row: WantedRow) -> bool:
        """Whether the token is simply the best one."""
        sampling = row.sequence.sampling
        if sampling.temperature > 0 or changes_logits(sampling):
            return False
        return not suppressed_tokens(sampling, num_output(row), self._eos)

    def _greedy(self, logits: Tensor, simple: list[bool]) -> dict[int, int | str]:
        """The best token of each simple row, all in one go."""
        indices = [index for index, is_simple in enumerate(simple) if is_simple]
        if not indices:
            return {}
        chosen = logits if len(indices) == len(simple) else logits[indices]
        tokens = first_argmax(chosen)
        values = chosen.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
        pairs = zip(tokens.tolist(), values, strict=True)
        return {index: checked(token, value) for index, (token, value) in zip(indices, pairs, strict=True)}

    def _draw(self, logits: Tensor, row: WantedRow, mask: npt.NDArray[np.int32] | None) -> int | str:
        """The token for one row of logits [V], or why there is none."""
        scores, tokens = self._allowed(logits, row, mask)
        if tokens is not None and row.residue is not None:
            since = time.thread_time()
            try:
                assert mask is not None, "a residue is what is left to ask about a mask"
                chosen = _draw_asking(scores, tokens, mask, row, row.residue)
                if chosen is None and len(every := _allowed(mask, [], len(scores)).to(scores.device)) > len(tokens):
                    chosen = _draw_asking(scores, every, mask, row, row.residue)  # nothing but the end that was held back
                return _nothing(row) if chosen is None else chosen
            except BaseException as error:  # noqa: BLE001  # the boundary of one sequence, a library's panics too
                return grammar_failure(error)
            finally:
                row.sequence.note_mask(time.thread_time() - since)
        if tokens is None:
            return self._pick(scores, None, row)
        return self._pick(scores[tokens], tokens, row) if len(tokens) else _nothing(row)

    def _pick(self, scores: Tensor, tokens: Tensor | None, row: WantedRow) -> int | str:
        """The token for the scores [N] of `tokens` (None: 0 to N - 1), or why there is none."""
        return _pick(scores, tokens, row)

    def _allowed(self, logits: Tensor, row: WantedRow, mask: npt.NDArray[np.int32] | None) -> tuple[Tensor, Tensor | None]:
        """The row's scores [V], bias and penalties taken in, and the tokens that may be drawn, int64 (None: all of them)."""
        sequence, sampling = row.sequence, row.sequence.sampling
        scores = logits
        if changes_logits(sampling):
            scores = logits.clone()
            history = row.history
            adjust(scores, sampling, history[: sequence.num_prompt], history[sequence.num_prompt :])
        suppressed = [token for token in suppressed_tokens(sampling, num_output(row), self._eos) if token < len(scores)]
        if mask is not None:
            return scores, _allowed(mask, suppressed, len(scores)).to(scores.device)
        if suppressed:
            scores = scores.index_fill(0, torch.tensor(suppressed, device=scores.device), -torch.inf)
        return scores, None


def num_output(row: WantedRow) -> int:
    """Tokens generated before the one that this row predicts."""
    return row.position + 1 - row.sequence.num_prompt


def _allowed(mask: npt.NDArray[np.int32], suppressed: list[int], vocabulary_size: int) -> Tensor:
    """Ids that the mask allows, ascending, int64; without the suppressed ones unless nothing else is allowed."""
    if suppressed:
        mask = with_suppressed(mask, suppressed, vocabulary_size)
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), count=vocabulary_size, bitorder="little").view(np.bool_)
    return torch.from_numpy(np.flatnonzero(bits))


def with_suppressed(mask: npt.NDArray[np.int32], suppressed: list[int], vocabulary_size: int) -> npt.NDArray[np.int32]:
    """A mask row without the suppressed tokens; the row itself where it allows nothing else."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), count=vocabulary_size, bitorder="little")
    bits[suppressed] = 0
    if not bits.any():
        return mask
    return np.packbits(np.pad(bits, (0, -len(bits) % 32)), bitorder="little").view(np.int32)


def _draw_asking(
    logits: Tensor, tokens: Tensor, mask: npt.NDArray[np.int32], row: WantedRow, residue: Residue
) -> int | str | None:
    """The token of `logits` [V] that would be drawn if `tokens` [N] were without all that the residue refuses, None if none is.

    A refused token is left out and the next best of the same noise is taken. The likeliest is asked about too: the others' scores
    are told relative to it. (Not where unlikely tokens are left out: that mask is exact, and the cut stays where it is.) After
    some refusals in a row the mask is made exact; after `MOST_REFUSALS` it has the last word.
    """
    refusals, truncates = 0, row.sequence.sampling.truncates
    while len(tokens):
        scores = logits[tokens]
        chosen = _pick(scores, tokens, row)
        if isinstance(chosen, str):
            return chosen
        asked = (chosen,) if truncates else (int(tokens[first_argmax(scores)]), chosen)
        refused = next((each for each in asked if not residue.allows(each)), None) if refusals < MOST_REFUSALS else None
        if refused is None:
            return chosen
        tokens = tokens[tokens != refused]
        refusals += 1
        if refusals == PATIENCE:
            exact = mask.copy()
            residue.narrow(exact)
            kept = torch.zeros(len(logits), dtype=torch.bool, device=tokens.device)
            kept[_allowed(exact, [], len(logits)).to(tokens.device)] = True
            tokens = tokens[kept[tokens]]
    return None


def grammar_failure(error: BaseException) -> str:
    """Why a row has no token whose grammar failed while it was asked."""
    return (
        Refusal(error) if isinstance(error, GrammarError) else f"The grammar failed: {type(error).__name__}: {str(error)[:500]}"
    )


def _nothing(row: WantedRow) -> str:
    return f"The grammar's mask allows no token after position {row.position}."


def _pick(scores: Tensor, tokens: Tensor | None, row: WantedRow) -> int | str:
    """The token for the scores [N] of `tokens` (None: 0 to N - 1), by the row's temperature, or why there is none."""
    token, best = draw_row(scores, tokens, cut_of(row.sequence.sampling), signed(row.sequence.seed), row.position + 1)
    return checked(token, best)


def cut_of(sampling: SamplingParams) -> Cut:
    """What may be drawn of a row with these options, as kernels take it."""
    return Cut(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def signed(seed: int) -> int:
    """A seed of up to 64 bits as the signed number with the same bits."""
    return (seed + 2**63) % 2**64 - 2**63


def checked(token: int, value: float) -> int | str:
    """The token, or why its row is unusable: its logit is the largest of the row, NaN counting as larger than all."""
    if math.isfinite(value):
        return token
    return f"The model's logits are unusable: the largest is {value}, expected a finite number."


def row_result(token: int | str | None, row: WantedRow, report: RowReport | None, chosen: float | None) -> RowResult:
    """What a row gave, with what was asked of its log-probabilities; `token` may say why there is none, `chosen` is its logit."""
    if isinstance(token, str):
        return RowResult(None, error=token)
    if report is None:
        return RowResult(token)
    if not math.isfinite(report.log_total):
        return RowResult(None, error=f"The model's logits are unusable: their log-sum-exp is {report.log_total}.")
    if token is None or chosen is None or row.sequence.sampling.logprobs is None:
        return RowResult(token, None, report.known, report.top, asked=report.asked)
    return RowResult(token, chosen - report.log_total, report.known, report.top, asked=report.asked)
