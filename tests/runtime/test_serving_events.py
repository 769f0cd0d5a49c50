"""The runtime's own events on the wire: what JSON can't say is written so that the other side can read it."""

import msgspec

from branchpoint.runtime.messages import Completed, Delta, Event, SampleFinished, TokenLogprob, Usage
from branchpoint.runtime.serving.generate_view import EventsView

NEVER = float("-inf")


def sent(event: Event) -> Event:
    (chunk,) = EventsView().chunks([(0, event)])
    return msgspec.json.decode(msgspec.json.encode(chunk), type=Event)


def test_infinite_logprobs_of_output_and_prompt_travel_as_the_lowest() -> None:
    token = TokenLogprob(1, NEVER, b"a", ((2, -0.5, b"b"), (3, NEVER, b"c")))
    bounded = TokenLogprob(1, -9999.0, b"a", ((2, -0.5, b"b"), (3, -9999.0, b"c")))
    first = TokenLogprob(4, None, b"d")
    assert sent(Delta("x", 0, "a", (1,), (token,))) == Delta("x", 0, "a", (1,), (bounded,))
    assert sent(Completed("x", Usage(1), (first, token))) == Completed("x", Usage(1), (first, bounded))


def test_other_events_travel_as_they_are() -> None:
    for event in (Delta("x", 0, "a", (1,)), SampleFinished("x", 0, "stop", "."), Completed("x", Usage(3))):
        assert sent(event) == event
