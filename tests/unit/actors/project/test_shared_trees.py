"""Which tree a session joins, and with which limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.messages import SharedTree, SpawnSession
from oubliette.actors.project.shared_trees import joined_tree
from oubliette.errors import Conflict
from oubliette.records import Limits

if TYPE_CHECKING:
    from oubliette.actors.project.shared_trees import JoinedTree
    from oubliette.records import Project
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


async def joined(world: World, project: Project, **given: Any) -> JoinedTree:
    principal = given.pop("principal", "alice")
    tree = SharedTree(id=given.pop("id", "t"), limits=Limits(**given))
    message = SpawnSession(principal=principal, prompt="p", tree=tree)
    found = await joined_tree(world.context, project, message)
    assert found is not None
    return found


async def recorded(world: World, project: Project, tree: JoinedTree) -> None:
    await world.session(
        project, exploration_id=tree.tree_id, limits=tree.limits, tree_limits=tree.given
    )


async def test_a_message_without_a_tree_joins_none(world: World) -> None:
    message = SpawnSession(principal="alice", prompt="p")
    assert await joined_tree(world.context, await world.project(), message) is None


async def test_principal_project_and_id_make_the_tree(world: World) -> None:
    project, other = await world.project(), await world.project(name="q")
    own = await joined(world, project)
    assert (await joined(world, project)).tree_id == own.tree_id
    others = [
        await joined(world, project, id="u"),
        await joined(world, project, principal="bob"),
        await joined(world, other),
    ]
    assert own.tree_id not in {each.tree_id for each in others}


async def test_the_first_session_fixes_the_limits(world: World) -> None:
    project = await world.project()
    first = await joined(world, project, max_agents=3)
    assert (first.limits.max_agents, first.limits.max_depth) == (3, world.config.trees.max_depth)
    await recorded(world, project, first)
    assert await joined(world, project) == first
    assert await joined(world, project, max_agents=3) == first
    with pytest.raises(Conflict, match=r"'t' began with other limits.*: max_depth, max_agents"):
        await joined(world, project, max_agents=4, max_depth=1)


async def test_limits_cannot_be_given_to_a_tree_that_began_without(world: World) -> None:
    project = await world.project()
    await recorded(world, project, await joined(world, project))
    with pytest.raises(Conflict, match="max_cost_usd"):
        await joined(world, project, max_cost_usd=1.0)
