"""A container's life: its start in stages, leases, idle stop, adoption, and whose it is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE, LABEL_SPEC
from oubliette.runtime.containers.process import procfs
from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.conftest import ENGINES, settings_of
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, texts

if TYPE_CHECKING:
    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TURN = 40.0  # seconds
STAGES = ["image", "create", "start", "relay", "agent"]


def stages(events: list[dict[str, Any]], state: str = "done") -> list[dict[str, Any]]:
    """The stages of starts that are over."""
    return [
        event
        for event in events
        if event["type"] == "system" and event.get("kind") == "stage" and event["state"] == state
    ]


async def gone(process: procfs.HostProcess, within: float = TURN) -> None:
    """Wait for the end of a container's process."""
    async with asyncio.timeout(within):
        await procfs.ended(process)


# ---------------------------------------------------------------------- stages


async def test_each_stage_of_a_start_is_timed_and_told(any_server: ServerProcess) -> None:
    await any_server.start()
    async with Here(any_server) as caller:
        session = await caller.spawn("say here")
        await caller.turns_done(session, wait=TURN)
        told = stages(await caller.log(session))
        assert [each["stage"] for each in told] == STAGES
        assert all(0 <= each["elapsed_ms"] < 60_000 for each in told)
        (container,) = any_server.containers()
        assert told[-1]["container_id"] == container
        started = await caller.call("container_start", project_id=caller.project_id)
        assert [each["name"] for each in started["stages"]] == STAGES[:-1]
        assert started["container_id"] == container


# ---------------------------------------------------------------------- leases


@pytest.mark.parametrize("count", [2, 20])
async def test_sessions_that_need_a_container_at_once_start_it_once(
    any_server: ServerProcess, count: int
) -> None:
    await any_server.start(settings={"sessions.max_live_per_project": 50})
    async with Here(any_server) as caller:
        sessions = await asyncio.gather(*(caller.spawn(f"say {n}") for n in range(count)))
        for number, session in enumerate(sessions):
            page = await caller.turns_done(session, wait=TURN)
            assert page["final_response"] == str(number)
        rows = any_server.query("SELECT DISTINCT container_id FROM sessions")
        assert [row[0] for row in rows] == list(any_server.containers())
        starts = [s for s in sessions for s in stages(await caller.log(s)) if s["stage"] == "relay"]
        assert len({each["container_id"] for each in starts}) == 1


@pytest.mark.whole
async def test_a_container_stops_when_it_is_idle_and_never_under_a_lease(
    any_server: ServerProcess,
) -> None:
    idle = {"containers.idle_stop_seconds": 0.5}
    await any_server.start(settings=idle)
    async with Here(any_server) as caller:
        first = await caller.spawn("say one")
        await caller.turns_done(first, wait=TURN)
        second = await caller.spawn("sleep 1.5\nsay two")  # three times as long as idle lasts
        await caller.call("session_end", session_id=first)
        await caller.turns_done(second, wait=TURN)
        ((container, host),) = any_server.containers().items()
        # One that was adopted is held by its sessions from the first moment on.
        await any_server.kill()
        await any_server.start(settings=idle)
        third = await caller.spawn("sleep 1.5\nsay three")
        await caller.turns_done(third, wait=TURN)
        assert list(any_server.containers()) == [container]
        for session in (second, third):
            await caller.call("session_end", session_id=session)
        await gone(host)
        # And it is there again for who needs it.
        await caller.call(
            "session_message", session_id=await caller.spawn("say x"), message="say y"
        )
        assert list(any_server.containers()) != [container]


@pytest.mark.whole
async def test_a_command_holds_the_container_as_a_session_does(any_server: ServerProcess) -> None:
    await any_server.start(settings={"containers.idle_stop_seconds": 0.3})
    async with Here(any_server) as caller:
        done = await caller.call(
            "container_exec", project_id=caller.project_id, command="sleep 1.2; echo done"
        )
        assert (done["exit_code"], done["stdout"]) == (0, "done\n")
        for host in any_server.containers().values():
            await gone(host)


# ---------------------------------------------------------------------- another spec


OTHER = {"process": {"containers.tmp_mb": 64}, "docker": {"containers.memory_mb": 700}}
OTHER["podman"] = OTHER["docker"]


async def test_an_idle_container_of_other_settings_is_made_anew(any_server: ServerProcess) -> None:
    await any_server.start()
    async with Here(any_server) as caller:
        started = await caller.call("container_start", project_id=caller.project_id)
        ((before, host),) = any_server.containers().items()
        assert started["container_id"] == before
        await any_server.kill()
        await any_server.start()
        assert list(any_server.containers()) == [before]  # the same settings: the same one
        await any_server.kill()
        await any_server.start(settings=OTHER[any_server.engine])
        await gone(host)
        started = await caller.call("container_start", project_id=caller.project_id)
        assert started["container_id"] != before
        assert list(any_server.containers()) == [started["container_id"]]


async def test_a_container_of_other_settings_is_kept_for_its_sessions_and_no_longer(
    any_server: ServerProcess,
) -> None:
    await any_server.start()
    async with Here(any_server) as caller:
        session = await caller.spawn("say before")
        await caller.turns_done(session, wait=TURN)
        ((before, host),) = any_server.containers().items()
        await any_server.kill()
        await any_server.start(settings=OTHER[any_server.engine])
        await caller.call("session_message", session_id=session, message="say after")
        await caller.turns_done(session, wait=TURN)
        assert texts(await caller.log(session)) == ["before", "after"]
        assert list(any_server.containers()) == [before]
        await caller.call("session_end", session_id=session)
        await gone(host)
        fresh = await caller.spawn("say fresh")
        await caller.turns_done(fresh, wait=TURN)
        assert before not in any_server.containers()
        check_nothing_left(any_server)


# ---------------------------------------------------------------------- whose they are


def plant(server: ServerProcess, instance: str) -> str:
    """A container that no store knows, as a crash may leave one; its id."""
    container_id = ids.new_id(ids.CONTAINER)
    labels = {LABEL_INSTANCE: instance, LABEL_CONTAINER: container_id, LABEL_SPEC: "0"}
    with server.api() as api:
        made = api.create_container(
            settings_of(server.engine)["containers.image"], command=["sleep", "1000"], labels=labels
        )
    return str(made["Id"])


def exists(server: ServerProcess, engine_id: str) -> bool:
    """Whether the engine has it."""
    with server.api() as api:
        return any(each["Id"] == engine_id for each in api.containers(all=True))


async def test_orphans_of_this_instance_are_reaped_and_no_others(
    engine_server: ServerProcess,
) -> None:
    await engine_server.start()
    await engine_server.kill()
    own = plant(engine_server, engine_server.instance())
    other = plant(engine_server, ids.new_id(ids.INSTANCE))
    try:
        spool = engine_server.home / "spool" / "cont_nobody"
        spool.mkdir(parents=True)
        await engine_server.start()
        assert not exists(engine_server, own)
        assert exists(engine_server, other)
        assert not spool.exists()
    finally:
        with engine_server.api() as api, contextlib.suppress(Exception):
            api.remove_container(other, force=True)


@pytest.mark.parametrize("engine", ENGINES)
async def test_two_servers_on_one_engine_leave_each_other_alone(
    zygote: Zygote, engine: str
) -> None:
    """Each is killed and started again, under live sessions of both."""
    settings = settings_of(engine)
    async with (
        ServerProcess(zygote=zygote, settings=settings) as one,
        ServerProcess(zygote=zygote, settings=settings) as two,
    ):
        await asyncio.gather(one.start(), two.start())
        async with Here(one) as here, Here(two) as there:
            said = 'remember place {}\ncall tester_approve {{"what": "it"}}\nsay done'
            sessions = [await here.spawn(said.format(1)), await there.spawn(said.format(2))]
            for caller in (here, there):
                await caller.event("caller_tool_request", timeout=TURN)
            before = {**one.containers(), **two.containers()}
            assert len(before) == 2
            for server in (one, two):
                await server.kill()
                await server.start()
            assert {**one.containers(), **two.containers()}.keys() == before.keys()
            for caller, session, place in zip((here, there), sessions, "12", strict=True):
                caller.may.set()
                await caller.listen(after=caller.next)
                await caller.turns_done(session, wait=TURN)
                await caller.call("session_message", session_id=session, message="recall place")
                page = await caller.turns_done(session, wait=TURN)
                assert page["final_response"] == place
                check_log(await caller.log(session))
            # What one removes is its own.
            await here.call("session_end", session_id=sessions[0])
            await here.call("container_stop", project_id=here.project_id)
            assert one.containers() == {}
            assert len(two.containers()) == 1
            assert await one.stop() == 0
            assert len(two.containers()) == 1
            with pytest.raises(ToolFailed, match="force"):
                await there.call("container_stop", project_id=there.project_id)
            check_nothing_left(two)
