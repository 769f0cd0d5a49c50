"""What an engine has to tell: the events of its calls, in order, until they are taken.

Text of samples that go on is made here, which the engine asks for while the device is busy with the next step.
"""

from branchpoint.constrained.spec import Narrowing
from branchpoint.runtime.generation import Finish, Generation
from branchpoint.runtime.messages import Delta, Event, SampleFinished
from branchpoint.runtime.output import Piece
from branchpoint.runtime.sequence import Status

__all__ = ["Outbox"]


class Outbox:
    """Events of one engine; not empty where there are any."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._going_on: list[Generation] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def put(self, event: Event) -> None:
        """`event` comes next."""
        self._events.append(event)

    def report(self, member: Generation, finish: Finish | None, narrowed: tuple[Narrowing, ...]) -> Finish | None:
        """Give out the rest of a sample that has ended, and how it really did, which is returned. Of one that goes on, something
        may have become final: `tell` looks.
        """
        if finish is None:
            self._going_on.append(member)
            return None
        sequence = member.sequence
        piece, last = member.close(finish)
        self._put_piece(member, piece)
        tokens = member.completion_tokens
        self.put(SampleFinished(sequence.call_id, sequence.index, last.reason, last.stop, narrowed, tokens))
        return last

    def tell(self) -> None:
        """Give out what became final of samples that go on."""
        for member in self._going_on:
            if member.sequence.status is not Status.FINISHED:  # else another sample of its call has failed since
                self._put_piece(member, member.take())
        self._going_on.clear()

    def take(self) -> list[Event]:
        """All events; none is left."""
        events, self._events = self._events, []
        return events

    def _put_piece(self, member: Generation, piece: Piece) -> None:
        if piece:
            sequence = member.sequence
            self.put(Delta(sequence.call_id, sequence.index, piece.text, piece.tokens, piece.logprobs, piece.forced))
