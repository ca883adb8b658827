"""Limits that end or interrupt what runs: the time of a tree, the room of a project."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import pytest

from oubliette.runtime.containers.process import procfs
from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TURN = 40.0  # seconds
MIB = 1 << 20


def limits(events: list[dict[str, object]], kind: str) -> list[str]:
    """What sessions were told of limits, in events of this type."""
    return [
        str(event["message"])
        for event in events
        if event["type"] == kind and event.get("kind") == "limit"
    ]


# ---------------------------------------------------------------------- time


@pytest.mark.whole
async def test_the_time_of_a_tree_ends_its_agents_with_the_reason(
    any_server: ServerProcess,
) -> None:
    """`max_wall_seconds`: a warning at 80 %, then the whole tree is timed out, and resumed anew."""
    await any_server.start(settings={"trees.max_wall_seconds": 4.0})
    async with Here(any_server) as caller:
        child = json.dumps({"message": "remember place child\nsleep 60"})
        root = await caller.spawn(f"remember place root\ncall session_message {child}")
        await caller.event("status", session_id=root, status="timed_out", timeout=TURN)
        rows = any_server.query("SELECT id FROM sessions WHERE parent_session_id = ?", root)
        sessions = [root, *(row[0] for row in rows)]
        assert len(sessions) == 2
        for session in sessions:
            page = await caller.turns_done(session, wait=TURN)
            assert page["status"] == "timed_out"
            events = await caller.log(session)
            check_log(events)
            (warning,) = limits(events, "system")
            assert "left of 4 s" in warning
            (ended,) = limits(events, "error")
            assert ended.startswith("max_wall_seconds of this tree: its time is over, 4 s")
            status, reason = await caller.status(session)
            assert (status, reason) == ("timed_out", ended)
        for session in sessions:  # they are told to end right now
            for agent in any_server.agents(session):
                async with asyncio.timeout(TURN):
                    await procfs.ended(agent)
        check_nothing_left(any_server)
        await caller.call("session_message", session_id=root, message="recall place")
        page = await caller.turns_done(root, wait=TURN)
        assert page["final_response"] == "root"


@pytest.mark.whole
async def test_the_time_of_a_tree_runs_on_over_a_restart(any_server: ServerProcess) -> None:
    settings = {"trees.max_wall_seconds": 8.0}
    await any_server.start(settings=settings)
    async with Here(any_server) as caller:
        session = await caller.spawn("sleep 60")
        await caller.event("status", session_id=session, status="running", timeout=TURN)
        await any_server.kill()
        await any_server.start(settings=settings)
        await caller.listen(after=caller.next)
        ended = await caller.event("status", session_id=session, status="timed_out", timeout=TURN)
        began = (await caller.log(session))[0]["ts"]
        assert 7.9 <= ended["ts"] - began < 12.0
        # The clock that began anew with a message does not go back to the first one either.
        await caller.call("session_message", session_id=session, message="sleep 0.5\nsay done")
        await any_server.kill()
        await any_server.start(settings=settings)
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "done"


# ---------------------------------------------------------------------- room


@pytest.mark.whole
async def test_the_folder_of_the_relay_is_no_place_for_files(any_server: ServerProcess) -> None:
    """Where `/mcp` belongs to the agents, in an engine or under an ordinary user, it is counted."""
    await any_server.start(settings={"projects.max_bytes": 20 * MIB, "projects.check_seconds": 0.2})
    write = f'exec head -c {40 * MIB} /dev/zero > "${{OUBLIETTE_RELAY_SOCKET%/*}}/junk"'
    async with Here(any_server) as caller:
        session = await caller.spawn(f"{write}\nsleep 3\nsay was not interrupted")
        page = await caller.turns_done(session, wait=TURN)
        events = await caller.log(session)
        if not (told := limits(events, "error")):
            written = next(each["text"] for each in events if each["type"] == "message")
            assert "Permission denied" in written
            return
        assert any("/mcp has" in each and "MiB of 1 MiB" in each for each in told), told
        assert page["final_response"] != "was not interrupted"


@pytest.mark.whole
async def test_a_project_folder_that_grows_is_warned_of_and_then_its_turns_are_interrupted(
    any_server: ServerProcess,
) -> None:
    """At 80 % a warning, at 100 % an interrupt; a turn that clears up afterwards may do so."""
    await any_server.start(settings={"projects.max_bytes": 20 * MIB, "projects.check_seconds": 0.2})
    write = "exec head -c {} /dev/zero > {}"
    async with Here(any_server) as caller:
        session = await caller.spawn("\n".join([write.format(17 * MIB, "one"), "say filled"]))
        await caller.turns_done(session, wait=TURN)
        warned = await caller.event(
            "system", session_id=session, limit="projects.max_bytes", timeout=TURN
        )
        said = warned["message"]  # measured while the file was written, perhaps
        assert re.match(r"projects\.max_bytes: this project takes 1[67]\b", said), said
        assert (await caller.status(session))[0] == "idle"
        message = "\n".join([write.format(6 * MIB, "two"), "sleep 60", "say not reached"])
        await caller.call("session_message", session_id=session, message=message)
        over = await caller.event(
            "error", session_id=session, limit="projects.max_bytes", timeout=TURN
        )
        assert "its turns are interrupted; remove some files" in over["message"]
        await caller.turns_done(session, wait=TURN)
        done = [each for each in await caller.log(session) if each["type"] == "completion"]
        assert [each["status"] for each in done] == ["completed", "interrupted"]
        # It is not interrupted again before it has grown again.
        clear = "sleep 1\nexec rm one two\nsleep 0.6\nsay cleared"
        await caller.call("session_message", session_id=session, message=clear)
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "cleared"
        # Where there is room again, the next time is warned of again.
        again = "\n".join([write.format(17 * MIB, "one"), "say filled again"])
        await caller.call("session_message", session_id=session, message=again)
        place = caller.events.index(warned) + 1
        await caller.event(
            "system", session_id=session, limit="projects.max_bytes", after=place, timeout=TURN
        )
        await caller.turns_done(session, wait=TURN)
        check_log(await caller.log(session))


GROW = "while head -c {} /dev/zero >> file; do sleep 0.1; done"


@pytest.mark.whole
async def test_a_command_that_fills_its_project_is_ended_and_no_other_is_run(
    server: ServerProcess,
) -> None:
    """No session lives: a container that is used is enough for its project to be measured."""
    await server.start(settings={"projects.max_bytes": 10 * MIB, "projects.check_seconds": 0.2})
    async with Here(server) as caller:
        here = {"project_id": caller.project_id}
        with contextlib.suppress(ToolFailed):  # it ends with its container, before or after it
            ended = await caller.call("container_exec", command=GROW.format(MIB), **here)
            assert ended["exit_code"]
            assert not ended["timed_out"]
        with pytest.raises(ToolFailed, match=r"projects\.max_bytes: .* no command is run"):
            await caller.call("container_exec", command="true", **here)
        # What makes room is let in.
        await caller.call("file_delete", path="file", **here)
        session = await caller.spawn("sleep 1\nsay measured")
        await caller.turns_done(session, wait=TURN)
        await caller.call("container_exec", command="true", **here)


@pytest.mark.whole
async def test_what_goes_on_growing_after_the_interrupt_is_stopped_with_its_container(
    any_server: ServerProcess,
) -> None:
    await any_server.start(settings={"projects.max_bytes": 10 * MIB, "projects.check_seconds": 0.2})
    grow = f"setsid sh -c '{GROW.format(200_000)}' >/dev/null 2>&1 &"
    async with Here(any_server) as caller:
        session = await caller.spawn(f"exec {grow}\nsleep 60")
        await caller.event("status", session_id=session, status="failed", timeout=TURN)
        assert "container lost" in str((await caller.status(session))[1])
        events = await caller.log(session)
        interrupted, *_, stopped = limits(events, "error")
        assert "its turns are interrupted" in interrupted
        assert "its containers are stopped" in stopped
        check_log(events)


async def test_a_project_without_a_limit_is_not_measured(server: ServerProcess) -> None:
    await server.start(settings={"projects.max_bytes": 0, "projects.check_seconds": 0.05})
    async with Here(server) as caller:
        session = await caller.spawn("exec head -c 3000000 /dev/zero > file\nsleep 0.3\nsay done")
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "done"
        assert limits(await caller.log(session), "system") == []
