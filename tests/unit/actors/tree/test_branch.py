"""A tree whose sessions live on two nodes: `a`, the home of its project, counts; `b` has a branch."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.session.messages import (
    AgentBlocked,
    AgentBusy,
    AgentCost,
    LimitNotice,
    LogGrown,
    RootCaller,
    SessionFinished,
)
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.tree.branch import BranchActor
from oubliette.actors.tree.messages import (
    CloseTrees,
    GetUsage,
    OpenTree,
    ProjectGone,
    ReopenTrees,
    Reserve,
    Unreserve,
)
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.errors import LimitExceeded, ProjectMoves, Unavailable
from oubliette.kit import System
from oubliette.kit.remote import connect
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Limits, Project, Session
from oubliette.runtime.store.operations import PutProject, PutSession
from tests.unit.actors.fakes import ReaderOfADatabaseThatIsAway, Recorder
from tests.unit.kit.remote.network import Network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.kit import Message, Ref
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

TREE = "expl_x"
LIMITS = Limits(max_depth=3, max_agents=4, max_agents_at_once=2, max_cost_usd=1.0)


class Homes:
    """Homes of projects as one node sees them; `placed` is what all have in common."""

    def __init__(self, name: str, placed: dict[str, str]) -> None:
        self.name, self.placed = name, placed
        self.silent: set[str] = set()
        """Projects of which the database does not tell the home."""
        self.system: System

    def ref(self, node: str, name: str) -> Ref:
        return self.system.ref(f"{node}!{name}")

    async def home(self, project_id: str, *, needed: bool) -> str | None:
        assert needed
        if project_id in self.silent:
            await asyncio.Event().wait()
        node = self.placed.setdefault(project_id, "b")
        return None if node == self.name else node

    def forget(self, project_id: str) -> None:
        pass

    async def leave(self, project_id: str) -> None:
        del self.placed[project_id]

    async def projects_here(self) -> frozenset[str]:
        return frozenset(each for each, node in self.placed.items() if node == self.name)


class Node:
    """The trees of one node."""

    def __init__(self, world: World, name: str, placed: dict[str, str]) -> None:
        self.homes = Homes(name, placed)
        self.table = SessionTable()
        self.context = dataclasses.replace(
            world.context,
            homes=cast("Any", self.homes),
            session_registry=SessionRegistry(self.table),
        )

    async def start(self, system: System, network: Network, epoch: int) -> None:
        self.system = self.homes.system = system
        connect(system, network.node(self.homes.name), epoch=epoch, held=0.0)
        self.trees = system.spawn(TreesActor, self.context, name="trees")

    def plays(self, session_id: str) -> list[Any]:
        """Put a recorder in the place of a session; what it is told."""
        told: list[Any] = []
        self.table.enter(session_id, self.system.spawn(Recorder, told, False, name=session_id))
        return told

    def tell(self, message: Message) -> None:
        self.system.ref(f"trees/{TREE}").tell(message)

    def has_tree(self) -> bool:
        return self.system.lookup(f"trees/{TREE}") is not None


class Scene:
    """Two projects, `first` on node `a` and `second` on `b`; the root of the tree is in `first`."""

    def __init__(self, world: World, first: Project, second: Project, root: Session) -> None:
        self.world, self.first, self.second, self.root = world, first, second, root
        self.placed = {first.id: "a", second.id: "b"}
        self.network = Network()
        self.a, self.b = Node(world, "a", self.placed), Node(world, "b", self.placed)
        self.epoch = 1
        self.told: list[Any] = []
        """What the root is told."""

    async def start_b(self) -> None:
        system = System("b", self.world.clock, roundtrip_messages=True, watchdog=None)
        await system.__aenter__()
        await self.b.start(system, self.network, self.epoch)
        self.epoch += 1

    async def ask(self, node: Node, message: Any) -> Any:
        """Ask the tree on a node, as its projects do."""
        opened = OpenTree(tree_id=TREE, limits=LIMITS, project_id=self.first.id)

        async def once() -> Any:
            return await node.system.ref(await node.trees.ask(opened)).ask(message)

        asked = asyncio.ensure_future(ask_with_retry(once))
        await self.world.until(asked.done, seconds=0.1)
        return await asked

    async def begin(self, node: Node, session_id: str, **fields: Any) -> list[Any]:
        """Start a child on a node; what its actor is told."""
        given = {"depth": 1, "root_session_id": self.root.id, **fields}
        await self.ask(node, Reserve(session_id=session_id, **given))
        return node.plays(session_id)

    async def usage(self) -> dict[str, float]:
        return await self.ask(self.a, GetUsage())

    async def store(self, session_id: str, **fields: Any) -> Session:
        """A child on `b` in the store."""
        given = {"depth": 1, "root_session_id": self.root.id, "tree_project_id": self.first.id}
        return await self.world.session(
            self.second, id=session_id, exploration_id=TREE, **given, **fields
        )


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    first, second = await world.project(name="first"), await world.project(name="second")
    root = await world.session(first, status="idle", exploration_id=TREE, limits=LIMITS)
    made = Scene(world, first, second, root)
    await made.a.start(world.system, made.network, 1)
    made.told = made.a.plays(root.id)
    await made.start_b()
    try:
        yield made
    finally:
        ending = asyncio.ensure_future(made.b.system.stop())
        await world.until(ending.done, seconds=1.0)


async def test_the_places_of_a_tree_are_given_once_whichever_node_asks(scene: Scene) -> None:
    await scene.begin(scene.b, "gogol_b")
    await scene.begin(scene.a, "gogol_a")
    for node in (scene.a, scene.b):
        with pytest.raises(LimitExceeded, match="max_agents_at_once: the limit of this tree is 2"):
            await scene.begin(node, "gogol_c")
    scene.b.tell(AgentBlocked(session_id="gogol_b", waits=True))
    await scene.begin(scene.b, "gogol_c")
    scene.b.tell(AgentBusy(session_id="gogol_c", works=False))
    with pytest.raises(LimitExceeded, match="max_agents: the limit of this tree is 4"):
        await scene.begin(scene.b, "gogol_d")
    assert (await scene.usage())["max_agents"] == 4


async def test_what_agents_cost_on_one_node_is_counted_on_the_other(scene: Scene) -> None:
    await scene.begin(scene.b, "gogol_b")
    scene.b.tell(AgentCost(session_id="gogol_b", cost_usd=1.5))
    await scene.world.settle()
    with pytest.raises(LimitExceeded, match="max_cost_usd"):
        await scene.begin(scene.a, "gogol_a")
    assert [each.limit for each in scene.told if isinstance(each, LimitNotice)] == ["max_cost_usd"]


async def test_events_on_both_nodes_are_limited_together(scene: Scene) -> None:
    told = await scene.begin(scene.b, "gogol_b")
    limit = scene.world.config.trees.max_log_bytes
    scene.a.tell(LogGrown(session_id=scene.root.id, log_bytes=limit - 10))
    scene.b.tell(LogGrown(session_id="gogol_b", log_bytes=9))
    await scene.world.settle()
    assert told == []
    scene.b.tell(LogGrown(session_id="gogol_b", log_bytes=10))
    await scene.world.settle()
    assert [(each.limit, each.action) for each in told] == [("trees.max_log_bytes", "interrupt")]


async def test_a_session_that_is_not_made_leaves_its_place(scene: Scene) -> None:
    await scene.begin(scene.b, "gogol_b")
    scene.b.tell(Unreserve(session_id="gogol_b"))
    await scene.world.settle()
    assert (await scene.usage())["max_agents"] == 1
    assert not scene.b.has_tree()


async def test_the_end_of_the_time_and_the_caller_of_the_root_reach_the_other_node(
    scene: Scene,
) -> None:
    told = await scene.begin(scene.b, "gogol_b", limits=Limits(max_wall_seconds=10.0))
    caller = RootCaller(root_session_id=scene.root.id, principal="alice", caller_id="desk")
    scene.a.tell(caller)
    await scene.world.settle()
    assert caller in told
    await scene.world.settle(9.0)
    await scene.world.settle(2.0)
    assert [each.action for each in told if isinstance(each, LimitNotice)][:2] == [
        "warn",
        "time_out",
    ]


async def test_a_tree_ends_on_both_nodes_with_the_last_of_its_sessions(scene: Scene) -> None:
    await scene.begin(scene.b, "gogol_b")
    scene.a.tell(SessionFinished(session_id=scene.root.id))
    await scene.world.settle()
    assert scene.a.has_tree()
    scene.b.tell(SessionFinished(session_id="gogol_b"))
    for node in (scene.a, scene.b):
        await scene.world.until(lambda node=node: not node.has_tree())


async def test_a_session_is_resumed_on_another_node_although_all_of_its_tree_has_ended(
    scene: Scene,
) -> None:
    await scene.world.put(PutSession(msgspec.structs.replace(scene.root, status="completed")))
    scene.a.tell(SessionFinished(session_id=scene.root.id))
    await scene.world.until(lambda: not scene.a.has_tree())
    await scene.begin(scene.b, "gogol_b", new=False)
    assert (await scene.usage())["max_agents_at_once"] == 1


async def test_a_tree_that_starts_again_learns_what_lives_on_the_other_node(scene: Scene) -> None:
    """One that is in no store yet counts too, and one that waits for its children takes no slot."""
    await scene.begin(scene.b, "gogol_b")
    await scene.begin(scene.b, "gogol_c")
    scene.b.tell(AgentBlocked(session_id="gogol_c", waits=True))
    await scene.world.settle()
    await scene.a.system.ref(f"trees/{TREE}").kill()
    await scene.world.settle(1.0)
    await scene.world.settle(1.0)
    usage = await scene.usage()
    assert (usage["max_agents"], usage["max_agents_at_once"]) == (3, 1)


async def test_a_session_whose_end_no_node_reports_leaves_its_place(scene: Scene) -> None:
    """Those of a node that is gone keep their places until the store has their ends."""
    child = await scene.store("gogol_b", status="running")
    await scene.begin(scene.b, child.id, new=False)
    await scene.begin(scene.b, "gogol_c")
    with pytest.raises(LimitExceeded, match="max_agents_at_once"):
        await scene.begin(scene.a, "gogol_a")
    ended = msgspec.structs.replace(child, status="failed")
    await scene.world.put(PutSession(ended))
    scene.network.cut("b")
    await scene.world.settle()
    usage = await scene.usage()
    assert (usage["max_agents"], usage["max_agents_at_once"]) == (2, 0)
    await scene.begin(scene.a, "gogol_a")


async def test_a_branch_reports_the_end_of_a_session_that_the_tree_did_not_hear_of(
    scene: Scene,
) -> None:
    """Steps: two children on b; a starts anew, and one of them ends before it knows of b."""
    for each in ("gogol_b", "gogol_c"):
        await scene.begin(scene.b, each)
        child = await scene.store(each, status="running")
    await scene.a.system.ref(f"trees/{TREE}").kill()
    await scene.world.settle()
    assert (await scene.usage())["max_agents_at_once"] == 2
    await scene.world.put(PutSession(msgspec.structs.replace(child, status="completed")))
    scene.b.tell(SessionFinished(session_id=child.id))
    await scene.world.settle(1.0)
    await scene.world.settle(1.0)
    assert (await scene.usage())["max_agents_at_once"] == 1


@pytest.mark.parametrize("fails", [0, 3])
async def test_a_branch_that_starts_again_reports_what_the_store_has(
    scene: Scene, fails: int
) -> None:
    """Also if the database is away meanwhile."""
    away: Any = ReaderOfADatabaseThatIsAway(scene.world.reader, fails)
    context = dataclasses.replace(scene.b.context, reader=away)
    await scene.store("gogol_b", status="idle", cost_usd=0.25)
    opened = OpenTree(tree_id=TREE, limits=LIMITS, project_id=scene.first.id)
    scene.b.system.spawn(BranchActor, context, opened, name=f"trees/{TREE}")
    scene.b.tell(AgentBusy(session_id="gogol_b", works=True))
    while (await scene.usage())["max_agents_at_once"] != 1:
        await scene.world.settle()
    assert (await scene.usage())["max_cost_usd"] == 0.25


async def test_without_the_home_of_the_tree_the_other_node_starts_nothing(scene: Scene) -> None:
    scene.network.cut("a")
    with pytest.raises(Unavailable, match="the node that counts the sessions of this tree"):
        await scene.begin(scene.b, "gogol_b")
    await scene.world.settle()
    assert not scene.b.has_tree()


async def test_a_tree_is_counted_where_the_project_of_its_root_has_moved(scene: Scene) -> None:
    """Steps: the root has ended, children live on a, in a third project, and on b."""
    third = await scene.world.project(name="third")
    scene.placed[third.id] = "a"
    await scene.world.session(
        third,
        id="gogol_a",
        exploration_id=TREE,
        depth=1,
        root_session_id=scene.root.id,
        status="running",
        tree_project_id=scene.first.id,
    )
    await scene.begin(scene.a, "gogol_a", new=False)
    await scene.begin(scene.b, "gogol_b")
    await scene.store("gogol_b", status="running")
    await scene.world.put(PutSession(msgspec.structs.replace(scene.root, status="completed")))
    scene.a.tell(SessionFinished(session_id=scene.root.id))
    await scene.a.trees.ask(CloseTrees(project_id=scene.first.id))
    assert not scene.a.has_tree()
    scene.placed[scene.first.id] = "b"
    scene.a.trees.tell(ReopenTrees(project_id=scene.first.id))
    await scene.world.settle(1.0)
    await scene.world.settle(1.0)
    assert (await scene.ask(scene.b, GetUsage()))["max_agents_at_once"] == 2
    for node in (scene.a, scene.b):
        with pytest.raises(LimitExceeded, match="max_agents_at_once"):
            await scene.begin(node, "gogol_c")


async def test_no_node_counts_a_tree_while_its_project_is_on_its_way(scene: Scene) -> None:
    await scene.a.trees.ask(CloseTrees(project_id=scene.first.id))
    with pytest.raises(Unavailable, match="the node that counts the sessions of this tree"):
        await scene.begin(scene.b, "gogol_b")
    scene.a.trees.tell(ReopenTrees(project_id=scene.first.id))
    await scene.begin(scene.b, "gogol_b")


async def test_a_tree_whose_project_is_deleted_is_counted_once_until_it_ends(scene: Scene) -> None:
    """Steps: a child lives on b; the root ends, its project is deleted; another child, on a."""
    await scene.begin(scene.b, "gogol_b")
    child = await scene.store("gogol_b", status="running")
    await scene.world.put(PutSession(msgspec.structs.replace(scene.root, status="completed")))
    scene.a.tell(SessionFinished(session_id=scene.root.id))
    await scene.world.put(PutProject(msgspec.structs.replace(scene.first, deleted_at=1.0)))
    deleted = asyncio.ensure_future(scene.a.trees.ask(ProjectGone(project_id=scene.first.id)))
    await scene.world.until(deleted.done)
    await scene.begin(scene.a, "gogol_a")
    for node in (scene.a, scene.b):
        with pytest.raises(LimitExceeded, match="max_agents_at_once"):
            await scene.begin(node, "gogol_c")
    assert scene.placed[scene.first.id] == "a"
    await scene.world.put(PutSession(msgspec.structs.replace(child, status="completed")))
    scene.a.tell(SessionFinished(session_id="gogol_a"))
    scene.b.tell(SessionFinished(session_id="gogol_b"))
    await scene.world.until(lambda: scene.first.id not in scene.placed, seconds=0.1)
    await scene.begin(scene.a, "gogol_d", new=False)
    assert (await scene.ask(scene.b, GetUsage()))["max_agents_at_once"] == 1


async def test_a_deleted_project_without_a_living_tree_has_no_home(scene: Scene) -> None:
    await scene.world.put(PutProject(msgspec.structs.replace(scene.second, deleted_at=1.0)))
    deleted = asyncio.ensure_future(scene.b.trees.ask(ProjectGone(project_id=scene.second.id)))
    await scene.world.until(deleted.done)
    assert scene.second.id not in scene.placed


async def test_a_database_that_is_slow_for_one_tree_keeps_no_other_waiting(scene: Scene) -> None:
    await scene.world.settle()  # it has started
    scene.a.homes.silent.add(scene.first.id)
    slow = asyncio.ensure_future(
        scene.a.trees.ask(OpenTree(tree_id="expl_y", limits=LIMITS, project_id=scene.first.id))
    )
    scene.placed[scene.second.id] = "a"
    other = asyncio.ensure_future(
        scene.a.trees.ask(OpenTree(tree_id="expl_z", limits=LIMITS, project_id=scene.second.id))
    )
    await scene.world.until(other.done)
    assert await other == "trees/expl_z"
    assert not slow.done()
    slow.cancel()


async def test_a_home_that_was_looked_up_before_a_move_is_looked_up_again(scene: Scene) -> None:
    """Steps: a node reads the home of the project, which leaves, before the answer has come."""
    await scene.world.settle()  # it has started
    homes, answered = scene.a.homes, asyncio.Event()
    look_up = homes.home

    async def late(project_id: str, *, needed: bool) -> str | None:
        node = await look_up(project_id, needed=needed)
        await answered.wait()
        return node

    homes.home = late  # type: ignore[method-assign]
    opened = OpenTree(tree_id="expl_y", limits=LIMITS, project_id=scene.first.id, at_home=True)
    asked = asyncio.ensure_future(scene.a.trees.ask(opened))
    await scene.world.settle()
    await scene.a.trees.ask(CloseTrees(project_id=scene.first.id))
    scene.placed[scene.first.id] = "b"
    scene.a.trees.tell(ReopenTrees(project_id=scene.first.id))
    answered.set()
    await scene.world.until(asked.done)
    with pytest.raises(ProjectMoves):
        await asked
