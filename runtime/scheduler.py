"""Decides what each forward pass computes: plans a step, commits its outcome, preempts and admits. Pure Python, no tokens chosen.

Between the engine, which owns calls and their events, and the cache, which owns pages. There are no phases: every running
sequence has tokens without KV, and a plan computes as many of them as budget and pages allow.
"""

from bisect import insort
from collections.abc import Collection, Iterable

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.lora.places import AdapterPlaces
from branchpoint.runtime.mask_turns import in_turn, note_turns
from branchpoint.runtime.pace import Pace
from branchpoint.runtime.plan import StepPlan
from branchpoint.runtime.plan_draft import PlanDraft
from branchpoint.runtime.policy import AdmissionOrder
from branchpoint.runtime.programs import Programs
from branchpoint.runtime.room import Room
from branchpoint.runtime.sequence import Sequence, Status

__all__ = ["Scheduler"]

MAX_PASSED_OVER = 512
REMEMBERED = 4  # times the tokens that the pool holds are remembered of programs that have not ended


class Scheduler:
    """Keeps waiting and running sequences. `max_batch_tokens` bounds a plan's tokens, `max_sequences` what runs at once,
    `max_adapters` how many adapters that has (`places` are where they must lie before), and `max_step_seconds`, if not 0, how
    long a step lasts that computes prompts beside what decodes. With `await_prefixes` false only sequences of one call wait for
    what another is computing.
    """

    def __init__(
        self,
        cache: KVCache,
        order: AdmissionOrder,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        speculation: Speculation | None = None,
        max_step_seconds: float = 0.0,
        max_adapters: int = 8,
        places: AdapterPlaces | None = None,
        await_prefixes: bool = True,
    ) -> None:
        self.cache = cache
        self._order = order
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._max_adapters = max_adapters
        self._places = places
        self._await_prefixes = await_prefixes
        self._programs = Programs(cache.tree, REMEMBERED * cache.capacity)
        self._speculation = speculation
        self._pace = Pace(max_step_seconds) if max_step_seconds else None
        self._waiting: dict[Sequence, None] = {}
        self._room = Room(cache, order)
        self._running: list[Sequence] = []  # by standing: the last is preempted first

    @property
    def waiting(self) -> Iterable[Sequence]:
        """Sequences that wait for pages or a place in the batch."""
        return self._waiting.keys()

    @property
    def running(self) -> Iterable[Sequence]:
        """Sequences in the batch, the most important and oldest first."""
        return tuple(self._running)

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` wait for admission."""
        for program in sequence.hints.ended:
            self.end_program(program, sequence.namespace)
        sequence.status = Status.WAITING
        self._waiting[sequence] = None
        self._order.add(sequence)
        self._room.forget()

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """`sequence` has ended: give back its pages. With `keep` the tree remembers the KV of all its tokens."""
        if sequence in self._waiting:
            self._leave(sequence)
            self._programs.gave_up(sequence)
            self._room.forget()
        if sequence in self._running:
            self._running.remove(sequence)
            sequence.num_computed = min(sequence.num_computed, sequence.num_tokens)
            key = self.cache.release(sequence, keep=keep)
            if key is not None:
                self._programs.left(sequence, key)
        self.cache.forget(sequence)
        sequence.status = Status.FINISHED

    def end_program(self, program: str, namespace: str = "") -> None:
        """`program` of `namespace` will send no more calls: what it alone has in the cache goes first from now on."""
        self._programs.end((namespace, program))
        self._order.ended((namespace, program))
        self._room.forget()

    def plan(self, under_way: StepPlan | None = None, void: Collection[Sequence] = (), *, early: bool = False) -> StepPlan | None:
        """The next step: decodes first, then prefills under way, then admissions. None where nothing can run.

        Behind a plan that is `under_way` (what it computes of `void` sequences is lost) all that run go on: tokens that it draws
        are computed before anybody knows them, and what ends with them is computed in vain. None, too, where its result may
        change more: somebody has to make room, or there are guesses to be verified. Nor does anybody make room for a plan that is
        `early`, while the tokens drawn last aren't taken in.
        """
        if under_way and any(slot.draft for slot in under_way.slots):
            return None
        draft = PlanDraft(
            self._max_batch_tokens,
            replays=bool(self._speculation and self._speculation.replays),
            under_way=under_way,
            void=void,
            early=early,
        )
        decoding, prefilling = list[Sequence](), list[Sequence]()
        for sequence in self._running:
            (prefilling if draft.in_prefill(sequence) else decoding).append(sequence)
        self._schedule_all(in_turn(decoding), draft)
        draft.budget -= (beyond := self._beyond(draft))
        self._schedule_all(prefilling, draft)
        self._admit(draft)
        draft.budget += beyond
        if draft.must_wait or not draft.slots or (self._speculation and not self._speculate(self._speculation, draft)):
            return None
        note_turns(decoding, draft.slots)
        return draft.step(self.cache.take_copies())

    def commit(self, plan: StepPlan, faulty: set[Sequence]) -> None:
        """The plan ran: its tokens have KV now, and prompts can be shared. Nothing of `faulty` sequences is."""
        self.cache.settle(plan.copies)
        for slot in plan.slots:
            sequence = slot.sequence
            if sequence.status is Status.FINISHED:
                continue  # it ended while this plan ran ahead
            was_in_prefill = sequence.in_prefill
            sequence.num_computed = slot.first_guess
            sequence.peak = max(sequence.peak, sequence.num_computed)
            if slot.rows:
                sequence.next_row = max(sequence.next_row, slot.rows[-1] + 1 - len(slot.draft))
            if was_in_prefill and sequence not in faulty:
                self.cache.publish(sequence)

    def took(self, plan: StepPlan, seconds: float) -> None:
        """`plan` was computed in so long, and what came of it is known."""
        if self._pace:
            self._pace.note(plan, seconds)
        if self._speculation:
            self._speculation.settle(seconds)

    def abandon(self, plan: StepPlan) -> None:
        """The plan failed in the middle; its sequences are to be removed without keeping anything."""
        self.cache.settle(plan.copies, made=False)
        if self._speculation:
            self._speculation.abandon()

    def check(self) -> None:
        """Hold queues, sequences and pages against each other. Raises AssertionError."""
        assert len(self._running) <= self._max_sequences, "more sequences run than may"
        assert self._running == sorted(self._running, key=_place), "running sequences are out of order"
        assert all(sequence.status is Status.RUNNING for sequence in self._running), "a running sequence says it isn't"
        for sequence in self._waiting:
            assert sequence.status is Status.WAITING and not sequence.pages, "a waiting sequence runs or has pages"
        self.cache.check(self._running)

    def _schedule_all(self, sequences: Iterable[Sequence], draft: PlanDraft) -> None:
        for sequence in sequences:
            if draft.budget and sequence.status is Status.RUNNING:
                self._schedule(sequence, draft)

    def _schedule(self, sequence: Sequence, draft: PlanDraft) -> None:
        """Give `sequence` a slot, at the cost of the least important sequences where pages are short."""
        count = min(draft.left(sequence), draft.budget)
        while not self.cache.grow(sequence, draft.start(sequence) + count):
            if draft.is_ahead or draft.is_early:
                draft.must_wait = True
                return
            victim = self._running[-1]
            self._preempt(victim, draft)
            if victim is sequence:
                return
        if count:
            draft.add(sequence, count)

    def _preempt(self, sequence: Sequence, draft: PlanDraft) -> None:
        draft.drop(sequence)
        self._running.remove(sequence)
        key = self.cache.release(sequence, keep=True)
        if key is not None:
            self._programs.preempted(sequence, key)
        sequence.preemptions += 1
        self.add(sequence)

    def _admit(self, draft: PlanDraft) -> None:
        if draft.must_wait or not draft.budget or not self._may_admit():
            return
        passed_over, held = 0, False
        adapters = {other.adapter for other in self._running if other.adapter is not None}  # or on their way
        for sequence in self._order.candidates():
            adapter = sequence.adapter
            if adapter is not None and (held or (adapter not in adapters and len(adapters) >= self._max_adapters)):
                held = True  # others with adapters wait too, so that those that run come to their ends
            elif adapter is not None and self._places and not self._places.ready(adapter):
                adapters.add(adapter)
            elif self._awaits_prefix(sequence):
                passed_over += 1
            elif self._room.admit(sequence, self._running):
                self._enter(sequence)
                if adapter is not None:
                    adapters.add(adapter)
                self._schedule(sequence, draft)
                self._room.reserve(sequence)
            else:
                return
            if not draft.budget or len(self._running) >= self._max_sequences or passed_over >= MAX_PASSED_OVER:
                return

    def _may_admit(self) -> bool:
        """Whether anybody waits, there is a place in the batch, and there may be pages."""
        return bool(self._waiting) and len(self._running) < self._max_sequences and self._room.look(self._running)

    def _beyond(self, draft: PlanDraft) -> int:
        """What of the budget is not for prompts, since it would hold up what is in the draft."""
        return max(0, draft.budget - self._pace.room) if self._pace and draft.slots else 0

    def _speculate(self, speculation: Speculation, draft: PlanDraft) -> bool:
        """Let slots that draw verify guesses too, with what is left of the budget and pages that no running one will need. False
        where guesses are to be expected behind tokens that nobody knows yet.
        """
        drawing = [sequence for sequence, slot in draft.slots.items() if slot.sample]
        rooms = ((sequence, sequence.max_output + sequence.num_prompt - draft.end(sequence) - 1) for sequence in drawing)
        wanted = {sequence: room for sequence, room in rooms if room > 0} if draft.budget else {}
        if draft.is_ahead:
            return not speculation.awaits(wanted, draft.num_tokens, len(drawing))
        proposals = speculation.propose(wanted, draft.num_tokens, draft.budget, len(drawing))
        spare = self.cache.num_available - sum(self.cache.missing(other) for other in self._running) if proposals else 0
        for sequence, proposal in proposals.items():
            count = len(proposal.tokens)
            needed = self.cache.pages_for(sequence.num_tokens + count) - len(sequence.pages)
            if needed > 0 and (needed > spare or not self.cache.grow(sequence, sequence.num_tokens + count)):
                count = len(sequence.pages) * self.cache.pool.page_size - sequence.num_tokens
            else:
                spare -= max(0, needed)
            if count:
                draft.guess(sequence, proposal.cut(count))
        return True

    def _leave(self, sequence: Sequence) -> None:
        """Take `sequence` out of those that wait."""
        del self._waiting[sequence]
        self._order.discard(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.status = Status.RUNNING
        sequence.note_match()
        sequence.turn = self._order.admitted(sequence)
        insort(self._running, sequence, key=_place)
        self._programs.entered(sequence)

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a running prefill is about to compute what `sequence` would otherwise compute again.

        A page more than the tree has now is worth a wait; between sequences of one call, a token; between siblings of a fork,
        a page in all of them together.
        """
        for other in self._running:
            if not other.in_prefill or not (self._await_prefixes or other.call_id == sequence.call_id):
                continue
            common = self.cache.shared_prefix(sequence, other)
            worth = _worth_a_wait(sequence, other, self.cache.pool.page_size)
            if common - other.num_computed >= worth and common - self.cache.cached_tokens(sequence) >= worth:
                return True
        return False


def _place(sequence: Sequence) -> tuple[int, ...]:
    """Sorts running sequences: the important first, then those of older programs."""
    return (-sequence.hints.priority, sequence.turn, sequence.arrival, sequence.index)


def _worth_a_wait(sequence: Sequence, other: Sequence, page_size: int) -> int:
    """Tokens that `other` must have more than the tree for `sequence` to wait for it."""
    if other.call_id == sequence.call_id:
        return 1
    hints, others = sequence.hints, other.hints
    if sequence.program == other.program and hints.path[:-1] == others.path[:-1]:
        return max(1, page_size // max(1, hints.siblings - 1))
    return page_size
