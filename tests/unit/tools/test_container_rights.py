"""A key runs nothing in a container in which an agent has a key that reaches further."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.records import Workspace
from oubliette.runtime.store.operations import PutProject, PutWorkspace
from oubliette.tools.auth import scopes

if TYPE_CHECKING:
    from oubliette.records import Project, Session
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

REFUSED = "has a key that reaches further than yours"

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "a command": ("container_exec", {"command": "env", "workspace_id": "ada's"}),
    "an agent": ("session_spawn", {"prompt": "p", "workspace_id": "ada's"}),
    "an agent in it if it is there": (
        "session_spawn",
        {"prompt": "p", "workspace_id": "ada's", "create_workspace": True},
    ),
    "an agent for its user": ("session_spawn", {"prompt": "p", "external_id": "ada"}),
    "a message in it": ("session_message", {"message": "m", "workspace_id": "ada's"}),
    "a message to a session in it": ("session_message", {"message": "m", "session_id": "own"}),
    "many agents": ("session_map", {"messages": ["m"], "workspace_id": "ada's"}),
    "one of many agents": (
        "session_map",
        {"messages": [{"message": "m", "workspace_id": "ada's"}, "m"], "create_workspace": True},
    ),
    "a port of it": ("port_open", {"session_id": "own", "port": 80}),
}
OF_ITS_OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "a workspace that it makes": ("session_spawn", {"prompt": "p", "create_workspace": True}),
    "a copy": (
        "session_spawn",
        {"prompt": "p", "workspace_id": "ada's", "workspace": "branch"},
    ),
    "a fork": ("session_fork", {"session_id": "own", "prompt": "p"}),
    "an agent for conflicts": (
        "session_merge",
        {"session_id": "own", "into": "main", "resolve": "agent"},
    ),
    "the default workspace": ("container_exec", {"command": "env"}),
    "many agents elsewhere": ("session_map", {"messages": ["m"]}),
}


class World:
    """A workspace of ada in which an agent has a key, and the attacker has a session of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def open(self, minted: str = "write", *, isolated: bool = True) -> None:
        bench = self.bench
        project = await bench.project("p")
        project = msgspec.structs.replace(project, workspace_isolation=isolated)
        workspace = Workspace(
            id=ids.new_uuid(), project_id=project.id, created_at=1.0, external_id="ada"
        )
        await bench.put(PutProject(project), PutWorkspace(workspace))
        self.project: Project = project
        self.workspace = workspace
        self.narrow = f"project:{project.id}"
        _, creator = await bench.key("admin")
        self.minted = await bench.keys.mint(creator, scopes.parse(minted.format(project.id)))
        there = {"live": True, "workspace_id": workspace.id}
        self.held: Session = await bench.session(
            project, given_key=True, minted_token_id=self.minted.token.id, **there
        )
        self.own = await bench.session(project, principal="mallory", **there)

    async def call(
        self, way: tuple[str, dict[str, Any]], api_key: str | None = None, **key: Any
    ) -> Any:
        tool, given = way
        arguments = copy.deepcopy({"project_id": self.project.id} | given)
        if api_key is not None:
            arguments["api_key"] = api_key
        values = {"ada's": self.workspace.id, "own": self.own.id}
        if "session_id" in given:
            del arguments["project_id"]
        for place in (arguments, *arguments.get("messages", ())):
            if isinstance(place, dict):
                place.update({name: values.get(str(each), each) for name, each in place.items()})
        key = {"scope": self.narrow, "principal": "mallory"} | key
        return await self.bench.call(tool, arguments, **key)


@pytest.fixture
def world(bench: Bench) -> World:
    return World(bench)


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_enters_no_container_with_a_key_that_reaches_further(
    world: World, way: str
) -> None:
    await world.open()
    refused = await world.call(WAYS[way])
    assert (refused.code, REFUSED in refused.text) == ("forbidden", True), refused.text
    assert "workspace_isolation" in refused.text
    assert not world.bench.spawns


@pytest.mark.parametrize("way", WAYS | OF_ITS_OWN)
async def test_without_isolation_all_workspaces_have_that_container(world: World, way: str) -> None:
    await world.open(isolated=False)
    refused = await world.call((WAYS | OF_ITS_OWN)[way])
    assert REFUSED in refused.text
    assert not world.bench.spawns


@pytest.mark.parametrize("way", OF_ITS_OWN)
async def test_a_workspace_of_ones_own_is_open_to_a_narrow_key(world: World, way: str) -> None:
    await world.open()
    assert REFUSED not in (await world.call(OF_ITS_OWN[way])).text


@pytest.mark.parametrize(
    ("minted", "scope", "enters"),
    [
        ("read", "project:{}", False),
        ("project:" + "proj_" + "1" * 26, "project:{}", False),
        ("admin", "write", False),
        ("project:{}", "project:{}", True),
        ("project:{}:ro", "project:{}", True),
        ("write", "write", True),
        ("write", "admin", True),
    ],
)
async def test_a_key_that_reaches_as_far_enters(
    world: World, minted: str, scope: str, enters: bool
) -> None:
    await world.open(minted)
    for way in WAYS.values():
        answer = await world.call(way, scope=scope.format(world.project.id))
        assert (REFUSED not in answer.text) == enters, answer.text


async def test_a_key_that_is_no_good_any_more_keeps_nobody_out(world: World) -> None:
    await world.open()
    await world.bench.keys.revoke(world.minted.token.id)
    assert not (await world.call(WAYS["a command"])).is_error


async def test_a_merge_that_starts_no_agent_enters_nothing(world: World) -> None:
    await world.open(isolated=False)
    merge = ("session_merge", {"session_id": "own", "into": "main"})
    assert REFUSED not in (await world.call(merge)).text


async def test_an_agent_goes_on_working_in_its_own_container(world: World) -> None:
    await world.open()
    key = {"transport": "socket", "session_id": world.own.id, "minted": True}
    assert not (await world.call(WAYS["a command"], **key)).is_error
    elsewhere = await world.bench.session(world.project, principal="mallory", live=True)
    assert (
        REFUSED in (await world.call(WAYS["a command"], **key | {"session_id": elsewhere.id})).text
    )


async def test_a_key_of_its_owners_own_is_taken_for_the_widest(world: World) -> None:
    await world.open()
    given = msgspec.structs.replace(world.held, minted_token_id=None)
    await world.bench.session(world.project, **msgspec.structs.asdict(given))
    for scope in (world.narrow, "write"):
        assert REFUSED in (await world.call(WAYS["a command"], scope=scope)).text
    assert not (await world.call(WAYS["a command"], scope="write", principal="alice")).is_error


@pytest.mark.parametrize(
    ("given", "scope", "enters"),
    [
        ("admin", "project:{}", False),
        ("admin", "write", False),
        ("write", "project:{}", False),
        ("project:{}", "project:{}", True),
        ("write", "write", True),
        ("admin", "admin", True),
    ],
)
async def test_a_key_of_its_owners_own_keeps_out_the_narrower_ones_of_the_same_owner(
    world: World, given: str, scope: str, enters: bool
) -> None:
    await world.open("project:{}")
    new = await world.bench.keys.create(
        name="own", scope=scopes.parse(given.format(world.project.id)), principal="alice"
    )
    await world.call(WAYS["an agent"], scope="admin", principal="alice", api_key=new.key)
    begun = world.bench.spawns[-1]
    held = msgspec.structs.replace(
        world.held, minted_token_id=None, given_token_id=begun.given_token_id
    )
    await world.bench.session(world.project, **msgspec.structs.asdict(held))
    narrow = {"scope": scope.format(world.project.id), "principal": "alice"}
    answer = await world.call(WAYS["a command"], **narrow)
    assert (REFUSED not in answer.text) == enters, answer.text
    await world.bench.keys.revoke(new.token.id)
    assert REFUSED not in (await world.call(WAYS["a command"], **narrow)).text


async def test_a_project_out_of_reach_is_as_if_it_were_not(world: World) -> None:
    await world.open()
    mine = await world.bench.project("mine")
    for way in WAYS.values():
        answer = await world.call(way, scope=f"project:{mine.id}")
        assert "not found" in answer.text or "there is no session" in answer.text, answer.text
