"""What Python programs do in process, on a server and without a loop: the same tests for all."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from contextlib import AsyncExitStack
from typing import Any

import anyio
import msgspec
import pytest

import oubliette
from oubliette.api.tools import PreparedTool, ToolSource, tool_table
from tests.system.python_api import DOORS, Awaited, opened, settings

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless, pytest.mark.timeout(120)]

SETTINGS = {"agents.default": "scripted"}
SOON = 30.0


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The embedded system is the module's, and starts threads when it needs them."""


@pytest.fixture(scope="module", params=DOORS)
async def ob(request, shared_site):
    before = set(threading.enumerate())
    async with opened(request.param, shared_site) as found:
        yield found
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith(("asyncio_", "AnyIO")):  # those of the loop's executor
            thread.join(5)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def same_loop(ob):
    """Of tests that cancel calls, or whose tools wait for the test on its own loop."""
    if isinstance(ob, Awaited):
        pytest.skip("blocking calls are ended by Ctrl-C, and their tools have a loop of their own")


@pytest.fixture
async def project(ob, request):
    return await ob.create_project(f"{request.node.name}"[:80], init_git=False)


async def find_order(order: str) -> dict[str, Any]:
    """Look an order up.

    Args:
        order: its number, such as A-17.
    """
    return {"order": order, "state": "refunded"}


# ---------------------------------------------------------------- projects


async def test_a_project_is_created_at_its_first_use_and_found_later(ob):
    first = await ob.project("shop", init_git=False)
    again = await ob.project("shop")
    assert (again.id, again.name) == (first.id, "shop")
    assert (await ob.project(first.id)).id == first.id
    assert first.id in [each.id for each in await ob.projects()]


async def test_a_project_is_not_created_twice(ob, project):
    with pytest.raises(oubliette.AlreadyExists):
        await ob.create_project(project.name)


async def test_a_project_that_is_wanted_by_many_at_once_is_created_once(ob):
    found = await asyncio.gather(*(ob.project("wanted", init_git=False) for _ in range(8)))
    assert len({each.id for each in found}) == 1


async def test_a_deleted_project_is_not_found(ob, project):
    await project.delete()
    with pytest.raises(oubliette.NotFound):
        await project.spawn("say hello")


async def test_a_command_is_run_in_the_container(project):
    done = await project.exec("echo hello")
    assert (done["exit_code"], done["stdout"]) == (0, "hello\n")


async def test_an_option_that_does_not_exist_is_named(project):
    with pytest.raises(oubliette.InvalidParameter) as refused:
        await project.spawn("say hello", modle="x")
    assert refused.value.field == "modle"
    assert refused.value.hint == "did you mean model?"


async def test_a_system_is_opened_and_closed_without_a_block():
    ob = await oubliette.open(temporary=True, config=settings()).start()
    try:
        project = await ob.project("shop")
        assert (await project.run("say hello")).text == "hello"
    finally:
        await ob.aclose()
    with pytest.raises(oubliette.Closed):
        await project.run("say hello")


async def test_a_map_with_an_option_that_does_not_exist_is_refused_as_a_whole(project):
    with pytest.raises(oubliette.InvalidParameter, match="max_turns"):
        await project.map(["say one", "say two"], max_turns=3)


async def test_a_caller_that_is_not_open_is_refused(ob, project):
    with pytest.raises(oubliette.Conflict, match="the caller closed_shop is not open"):
        await project.spawn("say hello", caller=ob.caller("closed_shop", []))


async def test_a_caller_is_not_given_by_its_name(project):
    with pytest.raises(oubliette.InvalidParameter, match="'shop' is no caller"):
        await project.spawn("say hello", caller="shop")


async def test_an_invalid_option_is_named_by_the_server_s_error(project):
    with pytest.raises(oubliette.InvalidParameter) as refused:
        await project.run("say hello", agent="nobody")
    assert refused.value.field == "agent"


# ---------------------------------------------------------------- running


async def test_a_prompt_is_run_and_its_session_ended(project):
    answer = await project.run("usage 0.25 120\nsay hello")
    assert (answer.text, answer.status, answer.turn) == ("hello", "completed", 1)
    assert (answer.usage.cost_usd, answer.usage.tokens) == (0.25, 120)
    (session,) = await project.sessions()
    assert (session.session_id, session.status) == (answer.session_id, "completed")


async def test_a_program_sees_what_lives_and_what_it_has_used(ob, project):
    session = await project.spawn("usage 0.25 120")
    await session.turn
    (tree,) = await ob.trees(project.id)
    assert (tree.session_id, tree.live, tree.cost_usd) == (session.id, 1, 0.25)
    state = await ob.tree_state(session.id)
    assert [(row.session_id, row.level, row.status) for row in state.rows] == [
        (session.id, 0, "idle")
    ]
    assert state.limits["max_cost_usd"].used == 0.25
    report = await ob.usage_report("session", project_id=project.id)
    (row,) = report.rows
    assert (row.key, row.turns, row.input_tokens) == (session.id, 1, 120)
    assert (row.reported_cost_usd, row.measured_cost_usd) == (0.25, None)


async def test_a_turn_that_fails_is_an_error_with_its_reason(project):
    with pytest.raises(oubliette.SessionFailed) as failed:
        await project.run("fail no credit")
    assert failed.value.reason == "no credit"


async def test_an_agent_that_crashes_is_an_error(project):
    with pytest.raises(oubliette.SessionFailed):
        await project.run("crash 3")


async def test_a_cancelled_run_interrupts_its_turn_and_ends_its_session(project, same_loop):
    running = asyncio.create_task(project.run("sleep 60"))
    async with asyncio.timeout(SOON):
        while not [each for each in await project.sessions() if each.status == "running"]:
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    (session,) = await project.sessions()
    assert session.status == "completed"


@pytest.mark.whole  # it takes both of its deadlines
async def test_a_run_has_a_deadline_by_the_usual_means(project, same_loop):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await project.run("sleep 60")
    with anyio.move_on_after(2) as scope:
        await project.run("sleep 60")
    assert scope.cancelled_caught
    assert {each.status for each in await project.sessions()} == {"completed"}


async def test_a_map_returns_answers_and_errors_in_order(project):
    answers = await project.map(["say 1", "fail 2", "say 3"], at_once=2)
    assert [getattr(each, "text", None) for each in answers] == ["1", None, "3"]
    assert isinstance(answers[1], oubliette.SessionFailed)


async def test_a_map_runs_no_more_than_so_many_at_once(project, same_loop):
    at_once = most = 0
    pair = asyncio.Barrier(2)

    async def enter() -> str:
        """Wait for another one."""
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await pair.wait()
        at_once -= 1
        return "in"

    await project.map(["call enter"] * 6, at_once=2, tools=[enter])
    assert most == 2


async def test_a_map_without_prompts_is_empty_and_one_without_room_is_refused(project):
    assert await project.map([]) == []
    with pytest.raises(oubliette.InvalidParameter) as refused:
        await project.map(["say 1"], at_once=0)
    assert refused.value.field == "at_once"


# ---------------------------------------------------------------- trees


async def test_what_is_started_in_a_tree_counts_together(project):
    async with project.tree(max_agents=2) as tree:
        assert (await tree.run("say 1")).text == "1"
        session = await tree.spawn("say 2")
        assert (await session.turn).text == "2"
        with pytest.raises(oubliette.LimitExceeded) as refused:
            await tree.run("say 3")
    assert "max_agents" in refused.value.message
    assert (await project.run("say outside")).text == "outside"


async def test_children_count_in_the_tree(project):
    async with project.tree(max_agents=1) as tree:
        answer = await tree.run('call session_message {"message": "say child"}')
    assert answer.tool_calls[0].is_error
    assert "max_agents" in str(answer.tool_calls[0].result)


async def test_the_end_of_a_tree_ends_its_sessions(project):
    with pytest.raises(ValueError, match="stop"):
        async with project.tree() as tree:
            await tree.spawn("sleep 60")
            raise ValueError("stop")
    assert {each.status for each in await project.sessions()} == {"completed"}


# ---------------------------------------------------------------- sessions


async def test_a_conversation_goes_on(project):
    session = await project.spawn("remember colour green")
    assert (await session.turn).text == "remembered colour"
    assert (await (await session.send("recall colour"))).text == "green"
    await session.end()
    with pytest.raises(oubliette.Conflict):
        await session.send("recall colour")


async def test_messages_queue_and_each_turn_has_its_own_answer(project):
    session = await project.spawn("say 1")
    turns = [session.turn, *[await session.send(f"say {n}") for n in (2, 3, 4)]]
    assert [each.number for each in turns] == [1, 2, 3, 4]
    assert [(await each).text for each in reversed(turns)] == ["4", "3", "2", "1"]


async def test_events_are_typed_and_end_with_the_last_turn(project):
    session = await project.spawn("emit 2 10\nsay done")
    texts, kinds = [], []
    async for event in session.events():
        kinds.append(type(event))
        match event:
            case oubliette.Delta(text=text):
                texts.append(text)
            case oubliette.Message(text="done"):
                texts.append("done")
    assert texts[-1] == "done"
    assert len(texts) == 3
    assert kinds[0] is oubliette.Status
    assert oubliette.Completion in kinds


async def test_an_iterator_is_left_at_any_moment_and_continued_from_its_cursor(project):
    session = await project.spawn("emit 5 10\nsay done")
    await session.turn
    whole = [each async for each in session.events()]
    for leave in range(len(whole)):
        iterator = session.events()
        for _ in range(leave):
            await anext(iterator)
        rest = [each async for each in session.events(after=iterator.cursor)]
        assert rest == whole[leave:]


async def test_an_iterator_may_be_used_by_another_task(project):
    session = await project.spawn("say one\nsay two")
    events = session.events()
    first = await anext(events)
    rest = await asyncio.create_task(_all(events))
    assert [first.index, *[each.index for each in rest]] == list(range(len(rest) + 1))


async def _all(events):
    return [each async for each in events]


async def test_following_waits_for_further_turns_until_the_session_ends(project):
    session = await project.spawn("say one")
    reading = asyncio.create_task(_all(session.events(follow=True)))
    await session.turn
    await (await session.send("say two"))
    await session.end()
    async with asyncio.timeout(SOON):
        events = await reading
    assert [e.text for e in events if isinstance(e, oubliette.Message)] == ["one", "two"]
    assert isinstance(events[-1], oubliette.Status)


async def test_a_turn_is_iterated_for_its_events_alone(project):
    session = await project.spawn("say one")
    turn = await session.send("say two")
    events = [each async for each in turn]
    assert {each.turn for each in events} == {2}
    assert isinstance(events[-1], oubliette.Completion)
    assert (await turn).text == "two"


async def test_an_interrupted_turn_is_an_error_and_the_session_stays(project):
    session = await project.spawn("say begun\nsleep 60")
    async for event in session.events():
        if isinstance(event, oubliette.Message):
            break
    await session.interrupt()
    with pytest.raises(oubliette.TurnInterrupted) as interrupted:
        await session.turn
    assert interrupted.value.text == "begun"
    assert (await (await session.send("say again"))).text == "again"


async def test_a_turn_that_its_session_s_end_interrupts_is_an_error(project):
    session = await project.spawn("sleep 60")
    running = session.turn
    await anext(aiter(running))
    queued = await session.send("say never")
    await session.end()
    with pytest.raises(oubliette.TurnInterrupted):
        await running
    with pytest.raises(oubliette.SessionFailed) as dropped:
        await queued
    assert "not run" in dropped.value.reason


async def test_a_session_is_found_again_by_its_id(ob, project):
    session = await project.spawn("remember colour green")
    await session.turn
    found = await ob.session(session.id)
    assert (await (await found.send("recall colour"))).text == "green"
    info = await found.get()
    assert (info.turn_count, info.status) == (2, "idle")
    assert info.waiting[0].kind == "message"
    with pytest.raises(oubliette.NotFound):
        await ob.session("gogol_" + "0" * 26)


async def test_an_event_that_is_too_large_for_a_page_is_read_whole(project):
    async def big() -> str:
        """Return much."""
        return "x" * 1_500_000

    session = await project.spawn("call big", tools=[big])
    found = [e async for e in session.events() if isinstance(e, oubliette.ToolResult)]
    assert len(json.dumps(found[0].result)) > 1_500_000


# ---------------------------------------------------------------- tools


async def test_a_function_is_a_tool(project):
    answer = await project.run('call find_order {"order": "A-17"}', tools=[find_order])
    (call,) = answer.tool_calls
    assert call.arguments == {"order": "A-17"}
    assert call.result == {"order": "A-17", "state": "refunded"}
    assert not call.is_error


async def test_a_function_without_async_runs_in_a_thread_of_its_own(project):
    def where() -> str:
        """Name the thread."""
        return threading.current_thread().name

    answer = await project.run("call where", tools=[where])
    assert answer.tool_calls[0].result != threading.current_thread().name


async def test_arguments_are_checked_before_the_function_is_called(project):
    answer = await project.run('call find_order {"order": 17}', tools=[find_order])
    (call,) = answer.tool_calls
    assert call.is_error
    assert "order" in str(call.result)


async def test_an_exception_is_the_tool_s_error_with_its_message(project):
    async def refund(order: str) -> None:
        """Refund an order."""
        raise ValueError(f"{order} was refunded already")

    answer = await project.run('call refund {"order": "A-17"}', tools=[refund])
    assert answer.tool_calls[0].is_error
    assert "A-17 was refunded already" in str(answer.tool_calls[0].result)


async def test_a_tool_knows_its_call(project):
    seen: list[oubliette.Call] = []

    async def look(call: oubliette.Call) -> str:
        """Look."""
        seen.append(call)
        call.progress("looking")
        return call.session_id

    session = await project.spawn("call look", tools=[look])
    answer = await session.turn
    (call,) = seen
    assert call.session_id == answer.session_id == session.id
    assert call.ancestry == (session.id,)
    assert call.depth == 0
    assert call.request_id
    assert call.deadline
    reported = [e async for e in session.events() if isinstance(e, oubliette.CallerToolProgress)]
    assert [(e.tool, e.message) for e in reported] == [("look", "looking")]


async def test_children_call_the_tools_of_their_root(project):
    answer = await project.run(
        'call session_message {"message": "call find_order {\\"order\\": \\"B-1\\"}"}',
        tools=[find_order],
    )
    assert "B-1" in str(answer.tool_calls[0].result)


async def test_sessions_at_the_same_time_have_tools_of_their_own(project):
    def named(name: str):
        async def who() -> str:
            """Say who."""
            return name

        return who

    answers = await asyncio.gather(
        *(project.run("call who", tools=[named(str(number))]) for number in range(5))
    )
    assert [each.tool_calls[0].result for each in answers] == ["0", "1", "2", "3", "4"]


async def test_tools_that_come_with_a_message_are_there_in_that_turn(project):
    session = await project.spawn("say hello")
    turn = await session.send('call find_order {"order": "C-3"}', tools=[find_order])
    assert (await turn).tool_calls[0].result["order"] == "C-3"


async def test_a_tool_whose_turn_is_interrupted_is_cancelled(project, same_loop):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    session = await project.spawn("call wait", tools=[wait])
    async with asyncio.timeout(SOON):
        await begun.wait()
        await session.interrupt()
        await ended.wait()


async def test_a_tool_that_cannot_be_offered_is_refused_before_anything_starts(project):
    def bare(x):
        """No hints."""

    with pytest.raises(oubliette.BadTool) as refused:
        await project.run("say hello", tools=[bare])
    assert "bare" in refused.value.message
    assert "x" in refused.value.message
    with pytest.raises(oubliette.BadTool):
        await project.run("say hello", tools=[find_order, find_order])
    assert await project.sessions() == []


class Orders:
    """A service."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def refund(self, order: str) -> str:
        """Refund an order."""
        self.refunded.append(order)
        return "done"


async def test_the_methods_of_an_object_are_tools(project):
    orders = Orders()
    await project.run('call refund {"order": "A-1"}', tools=[orders])
    assert orders.refunded == ["A-1"]


class Borrowed(ToolSource):
    """A source of one tool, which counts how often it is open."""

    def __init__(self) -> None:
        self.open_now = self.opened = 0

    async def open(self, stack: AsyncExitStack) -> list[PreparedTool]:
        self.opened += 1
        self.open_now += 1
        stack.callback(self._close)
        return list(tool_table([find_order]).values())

    def _close(self) -> None:
        self.open_now -= 1


async def test_a_source_of_tools_is_open_as_long_as_its_session(project):
    source = Borrowed()
    for _ in range(2):
        answer = await project.run('call find_order {"order": "G-7"}', tools=[source])
        assert answer.tool_calls[0].result["order"] == "G-7"
    session = await project.spawn("say hello", tools=[source])
    await session.turn
    assert (source.opened, source.open_now) == (3, 1)
    await session.end()
    with pytest.raises(oubliette.InvalidParameter):
        await project.spawn("say hello", tools=[source], agent="nobody")
    async with asyncio.timeout(SOON):
        while source.open_now:
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- permissions


async def test_a_policy_decides_on_permissions(project):
    asked = []

    async def decide(request: oubliette.PermissionRequest) -> str:
        asked.append(request.text)
        return "allow" if "read" in request.text else "deny"

    session = await project.spawn("ask to read\nask to write", on_permission=decide)
    texts = [e.text async for e in session.events() if isinstance(e, oubliette.Message)]
    assert texts == ["allow", "deny"]
    assert asked == ["to read", "to write"]


async def test_rules_decide_on_permissions(project):
    session = await project.spawn("ask anything", on_permission=oubliette.rules(otherwise="deny"))
    assert (await session.turn).text == "deny"


async def test_a_policy_that_fails_denies(project):
    def broken(request: oubliette.PermissionRequest) -> str:
        raise ValueError("no idea")

    def odd(request: oubliette.PermissionRequest) -> str:
        return "perhaps"

    assert (await project.run("ask anything", on_permission=broken)).text == "deny"
    assert (await project.run("ask anything", on_permission=odd)).text == "deny"


# ---------------------------------------------------------------- typed results


class Verdict(msgspec.Struct):
    guilty: bool
    why: str


@dataclasses.dataclass
class Point:
    x: int
    y: int


async def test_an_answer_is_a_value_of_a_type(project):
    said = json.dumps({"guilty": True, "why": "it was late"})
    verdict = await project.run(f"say {said}", returns=Verdict)
    assert verdict == Verdict(guilty=True, why="it was late")
    assert await project.run('say {"x": 1, "y": 2}', returns=Point) == Point(1, 2)


async def test_an_answer_that_stays_of_another_type_is_an_error_with_the_answer(project):
    with pytest.raises(oubliette.ResultInvalid) as invalid:
        await project.run('say {"guilty": "perhaps"}', returns=Verdict, attempts=2)
    assert invalid.value.attempts == 2
    assert "guilty" in invalid.value.reason or "JSON" in invalid.value.reason


async def test_a_type_without_a_schema_is_refused_before_anything_starts(project):
    with pytest.raises(oubliette.BadResultType):
        await project.run("say hello", returns=asyncio.Event)
    assert await project.sessions() == []


async def test_a_map_has_typed_results(project):
    prompts = [f'say {{"x": {n}, "y": 0}}' for n in range(3)]
    assert await project.map(prompts, returns=Point) == [Point(n, 0) for n in range(3)]


# ---------------------------------------------------------------- callers


async def test_a_caller_provides_tools_under_its_own_name(ob, project):
    async with ob.caller("clerk", [find_order]) as clerk:
        answer = await project.run('call clerk_find_order {"order": "D-4"}', caller=clerk)
        assert answer.tool_calls[0].result["order"] == "D-4"


async def test_a_durable_call_waits_for_its_caller(ob, project):
    done = []

    @oubliette.tool(durable=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        done.append(order)
        return "done"

    async with ob.caller("durable", [refund]) as caller:
        session = await project.spawn("sleep 1\n" + 'call refund {"order": "E-5"}', caller=caller)
    async for event in session.events():
        if isinstance(event, oubliette.CallerToolRequest):
            break
    assert done == []
    async with ob.caller("durable", [refund]):
        answer = await session.turn
    assert answer.tool_calls[0].result == "done"
    assert done == ["E-5"]


async def test_an_answer_is_kept_and_what_the_tool_wrote_with_it(ob, project, tmp_path):
    file = tmp_path / "shop.db"

    def refund(order: str, *, call: oubliette.Call) -> str:
        """Refund an order."""
        database = call.transaction()
        database.execute("CREATE TABLE IF NOT EXISTS refunds (number TEXT)")
        database.execute("INSERT INTO refunds VALUES (?)", (order,))
        if order == "bad":
            raise oubliette.ToolError("no such order")
        return "done"

    async with ob.caller("books", [refund], once=file) as books:
        answer = await project.run(
            'call refund {"order": "F-6"}\ncall refund {"order": "bad"}', caller=books
        )
    assert [each.is_error for each in answer.tool_calls] == [False, True]
    import sqlite3

    with sqlite3.connect(file) as database:
        assert database.execute("SELECT number FROM refunds").fetchall() == [("F-6",)]
        assert len(database.execute("SELECT * FROM oubliette_answers").fetchall()) == 2
    database.close()


async def test_a_caller_is_not_opened_twice_at_the_same_time(ob, tmp_path):
    async with ob.caller("twice", [find_order]):
        for once in (None, tmp_path / "answers.db"):
            with pytest.raises(oubliette.Conflict):
                async with ob.caller("twice", [find_order], once=once):
                    pass
    async with ob.caller("twice", [find_order], once=tmp_path / "answers.db"):
        pass


# ---------------------------------------------------------------- the escape hatch


async def test_every_tool_of_the_system_can_be_called(ob, project):
    options = await ob.call("project_options")
    assert "scripted" in options["agents"]
    with pytest.raises(oubliette.NotFound):
        await ob.call("no_such_tool")
