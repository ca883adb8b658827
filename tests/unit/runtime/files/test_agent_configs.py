"""The three levels on the host's side: template → project → workspace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.errors import ConfigError
from oubliette.records import Project
from oubliette.runtime.files.project_dirs import Folders

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = Project(
    id="proj_x", name="x", created_at=1.0, default_workspace_id="ws", uid=4_200_000, model="mine"
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "home")
    made.prepare()
    return made


def write(path: Path, tree: object) -> None:
    path.write_text(json.dumps(tree))


def test_a_level_is_copied_when_the_one_below_is_made(folders: Folders) -> None:
    """ "template (shipped) → projects/<id> on project_create → workspaces/<uuid> on
    workspace_create" (MCP Config Hierarchy)."""
    configs = folders.configs
    write(
        configs.template / "config.json",
        {"agent": "droid", "model": "theirs", "mcpServers": {"a": {"command": "tool"}}},
    )
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    first = configs.add_workspace(PROJECT, "ws")
    assert (first.agent, first.model) == ("droid", "mine")
    assert list(first.mcp_servers) == ["a"]

    write(configs.template / "config.json", {})
    write(configs.projects / "proj_x" / "config.json", {"model": "changed"})
    folders.create_project(PROJECT)  # at each start of the server
    folders.create_workspace(PROJECT, "ws")
    folders.create_workspace(PROJECT, "later")
    assert configs.add_workspace(PROJECT, "ws") == first
    assert configs.add_workspace(PROJECT, "later").model == "changed"

    write(configs.projects / "proj_x/workspaces/ws/config.json", {"model": "here"})
    assert configs.add_workspace(PROJECT, "ws").model == "here"
    assert configs.add_workspace(PROJECT, "later").model == "changed"


def test_nobody_else_can_read_them_and_they_go_with_what_they_are_of(folders: Folders) -> None:
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    folders.create_workspace(PROJECT, "other")
    configs = folders.configs
    assert configs.projects.parent.stat().st_mode & 0o777 == 0o700
    kept = configs.projects / "proj_x" / "workspaces"
    assert (kept / "ws" / "config.json").stat().st_mode & 0o777 == 0o600
    folders.remove_workspace("proj_x", "ws")
    assert [path.name for path in kept.iterdir()] == ["other"]
    folders.remove_project("proj_x")
    assert list(configs.projects.iterdir()) == []


def test_a_project_of_before_gets_its_file_from_the_record(folders: Folders) -> None:
    old = msgspec.structs.replace(PROJECT, mcp_servers={"s": {"command": "x"}})
    assert list(folders.configs.add_workspace(old, "ws").mcp_servers) == ["s"]


@pytest.mark.parametrize("text", ["{", "[]", '{"hooks": {}}', '{"mcpServers": {"x": 1}}'])
def test_a_file_that_cannot_be_used_is_named(folders: Folders, text: str) -> None:
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    path = folders.configs.projects / "proj_x/workspaces/ws/config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="workspaces/ws/config.json"):
        folders.configs.add_workspace(PROJECT, "ws")
    folders.create_workspace(PROJECT, "ws")  # but the project opens


def test_what_an_agent_writes_into_the_views_is_read_by_nobody(folders: Folders) -> None:
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    before = folders.configs.add_workspace(PROJECT, "ws")
    evil = {"model": "evil", "mcpServers": {"evil": {"command": "evil"}}, "mcp": {"evil": {}}}
    project, workspace = folders.project("proj_x"), folders.workspace("proj_x", "ws")
    for view in (
        project / "config.json",
        project / "opencode.json",
        project / ".factory" / "mcp.json",
        workspace / ".factory" / "mcp.json",
        workspace / "config.json",
    ):
        view.parent.mkdir(exist_ok=True)
        write(view, evil)
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    folders.create_workspace(PROJECT, "next")
    assert folders.configs.add_workspace(PROJECT, "ws") == before
    assert folders.configs.add_workspace(PROJECT, "next") == before
    assert json.loads((project / "opencode.json").read_text())["mcp"].keys() == {"oubliette"}
    # In a workspace it may be the repository's own, and is the agent's business.
    assert json.loads((workspace / ".factory/mcp.json").read_text()) == evil
