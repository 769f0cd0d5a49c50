"""What grammars add to an engine's steps whose passes run on a device of their own. Used by `benchmarks.masks`.

The device is a clock: a pass takes its time from when it was launched and the one before has drawn, and draws when it has its
masks. What a step takes beyond its pass, the device was idle. The same texts are drawn with grammars and without.
"""

import gc
import itertools
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.spec import Constraint
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.messages import Call, Completed, Event, Failed
from branchpoint.runtime.plan import MaskSource, RowResult, Slot, StepPlan, StepResult, StepUnderWay
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence

__all__ = ["Device", "Text", "measure_engine"]

ROUNDS = 5
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Text:
    """A constraint, its grammar, and the tokens of a text that it takes."""

    constraint: Constraint
    grammar: CompiledGrammar
    tokens: tuple[int, ...]


@dataclass(eq=False)
class Device:
    """A runner whose passes take `seconds` and leave the processor alone; draws the tokens of `texts`, by call id.

    Of passes that serve all texts and have another before them: `idle` holds how long the device waited for the host, `busy` how
    long the host took from one to the next.
    """

    seconds: float
    texts: Mapping[str, Text]
    runs_ahead: bool = True  # where the plans let it
    num_pages: int = 8192
    page_size: int = 16
    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    free: float = 0.0
    woken: float = 0.0

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        """See `plan.Runner`."""
        step = self.launch(plan)
        step.draw(masks)
        return step.finish()

    def launch(self, plan: StepPlan, *before: StepUnderWay) -> "_Pass":
        """See `flight.AheadRunner`: by now the pass before knows when it will have drawn."""
        return _Pass(self, plan, self.free, max(time.perf_counter(), self.free) + self.seconds)


@dataclass(eq=False)
class _Pass:
    """For this pass the device is `free`; its logits are `ready`, and its tokens `drawn`, at these times."""

    device: Device
    plan: StepPlan
    free: float
    ready: float
    drawn: float = 0.0

    def draw(self, masks: MaskSource) -> None:
        """See `plan.StepUnderWay`. Masks that come late keep the device waiting."""
        rows = masks()
        if rows is not None:
            np.stack([row for row in rows if (row != -1).any()])  # as they are sent to a device
        self.drawn = self.device.free = max(self.ready, time.perf_counter())

    def finish(self) -> StepResult:
        """See `plan.StepUnderWay`."""
        device, now = self.device, time.perf_counter()
        if self.free and len(self.plan.slots) == len(device.texts):
            device.idle.append(self.drawn - self.free - device.seconds)
            device.busy.append(now - device.woken)
        time.sleep(max(0.0, self.drawn - now))
        device.woken = time.perf_counter()
        return StepResult(tuple(tuple(self._row(slot, position) for position in slot.rows) for slot in self.plan.slots))

    def _row(self, slot: Slot, position: int) -> RowResult:
        """The token of a text, which is asked about as samplers ask about theirs."""
        sequence = slot.sequence
        tokens = self.device.texts[sequence.call_id].tokens
        token = tokens[min(position + 1 - sequence.num_prompt, len(tokens) - 1)]  # what runs ahead of a text's end is lost
        residue, result = sequence.residue, RowResult(token)
        if residue is None or position + 1 != sequence.num_tokens:
            return result

        def asked() -> RowResult:
            assert residue.allows(token), "the text is valid"
            return result

        return RowResult(token, doubt=asked)


class _Guesses:
    """A drafter that each step waits for: it guesses so `many` tokens of each text, of which every `wrong`th isn't the text's."""

    name = "guesses"

    def __init__(self, texts: Mapping[str, Text], many: int, wrong: int = 5) -> None:
        self._texts = texts
        self._many = many
        self._wrong = wrong

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`."""
        return {sequence: Proposal(self._guess(sequence, min(self._many, count))) for sequence, count in wanted.items()}

    def _guess(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        tokens, at = self._texts[sequence.call_id].tokens, sequence.num_output
        return tuple(tokens[place if place % self._wrong else 0] for place in range(at, min(at + count, len(tokens))))

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""

    def close(self) -> None:
        """See `Drafter`."""


class _Compiled:
    """A compiler of constraints whose grammars are there."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._grammars = {text.constraint: text.grammar for text in texts}

    def compile(
        self, constraint: Constraint | None, prefix: bytes, owner: str = "", **options: object
    ) -> Future[CompiledGrammar]:
        """See `compiling.Compiler`."""
        assert constraint is not None, "nothing is healed here"
        future = Future[CompiledGrammar]()
        future.set_result(self._grammars[constraint])
        return future


def measure_engine(
    vocabulary: Vocabulary, texts: Many[Text], batches: Iterable[int], seconds: float, *, truncates: bool
) -> dict[str, tuple[str, float, bool]]:
    """Milliseconds that grammars add to steps of `seconds`, by batch size, and to what the host does meanwhile.

    Steps follow each other at once, or, in an engine that drafts, when the tokens of the one before are known: with nothing to
    guess, and with four guesses for each text, most of them right. Where it `truncates`, samplers leave unlikely tokens out, and
    rows must be exact.
    """
    figures: dict[str, tuple[str, float, bool]] = {}
    gc.freeze()  # as the engine's process does when it is ready
    step = f"engine, step of {seconds * 1e3:.0f} ms at batch"
    kinds = {"": None, " of one that drafts": 0, " of one that drafts 4 for each": 4}
    for batch, (kind, guesses) in itertools.product(batches, kinds.items()):
        given = {str(number): texts[number % len(texts)] for number in range(batch)}
        free, held = ([Device(seconds, given) for _ in range(ROUNDS)] for _ in range(2))
        for device in (*free, *held):
            _run(vocabulary, device, masked=device in held, guesses=guesses, truncates=truncates)
        bare, idle = (np.concatenate([device.idle for device in devices]) * 1e3 for devices in (free, held))
        case = f"{step} {batch}{kind}"
        for percent in (50, 99):
            added = float(np.percentile(idle, percent) - np.percentile(bare, percent))
            figures[f"{case}, longer by grammars, p{percent}"] = ("ms", max(0.0, added), True)
        bare, busy = (np.concatenate([device.busy for device in devices]) * 1e3 for devices in (free, held))
        figures[f"{case}, host's part for grammars, p50"] = ("ms", float(np.median(busy) - np.median(bare)), True)
    gc.unfreeze()
    return figures


def _run(vocabulary: Vocabulary, device: Device, *, masked: bool, guesses: int | None, truncates: bool) -> None:
    """Let the device's texts be drawn together until the first of them ends; with so many `guesses` a text, None where no drafter
    is asked.
    """
    special = frozenset(token for token, text in enumerate(vocabulary.tokens) if not text)
    table = TokenTable(vocabulary.size, frozenset(vocabulary.eos), special, vocabulary.tokens.__getitem__)
    config = EngineConfig(model="clock", max_sequences=len(device.texts), seed=1)
    drafter = None if guesses is None else _Guesses(device.texts, guesses)
    waits = drafter and Speculation((drafter,), most=max(1, guesses or 0), ends=frozenset(), adaptive=False)
    engine = Engine(config, device, _Compiled(device.texts.values()), table, CONTEXT, speculation=waits)
    for number, (name, text) in enumerate(device.texts.items()):
        sampling = SamplingParams(max_tokens=len(text.tokens), temperature=1.0, top_p=0.9 if truncates else 1.0)
        engine.submit(Call(name, (number + 1,), sampling, text.constraint if masked else None))
    ended: list[Event] = []
    while not ended:
        ended = [event for event in engine.step() if isinstance(event, Completed | Failed)]
    assert not any(isinstance(event, Failed) for event in ended), f"a text was refused: {ended}"
    engine.close()
