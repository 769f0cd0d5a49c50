"""What the executor waits with: something that happens once, and calls into its loop that are batched and never lost."""

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator

import pytest

from branchpoint.lang.dispatcher import Dispatcher
from branchpoint.lang.latch import Latch
from branchpoint.lang.stream import Replay


def test_a_latch_calls_back_once_whenever_it_is_asked() -> None:
    latch, called = Latch(), list[str]()
    latch.then(lambda: called.append("before"))
    assert not latch.is_set
    latch.set()
    latch.set()
    latch.then(lambda: called.append("after"))
    assert called == ["before", "after"] and latch.is_set


def test_a_latch_is_waited_for_in_threads() -> None:
    latch, woken = Latch(), list[int]()

    def wait() -> None:
        latch.wait()
        woken.append(1)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    latch.set()
    for thread in threads:
        thread.join(10)
    assert len(woken) == 8
    latch.wait()


async def test_a_latch_is_waited_for_in_loops_and_a_waiter_may_give_up() -> None:
    latch = Latch()
    gone = asyncio.create_task(latch.reached())
    waiting = [asyncio.create_task(latch.reached()) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    threading.Thread(target=latch.set).start()
    await asyncio.gather(*waiting)
    await latch.reached()
    assert gone.cancelled()


def test_a_latch_outlives_the_loop_of_a_waiter() -> None:
    latch = Latch()

    async def leave() -> None:
        task = asyncio.create_task(latch.reached())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    threading.Thread(target=latch.set).start()
    latch.wait()
    assert latch.is_set


def test_posted_calls_come_in_order_from_many_threads_and_one_that_fails_stops_no_other() -> None:
    dispatcher = Dispatcher()
    seen: list[tuple[int, int]] = []
    failures: list[object] = []
    dispatcher._loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

    def poster(number: int) -> None:
        for place in range(300):
            assert dispatcher.post(seen.append, (number, place))
            if place == 100:
                dispatcher.post(int, "no number")

    with dispatcher.hold():
        threads = [threading.Thread(target=poster, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    dispatcher.close()
    for number in range(4):
        assert [place for which, place in seen if which == number] == list(range(300))
    assert [type(failure) for failure in failures] == [ValueError] * 4


def test_what_is_posted_before_a_close_is_called_and_what_comes_later_is_told() -> None:
    for _ in range(20):
        dispatcher, called = Dispatcher(), list[int]()
        accepted: list[bool] = []
        start = threading.Barrier(2)

        def poster(dispatcher: Dispatcher = dispatcher, called: list[int] = called, accepted: list[bool] = accepted) -> None:
            start.wait()  # noqa: B023  # the thread ends within the round
            accepted.extend(dispatcher.post(called.append, 1) for _ in range(200))

        thread = threading.Thread(target=poster)
        thread.start()
        start.wait()
        dispatcher.close()
        thread.join(10)
        assert len(called) == sum(accepted)


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a loop"])
async def test_what_a_loop_still_has_to_close_is_closed_when_its_backend_is_collected(inside: bool) -> None:
    closed, dispatcher = threading.Event(), Dispatcher()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    async def leave() -> None:
        left = endless()
        await anext(left)

    def collect() -> None:
        dispatcher.run(leave())
        with dispatcher.hold():
            dispatcher.post(gc.collect)
        dispatcher.discard()

    if inside:
        collect()
    else:
        await asyncio.to_thread(collect)
    assert closed.wait(10)


async def test_a_reader_that_is_left_leaves_nothing_to_close() -> None:
    replay = Replay[str]()
    replay.put("a")
    replay.put("b")
    async for piece in replay:
        assert piece == "a"
        break
    assert not inspect.isasyncgen(aiter(replay))
