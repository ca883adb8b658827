"""oubliette.sync in a program without an event loop: a system in its process, and a server."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

import oubliette
from oubliette import sync
from tests.git_hosts import checkout
from tests.system.python_api import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.system.site import Site

pytestmark = [pytest.mark.whole, pytest.mark.timeout(120)]

SOON = 60.0
THREADS = ("asyncio_", "AnyIO")  # of executors, which end a moment after their loop


class Verdict(msgspec.Struct):
    """A typed answer."""

    guilty: bool
    why: str


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def threads() -> set[threading.Thread]:
    """Those that are to end with the block."""
    return {each for each in threading.enumerate() if not each.name.startswith(THREADS)}


def here() -> sync.Oubliette:
    return sync.open(temporary=True, config=settings())


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """A test ends its loops; the system of the module starts threads of its own when it needs them."""
    before = {each for each in threading.enumerate() if each.name == "oubliette-sync"}
    yield
    assert {each for each in threading.enumerate() if each.name == "oubliette-sync"} == before


@pytest.fixture(scope="module", autouse=True)
def opened_here() -> Iterator[sync.Oubliette]:
    """One system for the tests that leave nothing behind; its threads are not theirs."""
    with here() as ob:
        yield ob


@pytest.fixture(scope="module", autouse=True)
def opened_there(shared_site: Site) -> Iterator[sync.Oubliette]:
    with sync.connect(shared_site.server.url, shared_site.principal()) as ob:
        yield ob


@pytest.fixture(params=["in process", "server"])
def ob(
    request: pytest.FixtureRequest, opened_here: sync.Oubliette, opened_there: sync.Oubliette
) -> sync.Oubliette:
    return opened_here if request.param == "in process" else opened_there


@pytest.fixture
def project(ob: sync.Oubliette, request: pytest.FixtureRequest) -> sync.Project:
    return ob.create_project(request.node.name[:60], init_git=False)


# ---------------------------------------------------------------------- both ways


def test_a_prompt_is_run(project: sync.Project, ob: sync.Oubliette) -> None:
    assert project.run("say hello").text == "hello"
    assert ob.project(project.name).id == project.id
    assert project.id in [each.id for each in ob.projects()]
    assert [each.status for each in project.sessions()] == ["completed"]


def test_a_session_takes_messages_and_has_events(project: sync.Project, ob: sync.Oubliette) -> None:
    session = project.spawn("say one")
    assert session.turn is not None
    assert session.turn.result(SOON).text == "one"
    texts = [each.text for each in session.events() if isinstance(each, oubliette.Message)]
    assert texts == ["one"]
    turn = session.send("say two\nsay three")
    assert [each.text for each in turn if isinstance(each, oubliette.Message)] == ["two", "three"]
    assert turn.result().text == "three"
    assert session.get().turn_count == 2
    assert ob.session(session.id).id == project.session(session.id).id == session.id
    session.end()
    with pytest.raises(oubliette.Conflict):
        session.send("say four")


def test_events_are_left_and_continued(project: sync.Project) -> None:
    session = project.spawn("say one\nsay two")
    events = session.events()
    seen: list[oubliette.Event] = []
    for event in events:
        seen.append(event)
        break
    assert events.cursor == seen[-1].index
    seen += list(session.events(after=events.cursor))
    assert [each.index for each in seen] == list(range(len(seen)))
    assert next(events).index == seen[1].index


def test_a_turn_is_interrupted(project: sync.Project) -> None:
    session = project.spawn("say begun\nsleep 60")
    for event in session.events():
        if isinstance(event, oubliette.Message):
            break
    assert session.turn is not None
    with pytest.raises(oubliette.DeadlineExceeded, match="has not ended within"):
        session.turn.result(timeout=0.01)
    session.interrupt()
    with pytest.raises(oubliette.TurnInterrupted):
        session.turn.result(SOON)
    assert session.send("say more").result(SOON).text == "more"


def test_parts_are_run_at_once_and_answered_in_order(project: sync.Project) -> None:
    parts = project.map((f"say {n}" for n in "abc"), at_once=2)
    assert [each.text for each in parts if isinstance(each, oubliette.TurnResult)] == [
        "a",
        "b",
        "c",
    ]
    (failed,) = project.map(["fail oh no"])
    assert isinstance(failed, oubliette.SessionFailed)


def test_an_agent_calls_functions_of_the_program(project: sync.Project) -> None:
    result = project.run('call add {"a": 1, "b": 2}', tools=[add])
    assert [(each.tool, each.result) for each in result.tool_calls] == [("add", "3")]


def test_a_tool_calls_back_into_the_object_that_waits_for_it(project: sync.Project) -> None:
    inside: list[threading.Thread] = []

    def ask(what: str) -> str:
        """Ask another agent.

        Args:
            what: the question.
        """
        inside.append(threading.current_thread())
        return project.run(f"say {what}?").text

    result = project.run('call ask {"what": "really"}', tools=[ask])
    assert result.tool_calls[0].result == "really?"
    assert inside != [threading.main_thread()]


def test_an_async_tool_that_would_wait_for_its_own_loop_is_told_so(project: sync.Project) -> None:
    async def ask() -> str:
        """Ask another agent."""
        return project.run("say never").text

    result = project.run("call ask", tools=[ask])
    assert result.tool_calls[0].is_error
    assert "own event loop" in str(result.tool_calls[0].result)


def test_permissions_are_asked_of_a_function(project: sync.Project) -> None:
    asked: list[str] = []

    def decide(request: oubliette.PermissionRequest) -> bool:
        asked.append(request.text)
        return "rm" not in request.text

    answer = project.run("ask rm -rf /\nask ls", on_permission=decide)
    assert answer.text == "allow"
    assert asked == ["rm -rf /", "ls"]
    assert project.run("ask ls", on_permission=oubliette.rules(deny=["*"])).text == "deny"


def test_a_caller_provides_tools_to_several_sessions(
    ob: sync.Oubliette, project: sync.Project
) -> None:
    with ob.caller("sums", [add]) as sums:
        one = project.run('call add {"a": 1, "b": 2}', caller=sums)
        two = project.run('call add {"a": 3, "b": 4}', caller=sums)
    assert [each.tool_calls[0].result for each in (one, two)] == ["3", "7"]


def test_a_tool_that_is_no_list_and_a_caller_that_is_none_are_refused(
    project: sync.Project,
) -> None:
    with pytest.raises(oubliette.BadTool, match="no list of tools"):
        project.run("say hello", tools=add)  # type: ignore[arg-type]
    with pytest.raises(oubliette.InvalidParameter, match="'shop' is no caller"):
        project.run("say hello", caller="shop")  # type: ignore[arg-type]


def test_an_answer_is_of_the_wanted_type(project: sync.Project) -> None:
    # The scripted agent repeats the prompt: with the schema as its only JSON, no verdict.
    with pytest.raises(oubliette.ResultInvalid, match="Verdict"):
        project.run("say it is fine", returns=Verdict, attempts=1)
    assert project.run('{"guilty": true, "why": "it was"}', returns=Verdict) == Verdict(
        guilty=True, why="it was"
    )


def test_threads_use_one_object_at_the_same_time(project: sync.Project) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda n: project.run(f"say {n}").text, range(4), timeout=SOON)
        assert list(texts) == ["0", "1", "2", "3"]


def test_any_tool_of_the_system_is_called(ob: sync.Oubliette, project: sync.Project) -> None:
    assert ob.call("project_get", project_id=project.id)["name"] == project.name
    with pytest.raises(oubliette.NotFound):
        ob.session("gogol_" + "0" * 26)
    done = project.exec("echo hello")
    assert done["stdout"] == "hello\n"
    project.delete()


def test_attributes_are_those_that_a_call_has_changed(
    opened_here: sync.Oubliette, tmp_path: Path
) -> None:
    source = checkout(tmp_path / "shop", {"one": "1"})
    project = opened_here.create_project("cloned", repository=source)
    assert project.info.repository is not None
    assert not project.info.repository.push
    project.update(allow_push=True)
    assert project.info.repository is not None
    assert project.info.repository.push


# ---------------------------------------------------------------------- loops and threads


def test_it_works_where_a_loop_runs_as_in_a_notebook() -> None:
    def script() -> str:
        with here() as ob:
            return ob.project("shop").run("say hello").text

    async def notebook() -> list[str]:
        return [script(), await asyncio.to_thread(script)]

    assert asyncio.run(notebook()) == ["hello", "hello"]


def test_its_thread_ends_with_the_block() -> None:
    before = threads()
    with here() as ob:
        assert threads() > before
        session = ob.project("shop").spawn("say one\nsleep 60")
        events = session.events(follow=True)
        next(events)
    assert threads() == before
    for use in (lambda: next(events), session.get, ob.projects, session.events):
        with pytest.raises(oubliette.Closed):
            use()


def test_its_thread_ends_when_the_block_fails() -> None:
    before = threads()
    with pytest.raises(ZeroDivisionError), here() as ob:
        ob.project("shop").spawn("sleep 60")
        raise ZeroDivisionError
    with pytest.raises(oubliette.ConfigError), sync.open(config={"agents.nothing": 1}):
        pass
    assert threads() == before


def test_a_wait_in_another_thread_ends_with_the_block() -> None:
    with ThreadPoolExecutor(1) as pool:
        with here() as ob:
            session = ob.project("shop").spawn("say one\nsleep 60")
            events = session.events(follow=True)
            while not isinstance(next(events), oubliette.Message):
                pass
            waiting = pool.submit(lambda: list(events))
        with pytest.raises(oubliette.Closed):
            waiting.result(SOON)


def test_an_object_without_its_block_is_refused_with_the_remedy() -> None:
    ob = here()
    with pytest.raises(oubliette.Conflict) as error:
        ob.project("shop")
    assert error.value.hint is not None
    assert "ob.start()" in error.value.hint
    ob.close()


def test_it_is_opened_and_closed_without_a_block() -> None:
    before = threads()
    ob = here().start()
    try:
        assert ob.project("shop").run("say hello").text == "hello"
    finally:
        ob.close()
    assert threads() == before
    with pytest.raises(oubliette.Closed):
        ob.project("shop")


# ---------------------------------------------------------------------- Ctrl-C

PROGRAM = """
import sys, threading
import oubliette
from oubliette import sync

def begun() -> str:
    "Report that the turn runs."
    print("begun", flush=True)
    return "yes"

def wait(project):
    {wait}

try:
    with sync.open(temporary=True, config={config!r}) as ob:
        project = ob.project("shop")
        try:
            wait(project)
        except KeyboardInterrupt:
            for each in project.sessions():
                print("session", each.status, flush=True)
                if each.status == "running":
                    continue  # its events do not end yet
                for event in ob.session(each.session_id).events():
                    if isinstance(event, oubliette.Completion):
                        print("turn", event.status, flush=True)
            raise
except KeyboardInterrupt:
    names = [each.name for each in threading.enumerate()]
    left = [name for name in names if not name.startswith(("AnyIO", "asyncio_", "MainThread"))]
    print("over", left, flush=True)
"""


def interrupted(wait: str) -> list[str]:
    """The lines of a program that got SIGINT while it waited."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(wait=wait, config=settings())],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "begun\n"
            program.send_signal(signal.SIGINT)
            out, _ = program.communicate(timeout=SOON)
        finally:
            program.kill()
    assert program.returncode == 0
    return out.splitlines()


def test_ctrl_c_ends_what_was_run_and_the_block() -> None:
    lines = interrupted("project.run('call begun\\nsleep 60', tools=[begun])")
    assert lines == ["session completed", "turn interrupted", "over []"]


def test_ctrl_c_while_a_turn_is_waited_for_ends_the_wait_and_the_block() -> None:
    # Its end is waited for in the program, by the loop over the events.
    spawned = "project.spawn('call begun\\nsleep 2', tools=[begun]).turn.result()"
    lines = interrupted(spawned + "; raise AssertionError")
    assert lines[0] == "session running"
    assert lines[-1] == "over []"
