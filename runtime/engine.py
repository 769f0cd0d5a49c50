"""The loop that owns everything: calls go in, each `step` plans, runs and commits one batch, events come out.

All methods are called from one thread, that of `process.py`'s hosts. Nothing here knows tensors: the model is a `Runner`.
"""

import random
import time
from collections.abc import Callable

from branchpoint.errors import BranchpointError
from branchpoint.radix import CopyCost, HostTier
from branchpoint.runtime.admission import Admission
from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.compiling import Compiler, Compiling
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.chain import Guessers, make_speculation
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.verify import commit_rows, row_errors
from branchpoint.runtime.errors import InvalidRequest, Overloaded, RequestAborted, RuntimeFailure
from branchpoint.runtime.flight import Flight, take_off
from branchpoint.runtime.generation import Generation, TokenTable
from branchpoint.runtime.group import Group, check_groups
from branchpoint.runtime.haste import Haste
from branchpoint.runtime.lora.places import AdaptedRunner
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.masks import MaskFiller, StepMasks
from branchpoint.runtime.messages import Call, Event, ScoreCall, Usage
from branchpoint.runtime.outbox import Outbox
from branchpoint.runtime.plan import Runner, StepPlan, StepResult
from branchpoint.runtime.policy import make_order
from branchpoint.runtime.scheduler import Scheduler
from branchpoint.runtime.sequence import Sequence, Status
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["Engine"]


class Engine:
    """Serves calls with `runner`'s model, its vocabulary `table`, a context of `context_length` tokens, and `adapters` by name.

    Each call that `submit` accepts gets exactly one terminal event from a later `step` (or `fail_all`), whatever fails. `clock`
    gives seconds, for queue times and the order of eviction. With `host` the runner makes swaps too, at `copy_cost`.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        compiler: Compiler,
        table: TokenTable,
        context_length: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        host: HostTier | None = None,
        copy_cost: CopyCost | None = None,
        speculation: Speculation | None = None,
        guessers: Guessers | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.adapters = adapters or Adapters()
        self._config = config
        self._runner = runner
        self._clock = clock
        self._cache = KVCache(
            runner.num_pages, runner.page_size, enabled=config.radix_cache, host=host, copy_cost=copy_cost, clock=clock
        )
        self._speculation = speculation or make_speculation(config, table, self._cache, runner, guessers)
        self._places = runner.adapters if isinstance(runner, AdaptedRunner) else None
        self._scheduler = Scheduler(
            self._cache,
            make_order(config.policy, self._cache.cached_tokens),
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            speculation=self._speculation,
            max_step_seconds=config.max_step_seconds,
            max_adapters=config.max_loras,
            places=self._places,
            await_prefixes=config.await_prefixes,
        )
        self._admission = Admission(table, context_length, self._cache.capacity, self.adapters)
        self._masks = MaskFiller(table.size)
        self._seeds = random.Random(config.seed)
        self._groups: dict[str, Group] = {}
        self._owners: dict[Sequence, Group] = {}
        self._compiling = Compiling(compiler)
        self._outbox = Outbox()
        self._haste = Haste(runner, table.eos, self._cache.forget)
        self._ahead: Flight | None = None
        self._landed = 0.0  # when the last flight had
        self._arrivals = self._queued = 0  # queued are the calls of which no sequence has run yet
        self._steps = self._computed = self._completed = self._failed = 0
        self._totals = Usage()

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to say."""
        return bool(self._groups or self._outbox or self._ahead)

    def submit(self, call: Call | ScoreCall) -> None:
        """Accept `call`. Raises InvalidRequest or CapacityError where it can't be served, Overloaded where the queue is full."""
        if call.id in self._groups:
            raise InvalidRequest(
                f"A call with id {call.id[:80]!r} is still running; give each call an id of its own.", param="id"
            )
        if self._queued >= self._config.max_queued:
            raise Overloaded(
                f"{self._queued} calls are queued, as many as max_queued={self._config.max_queued} allows; try again later."
            )
        if isinstance(call, ScoreCall):
            group = Group(call, self._admission.scorings(call, self._arrivals), self._clock())
        else:
            seed = call.sampling.seed if call.sampling.seed is not None else self._seeds.getrandbits(64)
            group = Group(call, self._admission.generations(call, seed, self._arrivals), self._clock())
            if call.constraint is not None or call.heal:
                self._compiling.start(call)
        self._arrivals += 1
        self._queued += 1
        self._groups[call.id] = group
        self._owners.update(dict.fromkeys(group.members, group))
        for sequence in group.members:
            if call.id in self._compiling.call_ids:
                sequence.status = Status.COMPILING
            else:
                self._scheduler.add(sequence)

    def abort(self, call_id: str) -> None:
        """End the call at once: its pages are free when this returns, its `Failed` comes with the next step."""
        group = self._groups.get(call_id)
        if group:
            self._fail(group, RequestAborted("The call was aborted."))

    def end_program(self, program: str, namespace: str = "") -> None:
        """No more calls of `program` in `namespace` will come: what it alone has in the cache is the first to go."""
        self._scheduler.end_program(program, namespace)

    def fail_all(self, error: BranchpointError) -> list[Event]:
        """End every call with `error`; returns all events that are still to be given out."""
        for group in list(self._groups.values()):
            self._fail(group, error)
        return self._outbox.take()

    def step(self) -> list[Event]:
        """Compute one batch; returns what there is to tell. Waits a moment where all calls wait for grammars or adapters.

        Where the runner runs ahead, the next batch is under way when this returns: planned behind this one while that ran, or as
        soon as its result was known, if that had to be waited for. What became final is told meanwhile.
        """
        self._poll_grammars()
        flight, self._ahead = self._ahead or self._launch(self._scheduler.plan()), None
        if flight is not None:
            if flight.under_way is not None:
                self._ahead = self._launch(self._scheduler.plan(flight.plan, flight.void), flight)
            self._land(flight)
            if self._ahead:
                self._ahead.draw(self._masks)
            elif flight.under_way is not None:
                self._ahead = self._launch(self._scheduler.plan())
            self._outbox.tell()
        elif not self._outbox:
            self._compiling.wait()
            if self._places:
                self._places.wait()
        return self._outbox.take()

    def stats(self) -> EngineStats:
        """Where things stand now."""
        return EngineStats(
            running=sum(1 for _ in self._scheduler.running),
            waiting=sum(1 for _ in self._scheduler.waiting),
            compiling=sum(len(self._groups[call_id].members) for call_id in self._compiling.call_ids),
            **self._cache.page_counts(),
            steps=self._steps,
            computed_tokens=self._computed,
            completed_calls=self._completed,
            failed_calls=self._failed,
            totals=sum((group.usage() for group in self._groups.values()), self._totals),
            grammars=self._compiling.counts,
            drafters=self._speculation.stats() if self._speculation else (),
            adapters=self.adapters.use(self._scheduler.running, self._scheduler.waiting),
        )

    def flush_cache(self) -> int:
        """Forget all cached prefixes; running calls keep their pages. Returns the number of pages freed."""
        return self._cache.flush()

    def dump_cache(self) -> CacheDump:
        """What the cache holds, and which of its longest prefixes could have shared more."""
        return self._cache.dump()

    def close(self) -> None:
        """End the threads of this engine. What still runs gets no event: call `fail_all` before."""
        self._masks.close()
        if self._speculation:
            self._speculation.close()
        if self._places:
            self._places.close()

    def check(self) -> None:
        """Hold calls, sequences and pages against each other. Raises AssertionError."""
        self._scheduler.check()
        compiling = (sequence for call_id in self._compiling.call_ids for sequence in self._groups[call_id].members)
        queues = (self._scheduler.running, self._scheduler.waiting, compiling)
        check_groups(self._groups.values(), self._owners, queues, self._queued)

    def _poll_grammars(self) -> None:
        for call_id, future in self._compiling.take_done():
            group = self._groups[call_id]
            try:
                group.begin(future.result(), self._clock())
            except BaseException as error:  # noqa: BLE001  # the boundary of one call, its grammar's library's panics too
                self._fail(group, error)
                continue
            for sequence in group.members:
                self._scheduler.add(sequence)

    def _launch(self, plan: StepPlan | None, before: Flight | None = None, *, early: bool = False) -> Flight | None:
        """Give the runner `plan`, behind the flight `before` where that is still under way."""
        if plan is None:
            return None
        now = self._clock()
        for slot in plan.slots:
            group = self._owners[slot.sequence]
            if group.started is None:
                group.started = now
                self._queued -= 1
        return take_off(self._runner, plan, self._masks, now, before, early=early)

    def _land(self, flight: Flight) -> None:
        result, plan, masks = flight.land(self._ahead), flight.plan, flight.masks
        if isinstance(result, RuntimeFailure):
            self._scheduler.abandon(plan)
            for group in dict.fromkeys(self._owners[slot.sequence] for slot in plan.slots if slot.sequence in self._owners):
                self._fail(group, result)
            return
        self._steps, self._computed = self._steps + 1, self._computed + plan.num_tokens
        self._scheduler.commit(plan, {*masks.errors, *row_errors(plan, result)})
        if not self._ahead and self._haste.pays(plan):
            with self._haste.foresee(plan, result, masks):
                self._ahead = self._launch(self._scheduler.plan(early=True), early=True)
        since = self._clock()
        self._commit(plan, result.asked(), masks)
        before, self._landed = self._landed, self._clock()
        seconds = self._landed - max(flight.since, before)
        self._haste.note(self._landed - since, seconds, self._ahead)
        self._scheduler.took(plan, seconds)

    def _commit(self, plan: StepPlan, result: StepResult, masks: StepMasks) -> None:
        errors = masks.errors | row_errors(plan, result)
        ahead = {slot.sequence: slot.start + slot.count for slot in self._ahead.plan.slots} if self._ahead else {}
        for slot, rows in zip(plan.slots, result.rows, strict=True):
            sequence = slot.sequence
            if sequence.status is Status.FINISHED:
                continue  # it has ended since, or another sample of its call has failed in this very step
            group = self._owners[sequence]
            group.mask_seconds += masks.seconds.get(sequence, 0.0)
            if sequence in errors:
                self._fail(group, errors[sequence])
                continue
            member = group.members[sequence]
            try:
                finish = commit_rows(member, slot, rows, masks, self._cache, self._speculation, ahead.get(sequence, 0))
                if isinstance(member, Generation):
                    finish = self._outbox.report(member, finish, group.narrowed)
            except BaseException as error:  # noqa: BLE001  # the boundary of one call, its grammar's library's panics too
                self._fail(group, error)
                continue
            if finish:
                self._end(group, sequence)

    def _end(self, group: Group, sequence: Sequence) -> None:
        """One sequence of `group` is done; with the last of them the call is."""
        self._drop(sequence, kept=True)
        group.live -= 1
        if group.live == 0:
            self._outbox.put(group.result())
            self._completed += 1
            self._close(group)

    def _fail(self, group: Group, error: BaseException) -> None:
        """End the whole call with `error`; nothing that it computed since its last commit is kept."""
        for sequence in group.members:
            self._drop(sequence, kept=False)
        self._failed += 1
        self._close(group)
        self._outbox.put(group.failure(error))

    def _drop(self, sequence: Sequence, *, kept: bool) -> None:
        """`sequence` has ended; with `kept` all it said was right."""
        self._scheduler.remove(sequence, keep=kept)
        if self._speculation:
            self._speculation.finish(sequence, kept=kept and isinstance(self._owners[sequence].call, Call))
        sequence.matcher = sequence.residue = None

    def _close(self, group: Group) -> None:
        self._totals += group.usage()
        self._queued -= group.started is None
        del self._groups[group.call.id]
        for sequence in group.members:
            del self._owners[sequence]
        self._compiling.drop(group.call.id)
