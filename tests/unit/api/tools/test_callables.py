"""A call of a function ends in JSON values or in a refusal that the agent can read."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import decimal
import enum
import functools
import logging
import threading
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pydantic
import pytest

from oubliette.api.tools import Call, CallableTool, ToolCallRefused, ToolError, callables, tool

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_tasks")]


async def run(function, arguments=None, call=None) -> Any:
    with anyio.fail_after(10):
        return await CallableTool(function).run(arguments or {}, call or Call(session_id="s"))


async def refusal(function, arguments=None, call=None) -> str:
    with pytest.raises(ToolCallRefused) as refused:
        await run(function, arguments, call)
    return str(refused.value)


# ---------------------------------------------------------------- where it runs
async def test_a_plain_function_runs_in_a_thread_and_an_async_one_on_the_loop():
    def plain(a: int) -> list:
        return [a, threading.current_thread() is threading.main_thread()]

    async def later(a: int) -> list:
        return [a, threading.current_thread() is threading.main_thread()]

    assert await run(plain, {"a": 1}) == [1, False]
    assert await run(later, {"a": 1}) == [1, True]


async def test_context_variables_reach_the_thread():
    user = contextvars.ContextVar("user", default="none")

    def who() -> str:
        return user.get()

    user.set("ann")
    assert await run(who) == "ann"


async def test_plain_functions_run_beside_each_other():
    meeting = threading.Barrier(3, timeout=10)

    def meet() -> int:
        return meeting.wait()

    ready = CallableTool(meet)
    with anyio.fail_after(10):
        assert sorted(await asyncio.gather(*(ready.run({}, Call()) for _ in range(3)))) == [0, 1, 2]


async def test_a_plain_function_around_an_async_one_is_awaited():
    async def inner(a: int) -> int:
        return a + 1

    assert await run(functools.partial(inner, a=1)) == 2

    @functools.wraps(inner)
    def around(*args, **kwargs):
        return inner(*args, **kwargs)

    assert await run(around, {"a": 1}) == 2


async def test_methods_partials_and_callable_objects_are_functions():
    class Adder:
        """Adds."""

        def __init__(self, base: int) -> None:
            self.base = base

        def __call__(self, a: int) -> int:
            return self.base + a

        async def later(self, a: int) -> int:
            return self.base + a

    class LateAdder(Adder):
        async def __call__(self, a: int) -> int:
            """Add later."""
            return self.base + a

    assert CallableTool(Adder(3)).description == "Adds."
    assert CallableTool(LateAdder(3)).description == "Add later."
    assert CallableTool(Adder(3)).name == "Adder"
    for function in (Adder(3), LateAdder(3), Adder(3).later):
        assert await run(function, {"a": 1}) == 4


async def test_the_function_gets_its_call():
    def about(call: Call) -> list:
        return [call.session_id, list(call.ancestry), call.depth, call.deadline, call.request_id]

    call = Call(session_id="c", ancestry=("a", "b", "c"), deadline=3.5, request_id="r")
    assert await run(about, {}, call) == ["c", ["a", "b", "c"], 2, 3.5, "r"]


# ---------------------------------------------------------------- results
class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    colour: Colour = Colour.RED


class Model(pydantic.BaseModel):
    when: dt.date
    lines: list[Line] = []


class Markup(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError


class Many(int): ...


class Much(float): ...


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        (None, None),
        ("text", "text"),
        (Line("a"), {"sku": "a", "colour": "red"}),
        ([Model(when="2026-11-23")], [{"when": "2026-11-23", "lines": []}]),
        ({"x": (1, (2,))}, {"x": [1, [2]]}),
        (Pair(1, 2), [1, 2]),
        ({1: {"a"}}, {"1": ["a"]}),
        (b"x", "eA=="),
        (decimal.Decimal("1.50"), "1.50"),
        ([Markup("x"), Many(3), Much(0.5), Path("a/b")], ["x", 3, 0.5, "a/b"]),
        (msgspec.defstruct("Point", [("x", int)])(3), {"x": 3}),
    ],
)
async def test_a_result_becomes_json_values(result, plain):
    def give() -> Any:
        return result

    found = await run(give)
    assert found == plain
    assert msgspec.json.decode(msgspec.json.encode(found)) == plain


def cyclic() -> list:
    inner: list = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (object(), "objects of type object"),
        ([{"a": lambda: 3}], "function"),
        (float("nan"), "NaN"),
        ({"x": [float("inf")]}, "NaN or Infinity"),
        (2**64, "64 bits"),
        ("\ud800", "Unicode"),
        (cyclic(), "contains itself"),
        ({(1, 2): 3}, "keys"),
        (functools.reduce(lambda inner, _: [inner], range(80), 1), "nested deeper"),
    ],
    ids=["object", "function", "nan", "inf", "wide", "surrogate", "cycle", "keys", "deep"],
)
async def test_a_result_that_is_not_json_is_an_error_that_names_the_tool(result, reason, caplog):
    def give() -> Any:
        return result

    text = await refusal(give)
    assert text.startswith("give: its result, of type ")
    assert reason in text
    assert "give" in caplog.text


# ---------------------------------------------------------------- errors
async def test_an_exception_is_the_tools_error_and_its_traceback_is_in_the_log(caplog):
    def divide(a: int, b: int) -> float:
        return a / b

    async def look_up() -> str:
        return {}["x"]

    assert await refusal(divide, {"a": 1, "b": 0}) == "ZeroDivisionError: division by zero"
    assert await refusal(look_up) == "KeyError: 'x'"
    records = [each for each in caplog.records if each.name == "oubliette.tools"]
    assert [each.levelno for each in records] == [logging.ERROR, logging.ERROR]
    assert "tool divide failed" in caplog.text
    assert "return a / b" in caplog.text


async def test_a_deliberate_error_is_its_message_alone_and_is_not_logged(caplog):
    def find() -> str:
        raise ToolError("there is no such order")

    assert await refusal(find) == "there is no such order"
    assert caplog.text == ""


async def test_the_errors_of_a_group_are_all_named():
    async def many() -> None:
        raise ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [ToolError("b")])])

    assert await refusal(many) == "ValueError: a; b"


async def test_an_error_without_text_is_named_and_a_long_one_shortened(caplog):
    # The workers of a test run cannot pass on half a surrogate pair.
    caplog.set_level(logging.CRITICAL + 1, "oubliette.tools")

    def empty() -> None:
        raise ValueError

    def long() -> None:
        raise ValueError("x\ud800" * 10_000)

    assert await refusal(empty) == "ValueError"
    text = await refusal(long)
    assert len(text) == 8000
    text.encode()


async def test_an_error_that_cannot_describe_itself_is_named():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Mute

    assert await refusal(fail) == "Mute"


async def test_an_error_in_a_check_of_the_users_types_is_an_answer():
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def check(cls, n: int) -> int:
            if n == 3:
                raise KeyError("three")
            if n % 2:
                raise ValueError("is odd")
            return n

    def take(even): ...

    take.__annotations__ = {"even": Even}
    assert "even.n: Value error, is odd" in await refusal(take, {"even": {"n": 1}})
    assert await refusal(take, {"even": {"n": 3}}) == "KeyError: 'three'"


async def test_something_cancelled_inside_is_an_error_and_does_not_end_the_caller():
    async def wait() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    assert await refusal(wait) == "wait: was cancelled"


# ---------------------------------------------------------------- limits and cancellation
async def test_an_async_function_is_cancelled_at_its_time_limit():
    ended = []

    @tool(timeout=0.05)
    async def hang(call: Call) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    call = Call()
    assert await refusal(hang, {}, call) == "hang: had no result within 0.05 s"
    assert ended == [True]
    assert call.cancelled


async def test_a_thread_is_left_behind_at_its_time_limit_and_sees_that_nobody_waits():
    seen = threading.Event()

    @tool(timeout=0.5)
    def hang(call: Call) -> None:
        assert call.pause(10)
        call.progress("ignored")
        seen.set()

    shown: list[str] = []
    assert "within 0.5 s" in await refusal(hang, {}, Call(on_progress=shown.append))
    assert await asyncio.to_thread(seen.wait, 10)
    assert shown == []


async def test_a_timeout_of_the_functions_own_is_its_error():
    @tool(timeout=10)
    async def impatient() -> None:
        raise TimeoutError("the database")

    assert await refusal(impatient) == "TimeoutError: the database"


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_cancelling_a_run_cancels_an_async_function(how):
    started, ended = asyncio.Event(), []

    async def hang(call: Call) -> None:
        started.set()
        try:
            await call.wait_cancelled()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    call = Call()
    if how == "task":
        task = asyncio.create_task(CallableTool(hang).run({}, call))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(CallableTool(hang).run, {}, call)
            await started.wait()
            group.cancel_scope.cancel()
    assert ended == [True]
    assert call.cancelled


async def test_cancelling_a_run_leaves_the_thread_behind_and_does_not_wait_for_it():
    started, release, ended = threading.Event(), threading.Event(), threading.Event()
    seen = []

    def hang(call: Call) -> None:
        started.set()
        release.wait(10)
        seen.append(call.cancelled)
        ended.set()

    task = asyncio.create_task(CallableTool(hang).run({}, Call()))
    assert await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
        await task
    assert seen == []
    release.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert seen == [True]


async def test_threads_that_were_left_behind_count_until_they_end(monkeypatch):
    monkeypatch.setattr(callables, "_THREADS", 2)
    started, release, count = threading.Semaphore(0), threading.Event(), []

    def hang() -> int:
        count.append(1)
        started.release()
        release.wait(10)
        return len(count)

    ready = CallableTool(hang)
    try:
        for _ in range(2):
            left = asyncio.create_task(ready.run({}, Call()))
            assert await asyncio.to_thread(started.acquire, timeout=10)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        ready.timeout = 0.05
        with pytest.raises(ToolCallRefused):
            await ready.run({}, Call())
        assert len(count) == 2
        ready.timeout = 10
        waiting = asyncio.create_task(ready.run({}, Call()))
    finally:
        release.set()
    assert await waiting == 3


async def test_a_tool_works_on_loops_one_after_another():
    def add(a: int) -> int:
        return a + 1

    ready = CallableTool(add)
    assert await ready.run({"a": 1}, Call()) == 2
    assert await asyncio.to_thread(lambda: asyncio.run(ready.run({"a": 2}, Call()))) == 3


# ---------------------------------------------------------------- progress
async def test_progress_is_reported_on_the_loop_from_both_kinds_of_functions():
    shown: list[tuple[str, bool]] = []

    def show(text: str) -> None:
        shown.append((text, threading.current_thread() is threading.main_thread()))

    def plain(call: Call) -> None:
        call.progress("one")
        call.progress("two")

    async def later(call: Call) -> None:
        call.progress("three")

    await run(plain, {}, Call(on_progress=show))
    await run(later, {}, Call(on_progress=show))
    assert shown == [("one", True), ("two", True), ("three", True)]


async def test_progress_that_cannot_be_shown_does_not_end_the_call(caplog):
    def show(text: str) -> None:
        raise ValueError(text)

    async def work(call: Call) -> int:
        call.progress("one")
        return 1

    assert await run(work, {}, Call(on_progress=show)) == 1
    assert "ValueError: one" in caplog.text


async def test_progress_after_the_end_is_ignored():
    shown: list[str] = []
    call = Call(on_progress=shown.append)
    await run(lambda_free(call), {}, call)
    call.progress("late")
    assert shown == []


def lambda_free(call: Call):
    def nothing() -> None: ...

    return nothing
