"""HttpConnection on a real server: its tools, and what a program notices of restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.api.http import HttpConnection
from oubliette.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from oubliette.testing.server import ServerProcess
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.fork_server import Zygote
    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

LONG = 30.0  # seconds that a poll waits, and more than a test takes
SOON = 60.0


@pytest.fixture
async def remote(site: Site) -> AsyncIterator[HttpConnection]:
    async with HttpConnection(site.server.url, site.principal()) as connection:
        yield connection


@pytest.fixture
async def own(zygote: Zygote) -> AsyncIterator[ServerProcess]:
    """A server that the test may kill."""
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        yield server


async def spawned(remote: HttpConnection, prompt: str, **more: Any) -> str:
    project = await remote.call("project_create", {"name": prompt, "init_git": False})
    arguments = {"project_id": project["id"], "prompt": prompt, "new_session": True, **more}
    return str((await remote.call("session_spawn", arguments))["session_id"])


async def until_completion(
    remote: HttpConnection, session_id: str, last: int = -1
) -> list[dict[str, Any]]:
    """The events after `last`, up to the first end of a turn."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(SOON):
        while not any(event["type"] == "completion" for event in events):
            since = events[-1]["index"] if events else last
            arguments = {"session_id": session_id, "since_index": since, "wait_seconds": LONG}
            events += (await remote.call("session_events", arguments))["events"]
    return events


# ---------------------------------------------------------------------- tools


async def test_an_agent_is_started_and_read(remote: HttpConnection, site: Site) -> None:
    session_id = await spawned(remote, "say hello")
    site.agent(session_id)
    events = await until_completion(remote, session_id)
    assert [event["text"] for event in events if event["type"] == "message"] == ["hello"]
    assert [event["index"] for event in events] == list(range(len(events)))


async def test_refusals_are_of_the_classes_that_programs_know(
    remote: HttpConnection, site: Site
) -> None:
    with pytest.raises(NotFound) as missing:
        await remote.call("project_get", {"project_id": "proj_" + "0" * 26})
    assert missing.value.code == "not_found"
    with pytest.raises(InvalidParameter) as wrong:
        await remote.call("project_list", {"limit": 0})
    assert wrong.value.field == "limit"
    async with HttpConnection(site.server.url, site.principal("read")) as reader:
        with pytest.raises(Forbidden):
            await reader.call("project_create", {"name": "not mine"})
    async with HttpConnection(site.server.url, "oub_" + "0" * 43) as stranger:
        with pytest.raises(Unauthenticated, match="oubliette token create"):
            await stranger.call("project_list", {})


async def test_the_tools_of_the_key_are_listed(site: Site) -> None:
    async with HttpConnection(site.server.url, site.principal("admin")) as remote:
        names = [tool["name"] for tool in await remote.tools()]
    assert names == [tool.name for tool in TABLE.values() if "http" in tool.transports]


async def test_a_call_with_progress_is_answered(remote: HttpConnection) -> None:
    told: list[str] = []
    assert "projects" in await remote.call("project_list", {}, on_progress=told.append)
    assert told == []  # of a tool that reports none


# ---------------------------------------------------------------------- restarts


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_restart_between_two_calls_is_not_noticed(own: ServerProcess, end: str) -> None:
    async with HttpConnection(own.url, own.token()) as remote:
        made = await remote.call("project_create", {"name": "kept", "init_git": False})
        await getattr(own, end)()
        await own.start()
        # One that is not repeatable: the request goes over a new connection.
        await remote.call("project_delete", {"project_id": made["id"]})
        with pytest.raises(NotFound):
            await remote.call("project_get", {"project_id": made["id"]})


async def test_a_call_while_no_server_runs_waits_for_one(own: ServerProcess) -> None:
    async with HttpConnection(own.url, own.token()) as remote:
        await own.kill()
        call = asyncio.create_task(
            remote.call("project_create", {"name": "later", "init_git": False})
        )
        await own.start()
        async with asyncio.timeout(SOON):
            made = await call
        listed = await remote.call("project_list", {})
        assert [project["id"] for project in listed["projects"]] == [made["id"]]


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_poll_goes_on_after_a_restart_in_the_middle_of_it(
    own: ServerProcess, end: str
) -> None:
    token = own.token()
    async with HttpConnection(own.url, token) as remote, HttpConnection(own.url, token) as other:
        session_id = await spawned(remote, "say one")
        events = await until_completion(remote, session_id)
        last = events[-1]["index"]
        arguments = {"session_id": session_id, "since_index": last, "wait_seconds": LONG}
        reads = asyncio.ensure_future(own.passes("SessionActor.ReadEvents"))
        await other.call("project_list", {})
        poll = asyncio.create_task(remote.call("session_events", arguments))
        await reads
        await getattr(own, end)()
        await own.start()
        async with asyncio.timeout(SOON):
            await other.call("session_message", {"session_id": session_id, "message": "say two"})
            page = await poll
        # A poll may end early while the session is taken over; nothing is missing in any case.
        read = page["events"]
        if not any(event["type"] == "completion" for event in read):
            read += await until_completion(remote, session_id, read[-1]["index"] if read else last)
        assert [event["index"] for event in read] == list(range(last + 1, last + 1 + len(read)))
        assert [event["text"] for event in read if event["type"] == "message"] == ["two"]
        await other.call("session_end", {"session_id": session_id})


async def test_an_agent_whose_start_was_not_answered_is_started_once(own: ServerProcess) -> None:
    async with HttpConnection(own.url, own.token()) as remote:
        await own.kill()
        await own.start(failpoints="project.session_recorded=kill@1")
        spawn = asyncio.create_task(spawned(remote, "say once"))
        await own.ended(SOON)
        await own.start()
        async with asyncio.timeout(SOON):
            session_id = await spawn
        await until_completion(remote, session_id)
        project = (await remote.call("session_get", {"session_id": session_id}))["project_id"]
        listed = await remote.call("session_list", {"project_id": project})
        assert [session["session_id"] for session in listed["sessions"]] == [session_id]
        await remote.call("session_end", {"session_id": session_id})
