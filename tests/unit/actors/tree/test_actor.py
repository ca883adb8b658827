"""The actor of one tree over what the store has of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.session.messages import AgentCost, LimitNotice, LogGrown, SessionFinished
from oubliette.actors.tree.actor import TreeActor
from oubliette.actors.tree.messages import GetUsage, Reserve
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.config.schema import Config, TreesConfig
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, Message, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Limits

if TYPE_CHECKING:
    from oubliette.kit import Ref
    from oubliette.records import Session
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

TREE = "expl_x"


class Scene:
    """A tree with a root that lives and a child that has ended; three agents are allowed."""

    def __init__(self, world: World, root: Session) -> None:
        self.world, self.root = world, root
        self.told: list[Any] = world.record("root", answer=False)
        world.sessions.enter(root.id, world.system.ref("root"))

    def begin(self, **limits: Any) -> Ref:
        limited = Limits(max_agents=3, **limits)
        return self.world.system.spawn(
            TreeActor, self.world.context, TREE, limited, name=f"trees/{TREE}"
        )

    def notices(self) -> list[tuple[str, str]]:
        told = [each for each in self.told if isinstance(each, LimitNotice)]
        return [(notice.limit, notice.action) for notice in told]


@pytest.fixture
async def scene(world: World) -> Scene:
    project = await world.project()
    root = await world.session(project, status="idle", exploration_id=TREE, cost_usd=0.5)
    await world.session(project, status="completed", exploration_id=TREE, depth=1, cost_usd=0.25)
    return Scene(world, root)


async def test_it_counts_once_the_database_is_back(scene: Scene) -> None:
    scene.world.database_away(fails=3)
    assert (await scene.begin().ask(GetUsage()))["max_agents"] == 2


async def test_it_counts_from_the_store_what_there_is(scene: Scene) -> None:
    scene.world.clock.advance(10.0)
    usage = await scene.begin().ask(GetUsage())
    assert usage == {
        "max_agents": 2,
        "max_agents_at_once": 0,
        "max_cost_usd": 0.75,
        "max_wall_seconds": 10.0,
    }


async def test_places_are_given_as_long_as_there_are_any(scene: Scene) -> None:
    tree = scene.begin()
    await tree.ask(Reserve(session_id="gogol_a", depth=1))
    with pytest.raises(LimitExceeded, match="max_agents"):
        await tree.ask(Reserve(session_id="gogol_b", depth=1))
    assert (await tree.ask(GetUsage()))["max_agents"] == 3


async def test_the_root_is_warned_of_the_cost_once_and_nobody_starts_above_it(
    scene: Scene,
) -> None:
    tree = scene.begin(max_cost_usd=1.0)
    tree.tell(AgentCost(session_id=scene.root.id, cost_usd=0.7))
    tree.tell(AgentCost(session_id=scene.root.id, cost_usd=0.8))
    with pytest.raises(LimitExceeded, match="max_cost_usd"):
        await tree.ask(Reserve(session_id="gogol_a", depth=1))
    await scene.world.settle()
    assert scene.notices() == [("max_cost_usd", "warn")]


async def test_its_time_runs_on_over_a_restart(scene: Scene) -> None:
    tree = scene.begin(max_wall_seconds=100.0)
    await scene.world.settle(50.0)
    await tree.kill()
    tree = scene.begin(max_wall_seconds=100.0)
    await tree.ask(GetUsage())
    await scene.world.settle(31.0)
    assert scene.notices() == [("max_wall_seconds", "warn")]
    await scene.world.settle(20.0)
    assert ("max_wall_seconds", "time_out") in scene.notices()


@pytest.mark.parametrize("jump", [-1e6, 1e6, 1.8e9], ids=["back", "on", "from 1970 on"])
async def test_its_time_does_not_notice_that_the_clock_of_the_machine_is_set(
    scene: Scene, jump: float
) -> None:
    tree, clock = scene.begin(max_wall_seconds=100.0), scene.world.clock

    def told() -> list[str]:
        return [action for limit, action in scene.notices() if limit == "max_wall_seconds"]

    await tree.ask(GetUsage())
    clock.set_wall(clock.time() + jump)
    await scene.world.settle(50.0)
    await tree.ask(Reserve(session_id="gogol_a", depth=1))
    assert told() == []
    await scene.world.settle(31.0)
    assert told() == ["warn"]
    await scene.world.settle(20.0)
    assert "time_out" in told()


class Stay(Message):
    """To a Busy: take nothing more until you may."""


class Busy(Actor):
    """A session whose mailbox is full."""

    mailbox_size = 1

    def __init__(self, may: asyncio.Event, stays: asyncio.Event) -> None:
        super().__init__()
        self._may, self._stays = may, stays

    @handles(Stay)
    async def _stay(self, _: Stay) -> None:
        self._stays.set()
        await self._may.wait()


async def test_a_session_that_takes_nothing_more_does_not_end_its_tree(scene: Scene) -> None:
    may, stays = asyncio.Event(), asyncio.Event()
    tree = scene.begin(max_wall_seconds=100.0)
    await tree.ask(GetUsage())
    first = tree.incarnation
    busy = scene.world.system.spawn(Busy, may, stays, name="busy")
    scene.world.sessions.enter(scene.root.id, busy)
    busy.tell(Stay())
    await stays.wait()
    busy.tell(Stay())
    await scene.world.settle(81.0)
    await tree.ask(Reserve(session_id="gogol_a", depth=1))
    assert tree.incarnation == first
    may.set()


async def test_it_ends_with_the_last_session_that_lives(scene: Scene) -> None:
    tree = scene.begin()
    await tree.ask(GetUsage())
    assert tree.is_alive()
    tree.tell(SessionFinished(session_id=scene.root.id))
    await scene.world.until(lambda: not tree.is_alive())


async def test_no_root_of_several_starts_or_is_resumed_once_the_time_is_over(
    world: World,
) -> None:
    project = await world.project()
    given = Limits(max_wall_seconds=5.0)
    root = await world.session(project, status="completed", exploration_id=TREE, tree_limits=given)
    scene = Scene(world, root)
    tree = scene.begin(max_wall_seconds=5.0)
    await tree.ask(Reserve(session_id=root.id, depth=0, new=False, tree_limits=given))
    world.clock.advance(6.0)
    for session_id, new in ((root.id, False), ("gogol_b", True)):
        with pytest.raises(LimitExceeded, match=r"max_wall_seconds.*set by the tree"):
            await tree.ask(Reserve(session_id=session_id, depth=0, new=new, tree_limits=given))


async def test_every_root_of_a_shared_tree_is_warned(scene: Scene) -> None:
    second = await scene.world.session(
        await scene.world.project(name="q"), status="idle", exploration_id=TREE, cost_usd=0.1
    )
    told: list[Any] = scene.world.record("second", answer=False)
    scene.world.sessions.enter(second.id, scene.world.system.ref("second"))
    tree = scene.begin(max_cost_usd=1.0)
    tree.tell(AgentCost(session_id=second.id, cost_usd=0.2))
    await tree.ask(GetUsage())
    await scene.world.settle()
    assert scene.notices() == [("max_cost_usd", "warn")]
    notices = [each.limit for each in told if isinstance(each, LimitNotice)]
    assert notices == ["max_cost_usd"]


@pytest.mark.parametrize("limit", [1000, 0])
async def test_who_writes_on_above_the_limit_of_the_trees_events_is_interrupted(
    world: World, limit: int
) -> None:
    """What ended sessions have written counts, after a restart too; who writes no more works on."""
    world.configure(Config(trees=TreesConfig(max_log_bytes=limit)))
    project = await world.project()
    root = await world.session(project, status="idle", exploration_id=TREE, log_bytes=300)
    await world.session(project, status="completed", exploration_id=TREE, depth=1, log_bytes=400)
    scene = Scene(world, root)
    told: list[Any] = world.record("child", answer=False)
    world.sessions.enter("gogol_a", world.system.ref("child"))
    tree = scene.begin()
    await tree.ask(Reserve(session_id="gogol_a", depth=1))
    for size in (100, 299, 300, 320):
        tree.tell(LogGrown(session_id="gogol_a", log_bytes=size))
    await tree.ask(GetUsage())
    await world.settle()
    notices = [each for each in told if isinstance(each, LimitNotice)]
    assert [(each.limit, each.action) for each in notices] == [
        ("trees.max_log_bytes", "interrupt")
    ] * (2 if limit else 0)
    assert all("1000 of 1000" in each.message for each in notices[:1])
    assert "trees.max_log_bytes" not in dict(scene.notices())


async def test_a_session_of_a_stricter_project_ends_earlier_than_its_tree(scene: Scene) -> None:
    told: list[Any] = scene.world.record("strict", answer=False)
    scene.world.sessions.enter("gogol_a", scene.world.system.ref("strict"))
    tree = scene.begin(max_wall_seconds=100.0)
    await tree.ask(Reserve(session_id="gogol_a", depth=1, limits=Limits(max_wall_seconds=10.0)))
    await scene.world.settle(9.0)
    await scene.world.settle(2.0)
    assert [each.action for each in told if isinstance(each, LimitNotice)][:2] == [
        "warn",
        "time_out",
    ]
    near = ("max_agents", "warn")
    assert scene.notices() == [near]
    tree.tell(SessionFinished(session_id="gogol_a"))
    await scene.world.settle(75.0)
    await scene.world.settle(20.0)
    assert scene.notices()[1:3] == [("max_wall_seconds", "warn"), ("max_wall_seconds", "time_out")]


async def test_the_time_of_a_stricter_project_runs_on_over_a_restart(scene: Scene) -> None:
    own = Limits(max_wall_seconds=10.0)
    strict = await scene.world.session(
        await scene.world.project(name="q"),
        status="idle",
        exploration_id=TREE,
        depth=1,
        limits=own,
    )
    told: list[Any] = scene.world.record("strict", answer=False)
    scene.world.sessions.enter(strict.id, scene.world.system.ref("strict"))
    tree = scene.begin(max_wall_seconds=100.0)
    await tree.ask(GetUsage())
    await scene.world.settle(11.0)
    assert [each.action for each in told if isinstance(each, LimitNotice)] != []
    assert scene.notices() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_depth", 0), ("max_agents", 2), ("max_cost_usd", 0.5), ("max_agents_at_once", 0)],
)
async def test_of_two_limits_the_tighter_one_holds_for_a_session(
    scene: Scene, name: str, value: Any
) -> None:
    tree = scene.begin(max_depth=3, max_cost_usd=10.0, max_agents_at_once=9)
    with pytest.raises(LimitExceeded, match=f"{name}: the limit .* is {value} "):
        await tree.ask(Reserve(session_id="gogol_a", depth=1, limits=Limits(**{name: value})))
    await tree.ask(Reserve(session_id="gogol_a", depth=1, limits=Limits(max_agents=100)))
    with pytest.raises(LimitExceeded, match="max_agents"):
        await tree.ask(Reserve(session_id="gogol_b", depth=1, limits=Limits(max_agents=100)))


async def test_a_tree_of_which_only_a_stricter_session_lives_keeps_its_roots_limits(
    world: World,
) -> None:
    project = await world.project()
    known = {"exploration_id": TREE, "limits": Limits(max_agents=5)}
    root = await world.session(project, status="completed", **known)
    below = {"depth": 1, "root_session_id": root.id, "limits": Limits(max_agents=2)}
    await world.session(project, status="idle", **{**known, **below})
    world.system.spawn(TreesActor, world.context, name="trees")
    tree = world.system.ref(f"trees/{TREE}")
    reserve = Reserve(session_id="gogol_a", depth=1, limits=root.limits)
    await ask_with_retry(lambda: tree.ask(reserve))
    assert (await tree.ask(GetUsage()))["max_agents"] == 3
