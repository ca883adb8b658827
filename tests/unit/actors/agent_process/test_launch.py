"""Start of an agent: what it is made of, and that it waits for a database that is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.actors.agent_process.launch import agent_session

if TYPE_CHECKING:
    from tests.unit.actors.fakes import World


pytestmark = pytest.mark.anyio


async def test_an_agent_starts_once_the_database_is_back(world: World) -> None:
    project = await world.project()
    session = await world.session(project)
    away = world.database_away(fails=3)
    settings = await agent_session(world.context, session, None)
    assert (settings.project_id, away.fails) == (project.id, 0)
