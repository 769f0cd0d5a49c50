"""The sampler of a GPU: all rows of a batch are drawn there together, and only what came of them is fetched.

Does what `sampler.Sampler` does, with Triton's kernels, which draw the same tokens; the runner takes this one on CUDA.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from branchpoint.kernels.adjust import adjust_logits
from branchpoint.kernels.draw import draw_rows
from branchpoint.kernels.drawing import COLDEST, DrawOptions
from branchpoint.kernels.logprobs import top_logits
from branchpoint.runtime.logprobs import RowReport, WantedRow, asked_places
from branchpoint.runtime.penalties import changes_logits, gather_changes, suppressed_tokens
from branchpoint.runtime.plan import RowResult, TokenMask, asked
from branchpoint.runtime.sampler import (
    Drawn,
    Sampler,
    checked,
    grammar_failure,
    num_output,
    row_result,
    signed,
    with_suppressed,
)
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.transfer import Fetch, send

__all__ = ["DeviceSampler"]


class DeviceSampler(Sampler):
    """See `Sampler`. Waits for the device once, when the results are asked for."""

    def sample(self, logits: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        """See `Sampler.sample`."""
        return [*asked(tuple(self.begin(logits, rows, mask).collect()))]

    def warm_up(self, vocabulary: int, device: torch.device) -> None:
        """See `Sampler.warm_up`."""
        logits = torch.zeros(1, vocabulary, device=device)
        for sampling in (
            SamplingParams(temperature=0.0),
            SamplingParams(),
            SamplingParams(top_p=0.5, logprobs=1, presence_penalty=1.0),
        ):
            self.sample(logits, [WantedRow(Sequence("", 0, [0, 0], 1, sampling, 0), 1, sample=True)], None)

    def begin(self, logits: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> Drawn:
        """See `Sampler.begin`. The logits are left as they came."""
        asking = [index for index, row in enumerate(rows) if row.reported]
        top_count = max((rows[index].top_count for index in asking), default=0)
        totals, values, ids = top_logits(logits, top_count) if asking else (logits[:0, 0], logits[:0], logits[:0].long())
        suppressed = self._suppressed(rows, logits.shape[1])
        mask_rows, packed = _packed(suppressed, mask, logits.shape[1])
        options, held = _options(rows, mask_rows, packed, logits.device)
        hidden = [() if masked >= 0 else each or () for masked, each in zip(mask_rows, suppressed, strict=True)]
        tokens, bests = draw_rows(_adjusted(logits, rows, hidden), options, held)
        wanted = [tokens, bests, totals, values, ids]
        if asking:
            known = send([np.array([row.known or 0 for row in rows], np.int64)], logits.device)[0]
            wanted.append(logits.gather(1, torch.stack((tokens.clamp(0, logits.shape[1] - 1), known), 1)))
        places, others = asked_places(rows)
        if places:
            at = send([np.array(places, np.int64), np.array(others, np.int64)], logits.device)
            wanted.append(logits[at[0], at[1]])
        fetched = Fetch(wanted)
        doubtful = [] if mask is None else [(index, logits[index]) for index, row in enumerate(rows) if row.residue is not None]

        def collect() -> list[RowResult]:
            results = _results(rows, mask_rows, packed, fetched.wait())
            for index, scores in doubtful:  # nobody else keeps the logits: many prompts' would not fit into memory
                assert mask is not None, "a residue is what is left to ask about a mask"
                judged = partial(self._judged, results[index], partial(fetched.also, scores), rows[index], mask[index])
                results[index] = replace(results[index], doubt=judged)
            return results

        return Drawn(tokens, collect)

    def _judged(
        self, result: RowResult, scores: Callable[[], npt.NDArray[np.float32]], row: WantedRow, mask: npt.NDArray[np.int32]
    ) -> RowResult:
        """The result; where the mask took too much and the token is refused, with the one that is drawn instead, on the host."""
        residue, before = row.residue, result.token
        try:
            if residue is None or before is None or residue.allows(before):
                return result
        except BaseException as error:  # noqa: BLE001  # the boundary of one sequence, a library's panics too
            return RowResult(None, error=grammar_failure(error))
        logits = torch.from_numpy(scores())
        token = self._draw(logits, row, mask)
        if isinstance(token, str):
            return RowResult(None, error=token)
        if result.logprob is None:
            return replace(result, token=token, replaced=True)
        return replace(result, token=token, replaced=True, logprob=result.logprob + float(logits[token] - logits[before]))

    def _suppressed(self, rows: Many[WantedRow], size: int) -> list[list[int] | None]:
        """The tokens that each row must not draw since its sequence would end too early; None for rows that draw nothing."""
        return [
            [token for token in suppressed_tokens(row.sequence.sampling, num_output(row), self._eos) if token < size]
            if row.sample
            else None
            for row in rows
        ]


def _packed(suppressed: Many[list[int] | None], mask: TokenMask | None, size: int) -> tuple[list[int], list[TokenMask]]:
    """Which row of the masks applies to each row, -1 for none, and the masks that hide anything, without suppressed tokens."""
    places, packed = [-1] * len(suppressed), list[TokenMask]()
    if mask is None:
        return places, packed
    hides = (mask != -1).any(axis=1)
    for index, hidden in enumerate(suppressed):
        if hidden is not None and hides[index]:
            places[index] = len(packed)
            packed.append(with_suppressed(mask[index], hidden, size) if hidden else mask[index])
    return places, packed


def _adjusted(logits: Tensor, rows: Many[WantedRow], suppressed: Many[Many[int]]) -> Tensor:
    """The logits with bias and penalties of their rows, and without suppressed tokens: a copy, if there are any."""
    parts = []
    for index, (row, hidden) in enumerate(zip(rows, suppressed, strict=True)):
        sampling = row.sequence.sampling
        if row.sample and (hidden or changes_logits(sampling)):
            history, prompt = row.history if sampling.penalises else [], row.sequence.num_prompt
            places, *changes = gather_changes(sampling, history[:prompt], history[prompt:], hidden)
            parts.append((places + index * logits.shape[1], *changes))
    if not parts:
        return logits
    scores = logits.clone()
    adjust_logits(scores, *send([np.concatenate(part) for part in zip(*parts, strict=True)], logits.device))
    return scores


def _options(
    rows: Many[WantedRow], mask_rows: list[int], packed: list[TokenMask], device: torch.device
) -> tuple[DrawOptions, Tensor | None]:
    """The rows' options and masks on the device; rows that draw nothing take the best, which costs least."""
    sampling = [row.sequence.sampling for row in rows]
    heat = [max(row.sequence.sampling.temperature, COLDEST) if row.sample and _draws(row) else 0.0 for row in rows]
    columns: list[npt.NDArray[Any]] = [
        np.array(heat, np.float32),
        np.array([each.top_k for each in sampling], np.int32),
        np.array([each.top_p for each in sampling], np.float64),
        np.array([math.log(each.min_p) if each.min_p > 0 else -math.inf for each in sampling], np.float32),
        np.array([signed(row.sequence.seed) for row in rows], np.int64),
        np.array([row.position + 1 for row in rows], np.int64),
        np.array(mask_rows, np.int32),
    ]
    if packed:
        columns.append(np.stack(packed))
    temperature, top_k, top_p, least, seed, position, mask_row, *held = send(columns, device)
    filters = any(each > 0 and row.sequence.sampling.truncates for row, each in zip(rows, heat, strict=True))
    options = DrawOptions(temperature, top_k, top_p, least, seed, position, mask_row, draws=any(heat), filters=filters)
    return options, held[0] if held else None


def _draws(row: WantedRow) -> bool:
    return row.sequence.sampling.temperature > 0


def _results(
    rows: Many[WantedRow], mask_rows: list[int], packed: list[TokenMask], fetched: list[npt.NDArray[Any]]
) -> list[RowResult]:
    """What each row gave, out of tokens, best logits, log-sum-exps, top logits, their tokens, chosen, known and asked logits."""
    tokens, bests, totals, values, ids = (array.tolist() for array in fetched[:5])
    picked = fetched[5].tolist() if len(fetched) > 5 else []
    others = iter(fetched[6].tolist() if len(fetched) > 6 else ())
    results = []
    for index, row in enumerate(rows):
        token: int | str | None = None
        if row.sample:
            token = checked(tokens[index], bests[index])
            if isinstance(token, str) and mask_rows[index] >= 0 and not packed[mask_rows[index]].any():
                token = f"The grammar's mask allows no token after position {row.position}."
        if not row.reported:
            results.append(row_result(token, row, None, None))
            continue
        chosen, known = picked[index]
        total, count = totals[index], row.top_count
        top = tuple((other, value - total) for other, value in zip(ids[index][:count], values[index][:count], strict=True))
        asked = tuple(other - total for other in itertools.islice(others, len(row.asked)))
        report = RowReport(total, None if row.known is None else known - total, top, asked)
        results.append(row_result(token, row, report, chosen))
    return results
