"""Answers are kept once, together with what their tools wrote, whoever else writes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

import oubliette
from oubliette.api.callers.once_store import OnceStore
from oubliette.api.callers.request_answers import CallAnswer
from oubliette.api.tools import tool_table
from oubliette.contract.events import CallerToolRequest
from oubliette.errors import ConfigError, DeadlineExceeded, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]
SOON = 5.0


def _start(work: Any, name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work, name=name)


class Accepting:
    """A connection whose system accepts every answer."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.errors: list[Exception] = []
        """Of the next calls, which it does not take."""

    async def call(self, tool: str, arguments: Mapping[str, Any], **_: object) -> dict[str, Any]:
        """Accept."""
        assert tool == "caller_tool_response"
        if self.errors:
            raise self.errors.pop(0)
        self.answers.append(dict(arguments))
        return {}


class Desk:
    """Tools with a file of answers, and requests to them."""

    def __init__(self, path: Path, *tools: Callable[..., Any]) -> None:
        self.path = path
        self.store = OnceStore(path)
        self.connection = Accepting()
        self._tools = tool_table(tools)

    async def ask(self, tool: str, request_id: str, **arguments: Any) -> None:
        """Deliver a request."""
        request = CallerToolRequest(
            session_id="s", request_id=request_id, tool=tool, arguments=arguments
        )
        await CallAnswer(self.connection, request, self._tools, self.store, _start).give()  # type: ignore[arg-type]

    @property
    def last(self) -> dict[str, Any]:
        """The last answer: `result` or `error`."""
        return {k: v for k, v in self.connection.answers[-1].items() if k in {"result", "error"}}

    def written(self) -> list[str]:
        """What the tools wrote."""
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            return [row[0] for row in database.execute("SELECT word FROM words ORDER BY rowid")]


@pytest.fixture
def desk(tmp_path) -> Iterator[Callable[..., Desk]]:
    path = tmp_path / "once.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE words (word TEXT)")
    made: list[Desk] = []

    def make(*tools: Callable[..., Any]) -> Desk:
        made.append(Desk(path, *tools))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


def write(word: str, *, call: oubliette.Call) -> str:
    """Write."""
    call.transaction().execute("INSERT INTO words VALUES (?)", (word,))
    return word


async def write_slowly(word: str, *, call: oubliette.Call) -> str:
    """Write, and wait before the end."""
    call.transaction().execute("INSERT INTO words VALUES (?)", (word,))
    await asyncio.sleep(0.02)
    return word


async def test_a_request_that_is_delivered_again_is_answered_from_the_file(desk):
    first = desk(write)
    await first.ask("write", "r1", word="a")
    second = desk(write)
    await second.ask("write", "r1", word="a")
    assert (first.last, second.last, first.written()) == ({"result": "a"}, {"result": "a"}, ["a"])


async def test_calls_at_the_same_time_write_one_after_the_other(desk):
    """On the event loop and in threads, more of them than there are threads."""
    house = desk(write, write_slowly)
    async with asyncio.timeout(SOON):
        await asyncio.gather(
            *(house.ask(("write", "write_slowly")[n % 2], f"r{n}", word=str(n)) for n in range(60))
        )
    assert sorted(house.written(), key=int) == [str(n) for n in range(60)]
    assert all("error" not in each for each in house.connection.answers)


async def test_the_event_loop_goes_on_while_calls_wait_to_write(desk):
    house = desk(write, write_slowly)
    calls = asyncio.gather(
        *(house.ask(("write", "write_slowly")[n % 2], f"r{n}", word=str(n)) for n in range(20))
    )
    longest, last = 0.0, asyncio.get_running_loop().time()
    while not calls.done():
        await asyncio.sleep(0)
        now = asyncio.get_running_loop().time()
        longest, last = max(longest, now - last), now
    await calls
    assert longest < 1.0


async def test_calls_that_write_nothing_are_answered_beside_one_that_does(desk):
    may = asyncio.Event()

    async def hold(*, call: oubliette.Call) -> str:
        """Hold the right to write."""
        call.transaction().execute("INSERT INTO words VALUES ('held')")
        await may.wait()
        return "held"

    def look() -> str:
        """Look."""
        return "seen"

    house = desk(hold, look)
    holding = asyncio.create_task(house.ask("hold", "r0"))
    others = [asyncio.create_task(house.ask("look", f"r{n}")) for n in range(1, 40)]
    await asyncio.sleep(0.05)
    may.set()
    async with asyncio.timeout(SOON):
        await asyncio.gather(holding, *others)
    assert house.written() == ["held"]


async def test_what_two_programs_do_for_one_request_is_there_once(desk):
    """The one that was superseded has not stopped yet."""
    begun, may = asyncio.Event(), asyncio.Event()

    async def late(word: str, *, call: oubliette.Call) -> str:
        """Write after the other program."""
        begun.set()
        await may.wait()
        call.transaction().execute("INSERT INTO words VALUES (?)", (f"late {word}",))
        return f"late {word}"

    old, new = desk(oubliette.tool(name="write")(late)), desk(write)
    slow = asyncio.create_task(old.ask("write", "r1", word="a"))
    await begun.wait()
    await new.ask("write", "r1", word="a")
    may.set()
    await slow
    assert new.written() == ["a"]
    assert old.last == new.last == {"result": "a"}


async def test_what_a_tool_wrote_before_its_error_is_undone_and_the_error_is_kept(desk):
    def fail(word: str, *, call: oubliette.Call) -> str:
        """Write and fail."""
        write(word, call=call)
        raise oubliette.ToolError("no such order")

    house = desk(fail)
    await house.ask("fail", "r1", word="a")
    await house.ask("fail", "r1", word="a")
    assert house.written() == []
    assert house.last == {"error": "no such order"}


@pytest.mark.parametrize("how", ["commit", "with", "script"])
async def test_a_tool_cannot_commit_by_itself(desk, caplog, how):
    def hasty(*, call: oubliette.Call) -> str:
        """Commit."""
        database = call.transaction()
        database.execute("INSERT INTO words VALUES ('a')")
        if how == "commit":
            database.commit()
        elif how == "script":
            database.executescript("INSERT INTO words VALUES ('b')")
        else:
            with database:
                database.execute("INSERT INTO words VALUES ('b')")
        return "done"

    house = desk(hasty, write)
    await house.ask("hasty", "r1")
    assert "error" in house.last
    assert house.written() == []
    assert "committed together with the answer" in caplog.text
    await house.ask("write", "r2", word="c")
    assert house.written() == ["c"]


async def test_a_cancelled_call_leaves_nothing_and_lets_the_next_one_write(desk):
    house = desk(write, write_slowly)
    slow = asyncio.create_task(house.ask("write_slowly", "r1", word="a"))
    async with asyncio.timeout(SOON):
        while slow.get_stack() and not house.store.turns.value == 0:
            await asyncio.sleep(0)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await house.ask("write", "r2", word="b")
    assert house.written() == ["b"]


@pytest.mark.parametrize("first", [True, False])
async def test_a_thread_that_is_left_behind_writes_nothing(desk, first):
    """Neither on, where it has begun, nor does it begin."""
    begun, may, ended = threading.Event(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def linger(*, call: oubliette.Call) -> str:
        """Go on after the end."""
        try:
            if first:
                call.transaction().execute("INSERT INTO words VALUES ('before')")
            begun.set()
            may.wait(SOON)
            call.transaction().execute("INSERT INTO words VALUES ('after')")
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()
        return "late"

    house = desk(oubliette.tool(timeout=0.2)(linger), write)
    async with asyncio.timeout(SOON):
        await house.ask("linger", "r1")
        assert "had no result" in house.last["error"]
        may.set()
        await asyncio.to_thread(ended.wait, SOON)
        await house.ask("write", "r2", word="b")
    assert len(errors) == 1
    assert house.written() == ["b"]


async def test_a_thread_that_waits_to_write_when_it_is_left_behind_writes_nothing(desk):
    may, ended = asyncio.Event(), threading.Event()

    async def hold(*, call: oubliette.Call) -> str:
        """Hold the right to write."""
        call.transaction()
        await may.wait()
        return "held"

    def wait(*, call: oubliette.Call) -> str:
        """Wait for it, too long."""
        try:
            write("late", call=call)
        finally:
            ended.set()
        return "late"

    house = desk(hold, oubliette.tool(timeout=0.1)(wait), write)
    holding = asyncio.create_task(house.ask("hold", "r0"))
    waiting = asyncio.create_task(house.ask("wait", "r1"))
    async with asyncio.timeout(SOON):
        await asyncio.sleep(0.3)
        may.set()
        await asyncio.gather(holding, waiting)
        await asyncio.to_thread(ended.wait, SOON)
        assert "had no result" in house.last["error"]
        await house.ask("write", "r2", word="b")
    assert house.written() == ["b"]


async def test_an_answer_that_cannot_be_kept_is_an_error_and_nothing_was_done(desk):
    house = desk(write)
    with contextlib.closing(sqlite3.connect(house.path)) as database:
        database.execute("DROP TABLE oubliette_answers")
    await house.ask("write", "r1", word="a")
    assert "cannot be kept" in house.last["error"]
    assert house.written() == []


async def test_an_answer_that_cannot_be_committed_is_an_error_and_what_was_written_is_undone(desk):
    def spoil(*, call: oubliette.Call) -> str:
        """Write, and remove the place of the answer."""
        call.transaction().execute("INSERT INTO words VALUES ('a')")
        call.transaction().execute("DROP TABLE oubliette_answers")
        return "done"

    house = desk(spoil, write)
    await house.ask("spoil", "r1")
    assert "cannot be kept" in house.last["error"]
    await house.ask("write", "r2", word="b")
    assert house.written() == ["b"]


async def test_an_answer_is_sent_until_it_is_taken(desk):
    """A system that was away does not ask a program again that listened all the time."""
    house = desk(write)
    house.connection.errors += [Unavailable("away"), DeadlineExceeded("slow")]
    async with asyncio.timeout(SOON):
        await house.ask("write", "r1", word="a")
    assert house.last == {"result": "a"}
    assert house.written() == ["a"]


async def test_an_answer_that_nobody_waits_for_is_dropped(desk):
    house = desk(write)
    house.connection.errors.append(NotFound("request"))
    await house.ask("write", "r1", word="a")
    assert house.connection.answers == []


async def test_a_file_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(ConfigError, match="once="):
        OnceStore(tmp_path / "missing" / "once.db")
