"""PortalThread: calls from any thread, their cancellation, and the end of the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import anyio
import pytest

from oubliette.api.errors import Closed
from oubliette.errors import Conflict
from oubliette.sync.portal_thread import PortalThread

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = 20.0


async def nothing() -> None:
    """The last call."""


@pytest.fixture
def loop() -> Iterator[PortalThread]:
    thread = PortalThread()
    thread.start()
    yield thread
    thread.stop(nothing)


class Waiting:
    """Work that waits until it is cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


def test_a_call_returns_the_result_or_raises_the_error(loop: PortalThread) -> None:
    async def seven() -> int:
        return 7

    async def fails() -> None:
        raise LookupError("no such thing")

    assert loop.call(seven) == 7
    with pytest.raises(LookupError, match="no such thing"):
        loop.call(fails)
    assert loop.read(lambda: 8) == 8


def test_threads_call_at_the_same_time(loop: PortalThread) -> None:
    both = anyio.Event()
    arrived: list[int] = []

    async def meet() -> int:
        arrived.append(1)
        if len(arrived) == 8:
            both.set()
        await both.wait()
        return len(arrived)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: loop.call(meet), range(8), timeout=SOON)) == [8] * 8


def test_the_end_cancels_calls_of_other_threads_before_its_own() -> None:
    loop, waiting = PortalThread(), Waiting()
    loop.start()
    order: list[bool] = []

    async def last() -> None:
        order.append(waiting.cancelled.is_set())

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(loop.call, waiting)
        assert waiting.began.wait(SOON)
        loop.stop(last)
        with pytest.raises(Closed, match="`with` block has ended"):
            call.result(SOON)
    assert order == [True]
    loop.stop(last)
    assert order == [True]
    with pytest.raises(Closed):
        loop.call(nothing)


def test_an_error_of_the_last_call_ends_the_thread_nevertheless() -> None:
    loop = PortalThread()
    loop.start()

    async def last() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        loop.stop(last)
    assert not [each for each in threading.enumerate() if each.name == "oubliette-sync"]


def test_a_call_from_its_own_loop_is_refused_where_it_would_wait_for_itself(
    loop: PortalThread,
) -> None:
    async def inside() -> None:
        loop.call(nothing)

    with pytest.raises(Conflict, match="own event loop"):
        loop.call(inside)


def test_before_the_beginning_and_twice_are_refused(loop: PortalThread) -> None:
    with pytest.raises(Conflict, match="opened before"):
        loop.start()
    with pytest.raises(Conflict) as error:
        PortalThread().call(nothing)
    assert "with oubliette.sync.open()" in str(error.value.hint)


def test_a_forked_process_is_refused(loop: PortalThread, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(Conflict, match="forked"):
            loop.call(nothing)
        loop.stop(nothing)
    loop.call(nothing)


def test_it_works_in_a_thread_whose_loop_runs(loop: PortalThread) -> None:
    async def main() -> None:
        loop.call(nothing)

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_a_tool_has_ended_is_closed():
    async def leave() -> None:
        raise SystemExit(3)

    thread = PortalThread()
    thread.start()
    with pytest.raises(Closed):
        thread.call(leave)
    assert thread._thread is not None
    thread._thread.join(10)  # until then the loop may still make a call
    with pytest.raises(Closed):
        thread.call(nothing)
    thread.stop(nothing)
