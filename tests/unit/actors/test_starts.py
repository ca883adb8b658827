"""Actors that start while the database is away: each of the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oubliette
from oubliette.actors.container.messages import GetContainer
from oubliette.actors.messages import GetSession
from oubliette.actors.project.supervisor import ProjectsActor
from oubliette.actors.store import outages
from oubliette.actors.tree.messages import GetUsage
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.kit import ChildSpec, Supervisor
from oubliette.records import ProjectRepository
from oubliette.runtime.repositories.access import Repositories

if TYPE_CHECKING:
    from oubliette.records import Session
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
TREE = "expl_x"


def section() -> str:
    return (
        PAGE.read_text(encoding="utf-8").partition("### Starts that fail")[2].partition("\n## ")[0]
    )


def actors_with_a_start() -> set[str]:
    found = set()
    for file in Path(oubliette.__file__).parent.rglob("*.py"):
        if "kit" in file.parts or "testing" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                getattr(part, "name", None) == "on_start" for part in node.body
            ):
                found.add(node.name)
    return found


def test_each_actor_that_does_something_at_its_start_is_in_the_table_or_needs_nothing() -> None:
    assert set(re.findall(r"`([A-Z]\w+)`", section())) >= actors_with_a_start()


def begin(world: World) -> None:
    children = [
        ChildSpec(name=name, cls=cls, args=(world.context,), known_as=name)
        for name, cls in (("trees", TreesActor), ("projects", ProjectsActor))
    ]
    world.system.spawn(Supervisor, children, max_restarts=5, within=60.0, name="root")


async def stored(world: World, **fields: str) -> Session:
    """A session that lives and waits for its next message."""
    project = await world.project()
    return await world.session(
        project, prompts=(), status="idle", exploration_id=TREE, turn_count=0, **fields
    )


@pytest.mark.parametrize("fails", [1, 30], ids=["once", "for longer than is waited"])
async def test_what_reads_at_its_start_is_there_once_the_database_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """`ProjectsActor` to `SessionActor`, and the trees: above them no actor is restarted."""
    monkeypatch.setattr(outages, "AWAY_SECONDS", 0.05)
    session = await stored(world)
    cut_off = await world.project(name="cut off", repository=ProjectRepository(url="https://x/y"))
    Repositories(world.folders.repositories, world.context.config.repositories).begin(cut_off.id)
    away = world.database_away(fails)
    begin(world)
    root = world.system.ref("root").incarnation
    find = world.context.session_registry.session
    await world.until(lambda: find(session.id) is not None, seconds=20.0)
    assert not away.fails
    found = find(session.id)
    assert found is not None
    unit = f"projects/{session.project_id}/base"
    assert await world.system.ref(f"{unit}/container").ask(GetContainer()) is None
    assert (await found.ask(GetSession())).status == "idle"
    tree = world.system.ref(f"trees/{TREE}")
    await world.until(tree.is_alive, seconds=1.0)
    assert (await tree.ask(GetUsage()))["max_agents"] == 1
    assert world.system.ref("root").incarnation == root
    cut_off = await world.reader.project(cut_off.id)
    assert cut_off is not None
    assert cut_off.deleted_at is not None


async def test_while_the_database_stays_away_those_that_start_wait_and_others_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "AWAY_SECONDS", 0.0)
    await stored(world)
    away = world.database_away(10**9, seconds=600.0)
    begin(world)
    sibling = world.record("sibling", answer={})
    root = world.system.ref("root")
    incarnation = root.incarnation
    await world.until(lambda: away.failed >= 40, seconds=100.0)
    assert (root.is_alive(), root.incarnation) == (True, incarnation)
    assert await world.system.ref("sibling").ask(GetUsage()) == {}
    assert len(sibling) == 1
