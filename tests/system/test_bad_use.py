"""Wrong use of the API from Python is refused with the remedy, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

import oubliette
from oubliette.api.errors import Closed
from oubliette.errors import Conflict, HomeInUse, InvalidParameter
from oubliette.runtime.files.home import HomeLock, prepare
from tests.system.python_api import settings, short_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

SOON = 30.0


@pytest.fixture(autouse=True)
def no_leaked_threads() -> None:
    """`nothing_left` looks at threads, where an embedded system is opened in the test."""


@pytest.fixture
def home() -> Iterator[Path]:
    with short_home() as found:
        yield found


def opened(home: Path, **more: Any) -> oubliette.Oubliette:
    return oubliette.open(home, config=settings(), **more)


class Census:
    """The tasks, threads, descriptors and processes that there are in this process."""

    def __init__(self) -> None:
        self.tasks = {each for each in asyncio.all_tasks() if not each.done()}
        self.threads = set(threading.enumerate())
        self.descriptors = set(os.listdir("/proc/self/fd"))
        self.children = {each.pid for each in psutil.Process().children(recursive=True)}

    def more(self) -> list[str]:
        """What there is now beyond that."""
        now = Census()
        threads = [
            each.name
            for each in now.threads - self.threads
            # Those of the loop's executor, which others use too.
            if each.is_alive() and not each.name.startswith(("asyncio_", "AnyIO"))
        ]
        files = []
        for each in now.descriptors - self.descriptors:
            with contextlib.suppress(OSError):  # that of the listing itself
                files.append(os.readlink(f"/proc/self/fd/{each}"))
        return [
            *(repr(each) for each in now.tasks - self.tasks),
            *threads,
            *files,
            *(f"process {each}" for each in now.children - self.children),
        ]


@contextlib.asynccontextmanager
async def nothing_left() -> Any:
    """Check that what is done in the block leaves nothing in this process."""
    await asyncio.to_thread(int)  # the loop's executor has begun
    before = Census()
    yield
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while before.more():
                await asyncio.sleep(0.05)
    assert before.more() == []


def running(home: Path) -> list[str]:
    """Processes of the home."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(str(home) in each for each in arguments):
            found.append(" ".join(arguments)[:200])
    return found


# ---------------------------------------------------------------- one program for a home


async def test_a_home_that_this_process_uses_is_not_opened_twice(home):
    async with nothing_left(), opened(home):
        with pytest.raises(HomeInUse) as refused:
            await opened(home).__aenter__()
    assert "oubliette.connect" in refused.value.hint


async def test_a_home_that_another_process_uses_is_not_opened(home):
    program = (
        "import asyncio, sys, json, oubliette\n"
        "async def main():\n"
        "    async with oubliette.open(sys.argv[1], config=json.loads(sys.argv[2])):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(home), json.dumps(settings()),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        async with asyncio.timeout(SOON):
            assert await other.stdout.readline() == b"open\n"
            async with nothing_left():
                with pytest.raises(HomeInUse) as refused:
                    await opened(home).__aenter__()
            for way in (
                "oubliette.connect(url, token)",
                "oubliette token create",
                'open("folder")',
            ):
                assert way in refused.value.hint
            other.stdin.close()
            assert await other.wait() == 0
            async with opened(home) as ob:
                assert await ob.projects() == []
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()


async def test_a_home_whose_lock_a_command_holds_for_a_moment_is_opened(home, monkeypatch):
    tried = asyncio.Event()
    acquire = HomeLock.acquire

    def noted(lock: HomeLock) -> None:
        try:
            acquire(lock)
        except HomeInUse:
            tried.set()
            raise

    monkeypatch.setattr(HomeLock, "acquire", noted)
    prepare(home)
    command = HomeLock(home)
    command.acquire()
    async with asyncio.timeout(3 * SOON), asyncio.TaskGroup() as group:
        opening = group.create_task(opened(home).__aenter__())
        await tried.wait()
        command.release()
        ob = await opening
        await ob.aclose()


async def test_two_homes_are_open_at_the_same_time():
    async with nothing_left():
        with short_home() as one, short_home() as two:
            async with opened(one) as first, opened(two) as second:
                for each, word in ((first, "one"), (second, "two")):
                    project = await each.project("same", init_git=False)
                    assert (await project.run(f"say {word}")).text == word
                assert len(await first.projects()) == 1
            assert running(one) == running(two) == []


# ---------------------------------------------------------------- the block


async def test_it_is_no_blocking_context_manager(home):
    with pytest.raises(Conflict, match="async with") as refused, opened(home):
        pass
    assert "oubliette.sync.open()" in refused.value.hint


async def test_it_is_not_entered_twice(home):
    ob = opened(home)
    async with ob:
        with pytest.raises(Conflict, match="opened before"):
            await ob.__aenter__()
        assert await ob.projects() == []
    with pytest.raises(Conflict, match="opened before"):
        await ob.__aenter__()


async def test_it_is_not_used_before_its_block(home):
    with pytest.raises(Conflict, match="not open"):
        await opened(home).projects()
    assert not home.exists()


async def test_nothing_of_it_is_used_after_its_block(home):
    async with opened(home) as ob:
        project = await ob.project("one", init_git=False)
        session = await project.spawn("say hello")
        turn = session.turn
        assert turn is not None
        await turn
        events = session.events()
        await anext(events)
    calls: list[Callable[[], Any]] = [
        ob.projects,
        lambda: project.spawn("say hello"),
        lambda: project.run("say hello"),
        lambda: session.send("say hello"),
        session.get,
        session.end,
        turn.result,
        lambda: anext(session.events()),
        lambda: ob.caller("c", []).__aenter__(),
    ]
    for call in calls:
        with pytest.raises(Closed, match="has ended"):
            await call()
    await ob.aclose()  # a second time does nothing


async def test_it_is_left_by_another_task_than_entered_it(home):
    async with nothing_left():
        ob = opened(home)
        await asyncio.create_task(ob.__aenter__())
        project = await ob.project("one", init_git=False)
        assert (await project.run("say hello")).text == "hello"
        await asyncio.create_task(ob.aclose())
        assert running(home) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
async def test_nothing_is_left_when_the_block_raises(home, error):
    async with nothing_left():
        with pytest.raises(error):
            async with opened(home) as ob:
                project = await ob.project("one", init_git=False)
                await project.spawn("sleep 60")
                raise error
        assert running(home) == []


async def test_nothing_is_left_when_the_block_is_cancelled(home):
    async with nothing_left():
        inside = asyncio.Event()

        async def work() -> None:
            async with opened(home) as ob:
                project = await ob.project("one", init_git=False)
                await project.spawn("sleep 60")
                inside.set()
                await project.run("sleep 60")

        task = asyncio.create_task(work())
        async with asyncio.timeout(SOON):
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert running(home) == []


@pytest.mark.parametrize("after", [0, 1, 5, 20, 100, 300])
async def test_nothing_is_left_when_opening_is_cancelled(home, after):
    """After so many rounds of the event loop."""
    async with nothing_left():
        task = asyncio.create_task(opened(home).__aenter__())
        for _ in range(after):
            await asyncio.sleep(0.001 if after > 20 else 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            ob = await task  # it was open already
            await ob.aclose()
        assert running(home) == []
    async with opened(home) as again:
        assert await again.projects() == []


async def test_nothing_is_left_when_opening_has_a_deadline(home):
    async with nothing_left():
        with anyio.move_on_after(0.02) as scope:
            async with opened(home):
                pass
        assert scope.cancelled_caught
        assert running(home) == []


async def test_nothing_is_left_when_a_configuration_is_refused(home):
    async with nothing_left():
        with pytest.raises(oubliette.OublietteError, match="no_such"):
            await oubliette.open(home, config={"server.no_such": 1}).__aenter__()


# ---------------------------------------------------------------- where it runs


@pytest.mark.requires("trio")
def test_under_trio_the_remedy_is_named(home):
    async def main() -> None:
        async with opened(home):
            pass

    with pytest.raises(Conflict, match="asyncio") as refused:
        anyio.run(main, backend="trio")
    assert 'backend="asyncio"' in refused.value.hint


def test_without_an_event_loop_of_asyncio_the_remedy_is_named(home):
    """As trio runs it: a coroutine that no loop of asyncio steps."""
    entering = opened(home).__aenter__()
    with pytest.raises(Conflict, match="asyncio") as refused:
        entering.send(None)
    assert "oubliette.sync" in refused.value.hint


@pytest.mark.requires("uvloop")
def test_it_runs_on_uvloop(home):
    async def main() -> str:
        async with opened(home) as ob:
            project = await ob.project("one", init_git=False)
            return (await project.run("say hello")).text

    options = {"use_uvloop": True}
    assert anyio.run(main, backend="asyncio", backend_options=options) == "hello"


async def test_it_is_not_used_from_another_thread_or_loop(home):
    async with opened(home) as ob:
        project = await ob.project("one", init_git=False)
        session = await project.spawn("say hello")

        def with_a_loop() -> None:
            asyncio.run(_projects(ob))

        def without() -> None:
            session.events()

        for use in (with_a_loop, without):
            with pytest.raises(Conflict, match="one event loop") as refused:
                await asyncio.to_thread(use)
            assert "oubliette.sync" in refused.value.hint
        loop = asyncio.get_running_loop()
        passed = asyncio.to_thread(
            lambda: asyncio.run_coroutine_threadsafe(_projects(ob), loop).result(SOON)
        )
        assert await passed == 1


async def _projects(ob: oubliette.Oubliette) -> int:
    return len(await ob.projects())


# ---------------------------------------------------------------- what it is given


def test_options_of_open_and_connect_are_checked_before_anything_is_opened(home):
    with pytest.raises(InvalidParameter) as refused:
        oubliette.open(home, on_exit="kill")  # type: ignore[arg-type]
    assert refused.value.field == "on_exit"
    assert "'keep'" in refused.value.message
    with pytest.raises(InvalidParameter) as refused:
        oubliette.connect("http://127.0.0.1:9/mcp", "key", on_exit="kill")  # type: ignore[arg-type]
    assert refused.value.field == "on_exit"
    for more in ({"home": home}, {"on_exit": "keep"}):
        with pytest.raises(InvalidParameter) as refused:
            oubliette.open(temporary=True, **more)  # type: ignore[arg-type]
        assert refused.value.field == "temporary"
    with pytest.raises(InvalidParameter) as refused:
        oubliette.open(home, caller_id="a b")
    assert refused.value.field == "caller_id"
    assert not home.exists()


def no_hints(x):  # noqa: ANN001, ANN202
    """A function without type hints."""


def strange(x: threading.Lock) -> str:
    """A function whose parameter has no JSON Schema."""
    return str(x)


def fine(x: int) -> int:
    """Return it."""
    return x


def twin(x: str) -> str:
    """Return it too."""
    return x


twin.__name__ = "fine"


async def test_tools_that_cannot_be_offered_are_refused_with_the_remedy(home):
    async with opened(home) as ob:
        project = await ob.project("one", init_git=False)
        for tools, words in (
            ([no_hints], ["no_hints", "x"]),
            ([strange], ["strange", "x"]),
            ([fine, twin], ["fine"]),
            ([fine, fine], ["fine"]),
            ([lambda x: x], ["lambda"]),
            ([17], ["17"]),
        ):
            for use in (
                lambda tools=tools: project.run("say hello", tools=tools),
                lambda tools=tools: ob.caller("c", tools).__aenter__(),
            ):
                with pytest.raises(oubliette.OublietteError) as refused:
                    await use()
                for word in words:
                    assert word in str(refused.value)
        assert await project.sessions() == []


async def test_types_that_no_answer_can_have_are_refused_before_anything_starts(home):
    async with opened(home) as ob:
        project = await ob.project("one", init_git=False)
        for kind in (threading.Lock, object(), asyncio.Event):
            with pytest.raises(oubliette.BadResultType):
                await project.run("say hello", returns=kind)  # type: ignore[call-overload]
        assert await project.sessions() == []
