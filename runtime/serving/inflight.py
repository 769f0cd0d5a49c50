"""The requests on their way: those still read and tokenised (`Ticket`s), those in the engine, and how many may wait.

Part of the gateway; each request in the engine is there with its record. Belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Scope

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import RequestAborted
from branchpoint.runtime.messages import Call, ScoreCall
from branchpoint.runtime.serving.errors import ApiError
from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.record import RequestRecord

__all__ = ["ABORTED", "TICKET", "InFlight", "Ticket", "prompt_tokens", "ticket_of"]

ABORTED = "The request was aborted through /abort_request."

TICKET = "branchpoint.ticket"
"""Where the ASGI scope holds the request's `Ticket`."""

Key = tuple[str, str]


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that has arrived and isn't in the engine yet; `key` is its caller's name and its id, where it has one."""

    key: Key
    aborted: bool = False

    def check(self) -> None:
        """Raise RequestAborted where it was aborted meanwhile."""
        if self.aborted:
            raise RequestAborted(ABORTED)


def ticket_of(scope: Scope) -> Ticket | None:
    """The ticket of a request, where it has one."""
    ticket = scope.get(TICKET)
    assert ticket is None or isinstance(ticket, Ticket)
    return ticket


def prompt_tokens(calls: Sequence[Call | ScoreCall]) -> int:
    """Tokens that the calls bring along."""
    extra = sum(len(tokens) for call in calls if isinstance(call, ScoreCall) for tokens in call.continuations)
    return extra + sum(len(call.prompt) for call in calls)


class InFlight:
    """Opens, finds and ends requests. `max_waiting_tokens` bounds the prompts of those that have no first event yet."""

    def __init__(self, max_waiting_tokens: int | None = None) -> None:
        self._max_waiting_tokens = max_waiting_tokens
        self._open = dict[Key, tuple[RequestRecord, Exchange]]()
        self._tickets = set[Ticket]()
        self._waiting_tokens = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    def arrive(self, caller: Caller, request_id: str | None) -> Ticket:
        """A request has arrived; give its ticket back with `leave`."""
        ticket = Ticket((caller.name, request_id or ""))
        self._tickets.add(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The request is in the engine, or was refused."""
        self._tickets.discard(ticket)

    def open(
        self,
        caller: Caller,
        record: RequestRecord,
        make: Callable[[Callable[[], None], Callable[[], None]], Exchange],
    ) -> Exchange:
        """Take a request in; `make` gets what to call at its first event and at its end. Raises ApiError 400 or 429."""
        key = (caller.name, record.request_id)
        if key in self._open:
            raise ApiError(
                400, f"A request with id {record.request_id!r} is still running; ids must be unique.", param="request_id"
            )
        tokens = prompt_tokens(record.calls)
        most = self._max_waiting_tokens
        if most is not None and self._waiting_tokens and self._waiting_tokens + tokens > most:
            told = f"Prompts of {self._waiting_tokens:,} tokens wait; with this one's {tokens:,} it would be more than {most:,}."
            raise ApiError(429, f"{told} Try again later.", retry_after=1)
        if caller.quota is not None:
            caller.quota.enter(tokens)
        self._waiting_tokens += tokens

        def on_first() -> None:
            self._waiting_tokens -= tokens

        def on_exit() -> None:
            if caller.quota is not None:
                caller.quota.leave(exchange.output_tokens)
            del self._open[key]
            if not self._open:
                self._idle.set()

        exchange = make(on_first, on_exit)
        self._open[key] = record, exchange
        self._idle.clear()
        return exchange

    def seen_by(self, caller: Caller, request_id: str | None = None) -> list[tuple[RequestRecord, Exchange]]:
        """The requests in the engine, of this id (None: all), that are `caller`'s, or anybody's where it is an admin."""
        return [entry for key, entry in self._open.items() if _matches(key, caller, request_id)]

    def abort(self, caller: Caller, request_id: str | None) -> int:
        """End the requests of this id (None: all) that are `caller`'s, or anybody's where it is an admin; how many."""
        running = [exchange for _, exchange in self.seen_by(caller, request_id)]
        coming = [ticket for ticket in self._tickets if _matches(ticket.key, caller, request_id) and not ticket.aborted]
        for exchange in running:
            exchange.fail(RequestAborted(ABORTED))
        for ticket in coming:
            ticket.aborted = True
        return len(running) + len(coming)

    def fail_all(self, error: BranchpointError) -> int:
        """End every request in the engine with this error; how many there were."""
        for _, exchange in self._open.values():
            exchange.fail(error)
        return len(self._open)

    async def idle(self, seconds: float) -> bool:
        """Wait until no request is open, at most so long; whether it came to that."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _matches(key: Key, caller: Caller, request_id: str | None) -> bool:
    return (request_id is None or key[1] == request_id) and (caller.admin or key[0] == caller.name)
