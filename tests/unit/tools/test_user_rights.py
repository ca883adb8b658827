"""Work in the workspace of a user is for keys that may act for that user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.config.container_options import ContainerOverrides
from oubliette.config.schema import CredentialConfig
from oubliette.records import Workspace
from oubliette.runtime.store.operations import PutWorkspace

if TYPE_CHECKING:
    from oubliette.records import Project
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

TRACKER = CredentialConfig(value="env:TRACKER", projects=("*",), users=("ada",))


async def world(bench: Bench) -> tuple[Project, dict[str, Any]]:
    """A project with a workspace of ada, and sessions in it and beside it."""
    config = msgspec.structs.replace(bench.services.config, credentials={"tracker": TRACKER})
    bench.services.config = config
    project = await bench.project("p")
    workspace = Workspace(
        id=ids.new_uuid(), project_id=project.id, created_at=bench.clock.time(), external_id="ada"
    )
    await bench.put(PutWorkspace(workspace))
    session = await bench.session(project, live=True, workspace_id=workspace.id)
    return project, {"workspace_id": workspace.id, "session_id": session.id}


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "a workspace that it makes": ("session_spawn", {"prompt": "p", "external_id": "ada"}),
    "the workspace by its id": ("session_spawn", {"prompt": "p", "workspace_id": "ada's"}),
    "a copy of it": (
        "session_spawn",
        {"prompt": "p", "workspace": "branch", "workspace_id": "ada's"},
    ),
    "a message in it": ("session_message", {"message": "m", "external_id": "ada"}),
    "a message to a session": ("session_message", {"session_id": "ada's", "project_id": None}),
    "many sessions": ("session_map", {"messages": ["m"], "external_id": "ada"}),
    "one of many sessions": (
        "session_map",
        {"messages": ["m", {"message": "m", "workspace_id": "ada's"}]},
    ),
    "a fork": ("session_fork", {"session_id": "ada's", "prompt": "p", "project_id": None}),
    "a command": ("container_exec", {"command": "env", "workspace_id": "ada's"}),
    "a file": ("file_write", {"path": "x", "text": "x", "workspace_id": "ada's"}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_of_a_project_does_not_act_for_a_user_by_saying_so(
    bench: Bench, way: str
) -> None:
    project, theirs = await world(bench)
    tool, given = WAYS[way]
    arguments = {"project_id": project.id, "message": "m"} | given
    if tool != "session_message":
        arguments.pop("message")
    arguments = {
        name: theirs.get(name) if value == "ada's" else value
        for name, value in arguments.items()
        if value is not None
    }
    for part in arguments.get("messages", ()):
        if isinstance(part, dict):
            part["workspace_id"] = theirs["workspace_id"]
    refused = await bench.call(tool, arguments, scope=f"project:{project.id}")
    assert refused.code == "forbidden", refused.text
    assert "may not act for the user" in refused.text
    assert not bench.spawns
    # Nor an agent's key for all projects, which an operator has had minted.
    minted = await bench.call(tool, arguments, scope="write", minted=True)
    assert "may not act for the user" in minted.text
    for key in ({"scope": f"project:{project.id}", "users": ("ada",)}, {"scope": "write"}):
        passed = await bench.call(tool, arguments, **key)
        assert "may not act for the user" not in passed.text


async def test_an_agent_of_a_user_goes_on_working_for_that_user(bench: Bench) -> None:
    project, theirs = await world(bench)
    arguments = {"project_id": project.id, "prompt": "p", "workspace_id": theirs["workspace_id"]}
    key = {"scope": f"project:{project.id}", "minted": True, "transport": "socket"}
    own = await bench.call("session_spawn", arguments, session_id=theirs["session_id"], **key)
    assert not own.is_error, own.text
    beside = await bench.session(project, live=True)
    refused = await bench.call("session_spawn", arguments, session_id=beside.id, **key)
    assert refused.code == "forbidden"


async def test_other_users_need_no_right(bench: Bench) -> None:
    project, _ = await world(bench)
    arguments = {"project_id": project.id, "prompt": "p", "external_id": "grace"}
    made = await bench.call("session_spawn", arguments, scope=f"project:{project.id}")
    assert not made.is_error, made.text


async def test_a_workspace_out_of_reach_is_as_if_it_were_not(bench: Bench) -> None:
    _, theirs = await world(bench)
    mine = await bench.project("mine")
    arguments = {"project_id": mine.id, "prompt": "p", "workspace_id": theirs["workspace_id"]}
    result = await bench.call("session_spawn", arguments, scope=f"project:{mine.id}")
    assert "may not act" not in result.text


async def test_a_key_is_made_for_users(bench: Bench) -> None:
    project = await bench.project("p")
    made = await bench.do(
        "token_create", name="ada's", scope=f"project:{project.id}", users=["ada"]
    )
    assert made["users"] == ["ada"]
    assert bench.keys.verify(made["token"], "http").users == ("ada",)
    await bench.keys.refresh()
    assert (await bench.do("token_list"))["tokens"][-1]["users"] == ["ada"]


async def test_an_agent_takes_no_name_that_the_configuration_gives_something(bench: Bench) -> None:
    tracker = msgspec.structs.replace(TRACKER, projects=("shop",))
    bench.services.config = msgspec.structs.replace(
        bench.services.config,
        credentials={"tracker": tracker},
        project_containers={"office": ContainerOverrides(network="host")},
    )
    for name in ("shop", "office"):
        refused = await bench.call("project_create", {"name": name}, scope="write", minted=True)
        assert "named in the server's configuration" in refused.text
        assert not (await bench.call("project_create", {"name": name}, scope="write")).is_error
