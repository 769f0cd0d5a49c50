"""Raw log-probabilities of a step's rows: of the token that was drawn, of the one that is known, and of the best.

Taken from the logits as the model gave them, before the sampler changes anything; only rows that ask cost anything.
"""

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from branchpoint.constrained.grammar import Residue
from branchpoint.runtime.plan import UNKNOWN, Odds, Slot, StepPlan
from branchpoint.runtime.sequence import Sequence

__all__ = ["RowReport", "WantedRow", "asked_places", "report_rows", "wanted_rows"]


@dataclass(frozen=True, slots=True)
class WantedRow:
    """The row at `position` of `sequence` predicts the token at position + 1; `sample` says whether one is drawn.

    `draft` are guesses that the row's context goes on with behind the sequence's own tokens, `odds` what the one that this row
    verifies was drawn from, where that matters.
    """

    sequence: Sequence
    position: int
    sample: bool
    draft: tuple[int, ...] = ()
    odds: Odds | None = None

    @property
    def known(self) -> int | None:
        """The sequence's own next token, or the guess for it, where there is one."""
        tokens, following = self.sequence.tokens, self.position + 1
        if following < len(tokens):
            return tokens[following]
        place = following - len(tokens)
        return self.draft[place] if place < len(self.draft) else None

    @property
    def history(self) -> list[int]:
        """All tokens up to this row, guesses included."""
        tokens = self.sequence.tokens
        return [*tokens[: self.position + 1], *self.draft[: max(0, self.position + 1 - len(tokens))]]

    @property
    def residue(self) -> Residue | None:
        """What is left to ask about this row's mask: it is about what comes behind all tokens, not about rows of forced ones."""
        return self.sequence.residue if self.position + 1 == self.sequence.num_tokens else None

    @property
    def asked(self) -> tuple[int, ...]:
        """Tokens whose log-probabilities the sequence asks of this row."""
        return self.sequence.asked.get(self.position, ())

    @property
    def reported(self) -> bool:
        """Whether any log-probability is asked of this row."""
        sampling = self.sequence.sampling
        return not self.sample or bool(self.asked) or sampling.logprobs is not None or sampling.prompt_logprobs is not None

    @property
    def top_count(self) -> int:
        """How many of the best tokens are asked: the prompt's number for prompt tokens, the output's for the others."""
        sampling = self.sequence.sampling
        in_prompt = self.position + 1 < self.sequence.num_prompt
        return (sampling.prompt_logprobs if in_prompt else sampling.logprobs) or 0


@dataclass(frozen=True, slots=True)
class RowReport:
    """`log_total` is the row's log-sum-exp: a token's log-probability is its logit minus that. `top` are best first.

    `asked` are those of the tokens that were asked for, in their order.
    """

    log_total: float
    known: float | None
    top: tuple[tuple[int, float], ...]
    asked: tuple[float, ...]


def wanted_rows(plan: StepPlan) -> list[WantedRow]:
    """The wanted rows of a plan in the order of its logits."""
    return [row for slot in plan.slots for row in (_rows_of_tree(slot) if slot.depths else _rows(slot))]


def _rows(slot: Slot) -> list[WantedRow]:
    sequence, sample, draft = slot.sequence, slot.sample, () if UNKNOWN in slot.draft else slot.draft
    return [WantedRow(sequence, position, sample, draft, slot.odds_at(position + 1)) for position in slot.rows]


def _rows_of_tree(slot: Slot) -> list[WantedRow]:
    """Each row with the guesses that it sees, and the first one behind it."""
    found = []
    for row in slot.rows:
        behind = slot.guess_behind(row)
        draft = slot.way_to(row) if behind is None else (*slot.way_to(row), behind)
        found.append(WantedRow(slot.sequence, slot.position_of(row), slot.sample, draft))
    return found


def report_rows(logits: Tensor, rows: list[WantedRow]) -> dict[int, RowReport]:
    """Reports for those of `rows` that ask, by their index; logits float32 [R, V]."""
    asking = [index for index, row in enumerate(rows) if row.reported]
    if not asking:
        return {}
    chosen = logits if len(asking) == len(rows) else logits[asking]
    totals = chosen.logsumexp(-1)
    next_tokens = [rows[index].known for index in asking]
    ids = torch.tensor([0 if token is None else token for token in next_tokens], device=logits.device)
    known = (chosen.gather(1, ids.unsqueeze(1)).squeeze(1) - totals).tolist()
    tops = _best(chosen, totals, max(rows[index].top_count for index in asking))
    places, tokens = asked_places([rows[index] for index in asking])
    at = torch.tensor([places, tokens], dtype=torch.int64, device=logits.device)
    others = iter((chosen[at[0], at[1]] - totals[at[0]]).tolist() if places else ())
    reports = {}
    for place, (index, total) in enumerate(zip(asking, totals.tolist(), strict=True)):
        top = tops[place][: rows[index].top_count] if tops else []
        asked = tuple(itertools.islice(others, len(rows[index].asked)))
        reports[index] = RowReport(total, None if next_tokens[place] is None else known[place], tuple(top), asked)
    return reports


def asked_places(rows: Seq[WantedRow]) -> tuple[list[int], list[int]]:
    """The tokens that are asked of these rows, row after row: the index of each one's row, and the token."""
    pairs = [(index, token) for index, row in enumerate(rows) for token in row.asked]
    return [index for index, _ in pairs], [token for _, token in pairs]


def _best(logits: Tensor, totals: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The `count` best (token, log-probability) of each row, equal ones by lower id; empty for count 0."""
    if count == 0:
        return []
    values, ids = logits.topk(min(count, logits.shape[1]))
    rows = zip(ids.tolist(), (values - totals.unsqueeze(1)).tolist(), strict=True)
    return [sorted(zip(*row, strict=True), key=lambda pair: (-pair[1], pair[0])) for row in rows]
