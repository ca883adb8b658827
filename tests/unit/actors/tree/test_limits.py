"""The actor of a tree of sessions: it is there while one of them lives, and no longer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.session.messages import AgentCost, IsBlocked, RootCaller, SessionFinished
from oubliette.actors.tree.limits import limit_sources, tightened
from oubliette.actors.tree.messages import GetUsage, OpenTree, Reserve, Unreserve
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.config.schema import Config
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, ActorDead, Ref, System, WhichChildren, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.records import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

LIMITS = Limits(max_depth=2, max_agents=3, max_agents_at_once=2)


class Scene:
    """Trees over a store that knows of no session."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.stored: list[Any] = []
        self.actors: dict[str, Ref] = {}
        context = SimpleNamespace(
            config=Config(),
            clock=system.clock,
            reader=self,
            session_registry=SimpleNamespace(session=self.actors.get),
            projects_here=self.projects_here,
            homes=None,
        )
        self.trees = system.spawn(TreesActor, cast("Any", context), name="trees")

    async def live_sessions(self) -> list[Any]:
        return []

    async def projects_here(self) -> frozenset[str] | None:
        return None

    async def run(self, _query: Any) -> tuple[list[Any], None]:
        return self.stored, None

    async def ask(self, message: Any) -> Any:
        """Ask the tree, as projects do."""

        async def once() -> Any:
            opened = OpenTree(tree_id="tree", limits=LIMITS, project_id="proj_x")
            return await self.system.ref(await self.trees.ask(opened)).ask(message)

        asked = asyncio.ensure_future(ask_with_retry(once))
        await asyncio.wait({asked}, timeout=5)
        return await asked

    def tell(self, message: Any) -> None:
        tree = self.system.lookup("trees/tree")
        assert tree is not None
        tree.tell(message)

    async def there(self) -> bool:
        """Whether the tree has an actor, once all that it was told is handled."""
        tree = self.system.lookup("trees/tree")
        if tree is None:
            return False
        try:
            await tree.ask(AgentCost(session_id="root", cost_usd=0.0))
        except ActorDead:
            return False
        return True

    async def forgotten(self) -> None:
        """Wait until the tree's supervisor knows nothing of it."""
        assert not await self.there()
        async with asyncio.timeout(5):
            while await self.trees.ask(WhichChildren()):
                await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with System(watchdog=None) as system:
        yield Scene(system)


def reserve(session_id: str, depth: int = 0, *, new: bool = True) -> Reserve:
    return Reserve(session_id=session_id, depth=depth, new=new)


async def test_a_tree_ends_with_the_last_of_its_sessions(scene: Scene) -> None:
    await scene.ask(reserve("root"))
    await scene.ask(reserve("child", 1))
    scene.tell(SessionFinished(session_id="root"))
    assert await scene.there()
    scene.tell(SessionFinished(session_id="child"))
    await scene.forgotten()


async def test_a_tree_whose_only_session_was_never_made_ends(scene: Scene) -> None:
    await scene.ask(reserve("root"))
    scene.tell(Unreserve(session_id="root"))
    await scene.forgotten()


async def test_a_session_that_is_resumed_while_it_comes_to_rest_keeps_its_tree(
    scene: Scene,
) -> None:
    await scene.ask(reserve("root"))
    await scene.ask(reserve("root", new=False))
    scene.tell(SessionFinished(session_id="root"))
    assert await scene.there()
    scene.tell(SessionFinished(session_id="root"))
    await scene.forgotten()


async def test_a_session_that_rests_takes_no_place_though_it_never_ran(scene: Scene) -> None:
    """Its agent did not start, so that it never said that it works no more."""
    await scene.ask(reserve("root"))
    await scene.ask(reserve("child", 1))
    with pytest.raises(LimitExceeded, match="max_agents_at_once"):
        await scene.ask(reserve("other", 1))
    scene.tell(SessionFinished(session_id="child"))
    await scene.ask(reserve("other", 1))


async def test_a_tree_that_is_only_asked_something_does_not_stay(scene: Scene) -> None:
    assert (await scene.ask(GetUsage()))["max_agents"] == 0
    await scene.forgotten()
    with pytest.raises(LimitExceeded, match="max_depth"):
        await scene.ask(reserve("deep", 9))
    await scene.forgotten()


async def test_a_tree_that_is_asked_while_it_ends_is_there_again(scene: Scene) -> None:
    await scene.ask(reserve("root"))
    scene.tell(SessionFinished(session_id="root"))
    await scene.ask(reserve("root", new=False))
    assert await scene.there()


class FakeSession(Actor):
    """A session as far as its tree asks it."""

    def __init__(self, blocked: bool, callers: list[tuple[str, str | None]]) -> None:
        super().__init__()
        self._blocked = blocked
        self._callers = callers

    @handles(IsBlocked)
    def _is_blocked(self, _: IsBlocked) -> bool:
        return self._blocked

    @handles(RootCaller)
    def _root_caller(self, message: RootCaller) -> None:
        self._callers.append((message.principal, message.caller_id))


def stored(session_id: str, depth: int, root: str = "root") -> Any:
    return SimpleNamespace(
        id=session_id,
        depth=depth,
        root_session_id=root,
        cost_usd=0.0,
        log_bytes=0,
        created_at=0.0,
        status="running",
        principal="p",
        caller_id="c",
        limits=Limits(),
    )


async def test_a_tree_whose_actor_starts_later_counts_no_agent_that_waits(scene: Scene) -> None:
    scene.stored = [stored("root", 0), stored("child", 1)]
    heard: list[tuple[str, str | None]] = []
    for session_id, blocked in (("root", True), ("child", False)):
        scene.actors[session_id] = scene.system.spawn(FakeSession, blocked, heard)
    usage = await scene.ask(GetUsage())
    assert usage["max_agents_at_once"] == 1
    assert (await scene.ask(GetUsage()))["max_agents"] == 2


async def test_all_sessions_but_the_root_are_told_who_decides_on_permissions(scene: Scene) -> None:
    scene.stored = [stored("root", 0), stored("child", 1), stored("other", 1)]
    heard: dict[str, list[tuple[str, str | None]]] = {"root": [], "child": [], "other": []}
    for session_id, callers in heard.items():
        scene.actors[session_id] = scene.system.spawn(FakeSession, False, callers)
    await scene.ask(GetUsage())
    scene.tell(RootCaller(root_session_id="root", principal="p", caller_id="new"))
    assert await scene.there()
    for ref in scene.actors.values():
        await ref.ask(IsBlocked())
    assert heard == {
        "root": [],
        "child": [("p", "c"), ("p", "new")],
        "other": [("p", "c"), ("p", "new")],
    }


def shared(session_id: str, *, new: bool = True) -> Reserve:
    return Reserve(session_id=session_id, depth=0, new=new, tree_limits=Limits())


async def test_a_root_more_takes_a_slot_where_several_share_a_tree(scene: Scene) -> None:
    await scene.ask(shared("one"))
    await scene.ask(shared("two"))
    with pytest.raises(LimitExceeded, match="max_agents_at_once"):
        await scene.ask(shared("three"))
    with pytest.raises(LimitExceeded, match="max_agents_at_once"):
        await scene.ask(reserve("child", 1))
    scene.tell(SessionFinished(session_id="one"))
    await scene.ask(shared("three"))
    with pytest.raises(LimitExceeded, match="max_agents"):
        await scene.ask(shared("four"))


async def test_who_decides_on_permissions_is_told_to_the_descendants_of_that_root(
    scene: Scene,
) -> None:
    scene.stored = [stored("a", 0, "a"), stored("b", 0, "b"), stored("a1", 1, "a")]
    scene.stored.append(stored("b1", 1, "b"))
    heard: dict[str, list[tuple[str, str | None]]] = {"a": [], "b": [], "a1": [], "b1": []}
    for session_id, callers in heard.items():
        scene.actors[session_id] = scene.system.spawn(FakeSession, False, callers)
    await scene.ask(GetUsage())
    scene.tell(RootCaller(root_session_id="b", principal="p", caller_id="new"))
    assert await scene.there()
    for ref in scene.actors.values():
        await ref.ask(IsBlocked())
    assert heard == {"a": [], "b": [], "a1": [("p", "c")], "b1": [("p", "c"), ("p", "new")]}


def test_the_lower_limit_holds_and_a_cost_of_zero_is_none() -> None:
    limits = Limits(max_agents=5, max_depth=3, max_cost_usd=10.0)
    given = Limits(max_agents=9, max_depth=0, max_cost_usd=0.0, max_turn_steps=7)
    assert tightened(limits, given) == Limits(
        max_agents=5, max_depth=0, max_cost_usd=10.0, max_turn_steps=7
    )
    unlimited = Limits(max_cost_usd=0.0)
    assert tightened(unlimited, Limits(max_cost_usd=2.0)).max_cost_usd == 2.0
    assert tightened(unlimited, Limits()).max_cost_usd == 0.0


def test_a_limit_is_of_the_tree_only_if_it_holds_there() -> None:
    sources = limit_sources(Limits(max_agents=3, max_depth=2), Limits(max_agents=3, max_depth=9))
    assert (sources["max_agents"], sources["max_depth"]) == ("tree", "project")
    assert sources["max_cost_usd"] == "configuration"
