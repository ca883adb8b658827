"""What runs one container and its sessions: ContainerSupervisor and SessionsActor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.actors.container import supervisor as unit_module
from oubliette.actors.container.guest_connection import GuestConnectionState
from oubliette.actors.container.messages import ContainerKey, GetContainer
from oubliette.actors.container.supervisor import (
    ContainerSupervisor,
    KeepApiKey,
    SessionsActor,
    StartSession,
)
from oubliette.actors.messages import EndSession, GetSession
from oubliette.actors.session.actor import SessionActor
from oubliette.kit import WhichChildren

if TYPE_CHECKING:
    from oubliette.records import Project, Session
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

KEY = "key-of-the-agent"


@pytest.fixture
async def project(world: World) -> Project:
    return await world.project()


# ---------------------------------------------------------------------- ContainerSupervisor


async def begin_unit(world: World, project: Project) -> dict[str, int]:
    """Start a unit; its children and their incarnations."""
    unit = world.system.spawn(
        ContainerSupervisor, world.context, project, ContainerKey("base"), name="unit"
    )
    children = await unit.ask(WhichChildren())
    await world.system.ref("unit/sessions").ask(WhichChildren())  # it has looked into the store
    return children


def env_of_agent(world: World) -> dict[str, str]:
    return world.runtime.guest.process.request["env"]


async def agent_hears(world: World, prompt: str) -> None:
    def heard() -> bool:
        guests = list(world.runtime.guests.values())
        processes = [process for guest in guests for process in guest.processes.values()]
        return any(prompt == said.get("text") for process in processes for said in process.heard)

    await world.until(heard)


async def test_a_unit_has_three_parts_and_starts_no_container_before_a_session(
    world: World, project: Project
) -> None:
    assert list(await begin_unit(world, project)) == ["socket", "container", "sessions"]
    await world.settle()
    assert world.runtime.calls == []


async def test_a_session_that_is_started_in_a_unit_gets_its_prompt(
    world: World, project: Project
) -> None:
    await begin_unit(world, project)
    session = await world.session(project, prompts=("build it",))
    await world.system.ref("unit").ask(StartSession(session_id=session.id))
    await agent_hears(world, "build it")
    assert world.runtime.calls == ["create", "start"]


@pytest.mark.parametrize("part", ["socket", "container", "sessions"])
async def test_each_part_that_fails_comes_back_and_the_agent_goes_on(
    world: World, project: Project, part: str
) -> None:
    before = await begin_unit(world, project)
    session = await world.session(project, prompts=("one",))
    unit = world.system.ref("unit")
    await unit.ask(StartSession(session_id=session.id))
    await agent_hears(world, "one")
    await world.system.ref(f"unit/{part}").kill()
    await world.until(lambda: world.system.ref(f"unit/{part}").is_alive(), seconds=0.1)
    after = await unit.ask(WhichChildren())
    assert {name for name in before if before[name] != after[name]} == {part}
    process = world.runtime.guest.process
    process.say(type="message", turn=1, text="hi")
    process.say(type="completion", turn=1, final_text="done", status="completed")
    while (await world.stored(session)).status != "idle":
        await world.clock.elapse(0.1)
    assert (await world.stored(session)).final_response == "done"
    assert world.runtime.calls.count("start") == 1
    container = await world.system.ref("unit/container").ask(GetContainer())
    assert container is not None


@pytest.mark.parametrize("part", ["socket", "container", "sessions"])
async def test_each_part_that_ends_without_an_error_comes_back_too(
    world: World, project: Project, part: str
) -> None:
    before = await begin_unit(world, project)
    ref = world.system.ref(f"unit/{part}")
    assert await ref.stop()
    await world.until(ref.is_alive, seconds=0.1)
    after = await world.system.ref("unit").ask(WhichChildren())
    assert {name for name in before if before[name] != after[name]} == {part}


async def test_the_end_of_a_unit_is_told_to_who_waits_for_its_container(
    world: World, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GuestConnectionState] = []

    def guest() -> GuestConnectionState:
        made.append(GuestConnectionState())
        return made[-1]

    monkeypatch.setattr(unit_module, "GuestConnectionState", guest)
    await begin_unit(world, project)
    await world.system.ref("unit").stop()
    assert made[0].why_lost == "container lost: its unit ended"
    assert world.system.lookup("unit/container") is None


async def test_a_key_that_was_handed_over_reaches_that_agent_alone(
    world: World, project: Project
) -> None:
    await begin_unit(world, project)
    unit, session = world.system.ref("unit"), await world.session(project)
    await unit.ask(KeepApiKey(session_id="gogol_other", api_key="another"))
    await unit.ask(KeepApiKey(session_id=session.id, api_key=KEY))
    await unit.ask(StartSession(session_id=session.id))
    await agent_hears(world, "hello")
    values = env_of_agent(world).values()
    assert KEY in values
    assert "another" not in values


async def test_a_key_that_was_taken_back_reaches_nobody(world: World, project: Project) -> None:
    await begin_unit(world, project)
    unit, session = world.system.ref("unit"), await world.session(project)
    await unit.ask(KeepApiKey(session_id=session.id, api_key=KEY))
    await unit.ask(KeepApiKey(session_id=session.id, api_key=None))
    await unit.ask(StartSession(session_id=session.id))
    await agent_hears(world, "hello")
    assert KEY not in env_of_agent(world).values()


# ---------------------------------------------------------------------- SessionsActor


async def begin_sessions(
    world: World, project: Project, workspace_id: str | None = None
) -> dict[str, int]:
    """Start the sessions' supervisor; its sessions and their incarnations."""
    world.record("container", answer="ctr_x")
    unit = world.unit(GuestConnectionState())
    world.system.spawn(
        SessionsActor, world.context, unit, project.id, workspace_id, name="sessions"
    )
    return await live(world)


async def live(world: World) -> dict[str, int]:
    return await world.system.ref("sessions").ask(WhichChildren())


async def record_of(world: World, session: Session) -> Session:
    return await world.system.ref(f"sessions/{session.id}").ask(GetSession())


async def test_at_its_start_it_takes_over_the_live_sessions_of_its_project(
    world: World, project: Project
) -> None:
    other = await world.project(name="other")
    mine = [await world.session(project, status=status) for status in ("created", "idle")]
    await world.session(project, status="completed")
    await world.session(other, status="idle")
    assert set(await begin_sessions(world, project)) == {session.id for session in mine}
    for session in mine:
        assert (await record_of(world, session)).id == session.id
        assert world.context.session_registry.session(session.id) is not None


async def test_where_workspaces_are_isolated_it_takes_over_those_of_its_workspace(
    world: World, project: Project
) -> None:
    elsewhere = await world.workspace(project)
    here = await world.session(project, status="idle")
    await world.session(project, status="idle", workspace_id=elsewhere.id)
    assert list(await begin_sessions(world, project, project.default_workspace_id)) == [here.id]


async def test_a_session_that_runs_is_not_started_twice_unless_it_was_resumed(
    world: World, project: Project
) -> None:
    await begin_sessions(world, project)
    sessions, session = world.system.ref("sessions"), await world.session(project)
    await sessions.ask(StartSession(session_id=session.id))
    first = await live(world)
    await sessions.ask(StartSession(session_id=session.id))
    assert await live(world) == first
    await sessions.ask(StartSession(session_id=session.id, resumed=True))
    assert (await live(world))[session.id] > first[session.id]


async def test_a_session_whose_actor_fails_is_started_again(world: World, project: Project) -> None:
    session = await world.session(project, status="idle")
    first = await begin_sessions(world, project)
    ref = world.system.ref(f"sessions/{session.id}")
    await record_of(world, session)
    await ref.kill()
    await world.until(ref.is_alive, seconds=0.1)
    assert (await live(world))[session.id] > first[session.id]
    assert (await record_of(world, session)).status == "idle"


async def test_a_session_that_came_to_rest_is_not_started_again(
    world: World, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Counted(SessionActor):
        async def on_start(self) -> None:
            started.append(self.session_id)
            await super().on_start()

    monkeypatch.setattr(unit_module, "SessionActor", Counted)
    session = await world.session(project, status="idle")
    await begin_sessions(world, project)
    ref = world.system.ref(f"sessions/{session.id}")
    await record_of(world, session)
    await ref.ask(EndSession())
    await world.until(lambda: not ref.is_alive(), seconds=0.1)
    await world.settle(30.0)
    assert started == [session.id]


async def test_a_session_that_came_to_rest_is_forgotten(world: World, project: Project) -> None:
    session = await world.session(project, status="idle")
    await begin_sessions(world, project)
    ref = world.system.ref(f"sessions/{session.id}")
    await record_of(world, session)
    assert await ref.ask(EndSession()) == "completed"
    await world.until(lambda: not ref.is_alive(), seconds=0.1)
    last = ref.incarnation
    await world.settle(30.0)
    assert ref.incarnation == last
    assert await live(world) == {}
    assert world.context.session_registry.session(session.id) is None
