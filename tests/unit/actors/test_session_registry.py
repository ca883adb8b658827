"""Who runs which session: one actor writes it down, everybody else reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.actors.container.supervisor import KeepApiKey
from oubliette.actors.session_registry import (
    REGISTRY,
    EnterSession,
    GetSupervised,
    LeaveSession,
    SessionRegistryActor,
)
from oubliette.errors import NotFound
from oubliette.kit import Actor, ChildSpec, DynamicSupervisor, handles

if TYPE_CHECKING:
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


class Child(Actor):
    """Stands for a session."""

    @handles(KeepApiKey)
    def _keep(self, message: KeepApiKey) -> None:
        if message.api_key is None:
            self.stop()


class Children(DynamicSupervisor):
    """Stands for the supervisor of sessions."""

    def on_start(self) -> None:
        super().on_start()
        for name in ("gogol_x", "gogol_y"):
            self.ensure_child(ChildSpec(name=name, cls=Child, restart="transient"))

    @handles(GetSupervised)
    def _supervised(self, _: GetSupervised) -> tuple[str, ...]:
        return self.children


async def begin(world: World) -> None:
    """Two sessions run, and are entered."""
    supervisor = world.system.spawn(Children, name="sessions")
    assert await supervisor.ask(GetSupervised()) == ("gogol_x", "gogol_y")
    for session_id in ("gogol_x", "gogol_y"):
        await world.system.ref(REGISTRY).ask(
            EnterSession(
                session_id=session_id, name=f"sessions/{session_id}", supervisor="sessions"
            )
        )


def known(world: World) -> list[str]:
    sessions = ("gogol_x", "gogol_y")
    return [each for each in sessions if world.context.session_registry.session(each) is not None]


async def test_a_session_is_found_from_the_moment_it_entered_until_it_left(world: World) -> None:
    await begin(world)
    assert known(world) == ["gogol_x", "gogol_y"]
    assert len(world.context.session_registry.live()) == 2
    world.system.ref(REGISTRY).tell(LeaveSession(session_id="gogol_x", name="sessions/gogol_x"))
    await world.settle()
    assert known(world) == ["gogol_y"]
    with pytest.raises(NotFound):
        await world.context.session_registry.ask("gogol_x", GetSupervised())


async def test_one_that_another_actor_runs_by_now_does_not_leave(world: World) -> None:
    await begin(world)
    world.system.ref(REGISTRY).tell(LeaveSession(session_id="gogol_x", name="old/gogol_x"))
    await world.settle()
    assert known(world) == ["gogol_x", "gogol_y"]


async def test_the_sessions_of_a_supervisor_leave_with_it(world: World) -> None:
    await begin(world)
    await world.system.ref("sessions").kill()
    await world.until(lambda: not known(world))
    assert world.sessions.supervisors == {}


async def test_a_restarted_registry_keeps_what_lives_and_drops_what_left_meanwhile(
    world: World,
) -> None:
    await begin(world)
    await world.system.ref(REGISTRY).kill()
    await world.system.ref("sessions/gogol_x").ask(KeepApiKey(session_id="", api_key=None))
    await world.until(lambda: world.system.lookup("sessions/gogol_x") is None)
    assert known(world) == ["gogol_x", "gogol_y"], "nobody else may write"
    world.system.spawn(SessionRegistryActor, world.sessions, name=REGISTRY)
    await world.until(lambda: known(world) == ["gogol_y"])
    await world.system.ref("sessions").kill()
    await world.until(lambda: not known(world))
