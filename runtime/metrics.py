"""Prometheus metrics of one served model, under its own names, vLLM's and SGLang's, so that dashboards of either work unedited.

Fed by the engine's stats (`update`) and by the events of each call (`watch`); what is exported stands in `metric_names.py`.
"""

import threading
import time
from collections.abc import Callable

from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    DrafterStats,
    Event,
    Failed,
    ModelInfo,
    SampleFinished,
    ScoreCall,
    Scored,
    Usage,
)
from branchpoint.runtime.metric_board import MetricBoard, MetricFamilies
from branchpoint.runtime.metric_names import REFUSALS, Outcome
from branchpoint.runtime.stats import EngineStats

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_STEPS = 100_000
"""Steps that are entered one by one for a look, so that a look after a long time costs little."""

OnEvent = Callable[[Event], None]


class Metrics:
    """All series of one served model, each at 0 from the start, among `families`. Thread-safe. `clock` gives seconds."""

    def __init__(
        self, info: ModelInfo, families: MetricFamilies | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = info
        self._clock = clock
        self._families = families or MetricFamilies()
        self._board = MetricBoard(info, self._families)
        self._lock = threading.Lock()
        self._last: EngineStats | None = None
        self._last_time = clock()

    def update(self, stats: EngineStats) -> None:
        """Take in a snapshot of the engine; snapshots come in order."""
        with self._lock:
            board, now = self._board, self._clock()
            before, seconds = self._last or _nothing(stats), now - self._last_time
            self._last, self._last_time = stats, now
            old, new = before.totals, stats.totals
            prompt, cached = new.prompt_tokens - old.prompt_tokens, new.cached_tokens - old.cached_tokens
            generated = new.completion_tokens - old.completion_tokens
            if stats.adapters is not None:
                board.inform(stats.adapters, time.time())
            for key, value in _counts(before, stats).items():
                board.count(key, value)
            board.count("cached_in", cached, "device")
            board.count("prompt_by", cached, "local_cache_hit")
            board.count("prompt_by", prompt - cached, "local_compute")
            steps = stats.steps - before.steps
            for _ in range(min(steps, MOST_STEPS)):
                board.observe("iteration", (stats.computed_tokens - before.computed_tokens) / steps)
            pages = stats.pages_free + stats.pages_cached + stats.pages_held
            board.set("running", stats.running)
            board.set("queued", stats.waiting + stats.compiling)
            board.set("queued_by", stats.waiting, "capacity")
            board.set("queued_by", stats.compiling, "deferred")
            board.set("waiting", stats.waiting)
            board.set("compiling", stats.compiling)
            board.set("kept", stats.pages_cached / pages if pages else 0.0)
            board.set("usage", stats.pages_held / pages if pages else 0.0)
            board.set("used_tokens", stats.pages_held * self._info.page_size)
            board.set("hit_rate", cached / prompt if prompt > 0 else 0.0)
            board.set("throughput", generated / seconds if seconds > 0 else 0.0)
            _count_drafts(board, before, stats)

    def watch(self, call: Call | ScoreCall, on_event: OnEvent) -> OnEvent:
        """Count the events of a call that arrives now, on their way to `on_event`."""
        meter = _CallMeter(self._board, call, self._clock)

        def counted(event: Event) -> None:
            meter.take(event)
            on_event(event)

        return counted

    def program(self) -> Callable[[Outcome], None]:
        """A program begins to run in the server; what is returned is told its outcome, once."""
        began = self._clock()
        self._board.add("programs_running", 1)

        def ended(outcome: Outcome) -> None:
            self._board.add("programs_running", -1)
            self._board.count("programs", label=outcome)
            self._board.observe("program_time", self._clock() - began)

        return ended

    def restarted(self) -> None:
        """Another engine serves from now on, whose own counts begin at 0."""
        with self._lock:
            self._last = None
        self._board.count("restarts")

    def refused(self, kind: str) -> None:
        """Count a request that was refused before it became a call; `kind` is one of REFUSALS."""
        self._board.count("refused", label=kind)

    def render(self) -> bytes:
        """All series of the families as text (`CONTENT_TYPE`)."""
        return self._families.render()


class _CallMeter:
    """Times one call from its events."""

    def __init__(self, board: MetricBoard, call: Call | ScoreCall, clock: Callable[[], float]) -> None:
        self._board = board
        self._call = call
        self._clock = clock
        self._arrived = clock()
        self._first: float | None = None
        self._latest: dict[int, float] = {}
        self._reasons: list[str] = []

    def take(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, SampleFinished):
            self._reasons.append(event.reason)
        elif isinstance(event, Failed) and event.kind in REFUSALS and self._first is None:
            self._board.count("refused", label=event.kind)
        else:
            self._end(event)

    def _delta(self, event: Delta) -> None:
        now = self._clock()
        if self._first is None:
            self._first = now
            self._board.observe("ttft", now - self._arrived)
        elif event.index in self._latest:
            self._board.observe("itl", now - self._latest[event.index])
        self._latest[event.index] = now

    def _end(self, event: Completed | Scored | Failed) -> None:
        board, now = self._board, self._clock()
        board.count("requests")
        board.observe("e2e", now - self._arrived)
        if isinstance(event, Failed):
            aborted = event.kind == "aborted"
            board.count("finished", label="abort" if aborted else "error")
            board.count("aborted", 1 if aborted else 0)
            board.count("corrupted", 1 if "logits are unusable" in event.message else 0)
            return
        board.count("finished", label="length" if "length" in self._reasons else "stop")
        self._sizes(event.usage, now)

    def _sizes(self, usage: Usage, now: float) -> None:
        board, call = self._board, self._call
        began = self._arrived + usage.queue_seconds
        board.observe("queue", usage.queue_seconds)
        board.observe("inference", max(0.0, now - began))
        if self._first is not None:
            board.observe("prefill", max(0.0, self._first - began))
            board.observe("decode", now - self._first)
        board.observe("prompt_size", usage.prompt_tokens)
        board.observe("output_size", usage.completion_tokens)
        if isinstance(call, ScoreCall):
            return
        board.observe("n", call.sampling.n)
        board.count("constrained", 1 if call.constraint is not None else 0)
        if call.constraint is not None:
            board.observe("grammar_wait", usage.grammar_seconds)
        if call.sampling.max_tokens is not None:
            board.observe("limit", call.sampling.max_tokens)
        later = usage.completion_tokens - call.sampling.n
        if self._first is not None and later > 0:
            board.observe("tpot", (now - self._first) / later)


def _nothing(stats: EngineStats) -> EngineStats:
    """What came before the first snapshot."""
    return EngineStats(0, 0, 0, stats.pages_free, 0, 0, 0, 0, 0, 0, Usage())


def _count_drafts(board: MetricBoard, before: EngineStats, stats: EngineStats) -> None:
    """What drafting came to between two snapshots, by drafter and by place in the draft."""
    old = {each.name: each for each in before.drafters}
    drafts = drafted = accepted = 0
    for each in stats.drafters:
        last = old.get(each.name, DrafterStats(each.name))
        drafts += each.drafts - last.drafts
        drafted += each.drafted - last.drafted
        accepted += each.accepted - last.accepted
        board.count("drafted_by", each.drafted - last.drafted, each.name)
        board.count("accepted_by", each.accepted - last.accepted, each.name)
        for place, (_, right) in enumerate(each.by_place):
            board.count("accepted_at", right - (last.by_place[place][1] if place < len(last.by_place) else 0), str(place))
    board.count("drafts", drafts)
    board.set("draft_length", 1 + accepted / drafts if drafts else 0.0)
    board.set("draft_rate", accepted / drafted if drafted else 0.0)


def _counts(before: EngineStats, stats: EngineStats) -> dict[str, float]:
    """What has been added to the counters between two snapshots."""
    old, new = before.totals, stats.totals
    prompt, cached = new.prompt_tokens - old.prompt_tokens, new.cached_tokens - old.cached_tokens
    return {
        "prompt": prompt,
        "queries": prompt,
        "cached": cached,
        "hits": cached,
        "generated": new.completion_tokens - old.completion_tokens,
        "forced": new.forced_tokens - old.forced_tokens,
        "drafted": new.drafted_tokens - old.drafted_tokens,
        "accepted": new.accepted_tokens - old.accepted_tokens,
        "preempted": new.preemptions - old.preemptions,
        "masked": new.mask_seconds - old.mask_seconds,
        "grammars": stats.grammars.compiled - before.grammars.compiled,
        "grammar_hits": stats.grammars.hits - before.grammars.hits,
        "grammar_refused": stats.grammars.refused - before.grammars.refused,
    }
