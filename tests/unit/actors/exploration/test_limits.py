"""The actor of a tree of sessions: it is there while one of them lives, and no longer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.exploration.actor import (
    ExplorationsActor,
    GetUsage,
    OpenExploration,
    Reserve,
    Unreserve,
)
from oubliette.actors.session.messages import AgentCost, SessionFinished
from oubliette.config.schema import Config
from oubliette.errors import LimitExceeded
from oubliette.kit import ActorDead, System, WhichChildren
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
        self.callers: dict[str, tuple[str, str | None]] = {}
        context = SimpleNamespace(
            config=Config(),
            clock=system.clock,
            reader=self,
            waiting=set(),
            root_callers=self.callers,
            session_registry=SimpleNamespace(session=lambda _: None),
        )
        self.trees = system.spawn(ExplorationsActor, cast("Any", context), name="explorations")

    async def live_sessions(self) -> list[Any]:
        return []

    async def run(self, _query: Any) -> tuple[list[Any], None]:
        return [], None

    async def ask(self, message: Any) -> Any:
        """Ask the tree, as projects do."""

        async def once() -> Any:
            opened = OpenExploration(exploration_id="tree", limits=LIMITS)
            return await self.system.ref(await self.trees.ask(opened)).ask(message)

        asked = asyncio.ensure_future(ask_with_retry(once))
        await asyncio.wait({asked}, timeout=5)
        return await asked

    def tell(self, message: Any) -> None:
        tree = self.system.lookup("explorations/tree")
        assert tree is not None
        tree.tell(message)

    async def there(self) -> bool:
        """Whether the tree has an actor, once all that it was told is handled."""
        tree = self.system.lookup("explorations/tree")
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
    scene.callers["root"] = ("p", "c")
    await scene.ask(reserve("root"))
    await scene.ask(reserve("child", 1))
    scene.tell(SessionFinished(session_id="root"))
    assert await scene.there()
    assert scene.callers  # the child may ask for it
    scene.tell(SessionFinished(session_id="child"))
    await scene.forgotten()
    assert not scene.callers


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
