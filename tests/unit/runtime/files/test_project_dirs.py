"""Folders of projects and workspaces: views that nothing planted by an agent can turn."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
import structlog

from oubliette.errors import RuntimeFailure
from oubliette.records import Project
from oubliette.runtime.files.project_dirs import Folders

PROJECT = Project(
    id="proj_x", name="x", created_at=1.0, default_workspace_id="ws", uid=os.geteuid()
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "home")
    made.prepare()
    made.create_project(PROJECT)
    made.create_workspace(PROJECT, "ws")
    return made


def test_a_project_has_the_layout_of_the_seed(folders: Folders) -> None:
    project = folders.project("proj_x")
    assert json.loads((project / "metadata.json").read_text())["name"] == "x"
    assert json.loads((project / "config.json").read_text()) == {"mcpServers": {}}
    assert (project / "workspaces" / "ws" / ".rlm-context").is_dir()
    assert folders.home.stat().st_mode & 0o777 == 0o700


def test_the_context_of_the_default_workspace_is_found_in_the_project(folders: Folders) -> None:
    link = folders.project("proj_x") / ".rlm-context"
    assert link.readlink() == Path("workspaces/ws/.rlm-context")
    assert link.is_dir()


def test_what_an_agent_has_put_in_place_of_the_context_is_left_alone(
    folders: Folders, tmp_path: Path
) -> None:
    link = folders.project("proj_x") / ".rlm-context"
    for planted in (tmp_path / "outside", Path("/etc"), link.parent / "metadata.json"):
        link.unlink()
        link.symlink_to(planted)
        folders.create_project(PROJECT)
        assert link.readlink() == planted
    assert not (tmp_path / "outside").exists()
    link.unlink()
    link.mkdir()
    (link / "kept").write_text("work")
    folders.create_project(PROJECT)
    assert (link / "kept").read_text() == "work"


def test_a_workspace_in_a_container_of_its_own_has_a_root_with_its_context(
    folders: Folders,
) -> None:
    project = msgspec.structs.replace(PROJECT, id="proj_y", workspace_isolation=True)
    folders.create_project(project)
    for name in ("ws", "other"):
        folders.create_workspace(project, name)
        folders.create_workspace(project, name)
        root = folders.workspace_root("proj_y", name)
        assert (root / ".rlm-context").readlink() == Path(f"workspaces/{name}/.rlm-context")
        assert [entry.name for entry in (root / "workspaces").iterdir()] == [name]
    folders.remove_workspace("proj_y", "other")
    assert not folders.workspace_root("proj_y", "other").exists()
    folders.remove_project("proj_y")
    assert list(folders.roots.iterdir()) == []


def test_making_it_again_changes_nothing_and_writes_the_views_anew(folders: Folders) -> None:
    (folders.project("proj_x") / "metadata.json").write_text("what an agent edits here")
    (folders.workspace("proj_x", "ws") / "kept").write_text("work")
    folders.create_project(PROJECT)
    folders.create_workspace(PROJECT, "ws")
    assert json.loads((folders.project("proj_x") / "metadata.json").read_text())["id"] == "proj_x"
    assert (folders.workspace("proj_x", "ws") / "kept").read_text() == "work"


def test_a_link_in_place_of_the_workspaces_is_not_followed(
    folders: Folders, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "ws").mkdir(parents=True)
    workspaces = folders.project("proj_x") / "workspaces"
    workspaces.rename(workspaces.with_name("moved"))
    workspaces.symlink_to(outside)
    with pytest.raises(RuntimeFailure, match="workspaces"):
        folders.create_workspace(PROJECT, "other")
    folders.remove_workspace("proj_x", "ws")  # it is not there, so nothing is left to do
    assert [each.name for each in outside.iterdir()] == ["ws"]
    assert workspaces.is_symlink()


def test_a_link_in_place_of_a_view_is_replaced_and_its_target_untouched(
    folders: Folders, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    view = folders.project("proj_x") / "metadata.json"
    view.unlink()
    view.symlink_to(target)
    folders.create_project(PROJECT)
    assert target.read_text() == "mine"
    assert not view.is_symlink()


@pytest.mark.parametrize("view", [".factory", "opencode.json", ".factory/mcp.json"])
def test_a_view_that_cannot_be_written_is_named_with_the_remedy_and_harms_nothing(
    folders: Folders, view: str
) -> None:
    place = folders.project("proj_x") / view
    place.rename(place.with_name("was"))
    if view == ".factory":
        place.write_text("x")
    else:
        (place / "in").mkdir(parents=True)
    (folders.project("proj_x") / "config.json").unlink()
    with structlog.testing.capture_logs() as logged:
        folders.create_project(PROJECT)
    assert (folders.project("proj_x") / "config.json").is_file()
    assert folders.problem(PROJECT, ["ws"]) is None
    assert {each["file"] for each in logged if each["file"].startswith(view)}
    assert "remove it" in logged[0]["remedy"]


@pytest.mark.parametrize("top", ["projects", "homes", "config/projects", "roots"])
def test_a_file_in_the_place_of_a_folder_is_a_problem_that_is_told_before_and_after_a_use(
    folders: Folders, top: str
) -> None:
    """Several folders of a project have its id for a name: all but the first are told in full."""
    isolated = msgspec.structs.replace(PROJECT, workspace_isolation=True)
    folders.create_workspace(isolated, "ws")
    assert folders.problem(isolated, ["ws"]) is None
    place = folders.home / top / "proj_x"
    place.rename(place.with_name("was"))
    place.write_text("x")
    shown = "'proj_x'" if top == "projects" else place
    told = f"the folder {shown} cannot be used: Not a directory"
    assert folders.problem(isolated, ["ws"]) == told
    with pytest.raises(RuntimeFailure, match=re.escape(told)):
        folders.create_project(isolated)
        folders.create_workspace(isolated, "ws")
    place.unlink()
    assert folders.problem(isolated, ["ws"]) is None


def test_removing_a_workspace_removes_links_in_it_and_not_what_they_point_at(
    folders: Folders, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    workspace = folders.workspace("proj_x", "ws")
    (workspace / "link").symlink_to(precious)
    (workspace / "line\nbreak").write_text("a name with a newline")
    folders.remove_workspace("proj_x", "ws")
    assert not workspace.exists()
    assert (precious / "file").read_text() == "stays"
    folders.remove_workspace("proj_x", "ws")  # twice is no fault


def test_files_of_a_home_are_written_below_it_for_its_owner_only(folders: Folders) -> None:
    folders.create_session_home(PROJECT, "gogol_x", {".config/agent.json": (b"{}", 0o600)})
    home = folders.session_homes("proj_x") / "gogol_x"
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / ".config" / "agent.json").stat().st_mode & 0o777 == 0o600
    folders.remove_session("proj_x", "gogol_x")
    assert not home.exists()


def test_a_new_workspace_becomes_a_git_repository_with_its_remote(folders: Folders) -> None:
    folders.init_git(PROJECT, "ws", "https://example.org/it.git")
    config = (folders.workspace("proj_x", "ws") / ".git" / "config").read_text()
    assert "https://example.org/it.git" in config


def test_what_an_agent_told_git_of_itself_is_left_to_it(folders: Folders, tmp_path: Path) -> None:
    file = folders.session_homes("proj_x") / "gogol_x" / ".gitconfig"
    folders.create_session_home(PROJECT, "gogol_x", gitconfig=b"[user]")
    assert file.read_bytes() == b"[user]"
    file.write_bytes(b"[user]\n\tname = Ada")
    folders.create_session_home(PROJECT, "gogol_x", gitconfig=b"[user]")
    assert file.read_bytes() == b"[user]\n\tname = Ada"
    file.unlink()
    file.symlink_to(tmp_path / "planted")
    folders.create_session_home(PROJECT, "gogol_x", gitconfig=b"[user]")
    assert not (tmp_path / "planted").exists()


@pytest.mark.requires("root")
def test_a_workspace_that_is_another_users_gets_its_remote_too(tmp_path: Path) -> None:
    """A server of root gives workspaces to the agents' users, and git trusts no folder of theirs."""
    project = msgspec.structs.replace(PROJECT, uid=23456)
    folders = Folders(tmp_path / "home")
    folders.prepare()
    folders.create_project(project)
    folders.create_workspace(project, "ws")
    folders.init_git(project, "ws", "https://example.org/it.git")
    git = folders.workspace("proj_x", "ws") / ".git"
    assert "https://example.org/it.git" in (git / "config").read_text()
    assert {path.lstat().st_uid for path in (git, *git.rglob("*"))} == {23456}


def test_a_remote_that_looks_like_an_option_is_only_a_remote(folders: Folders) -> None:
    folders.init_git(PROJECT, "ws", "--upload-pack=touch /tmp/never")
    config = (folders.workspace("proj_x", "ws") / ".git" / "config").read_text()
    assert "--upload-pack=touch /tmp/never" in config


def test_a_project_is_removed_with_the_homes_of_its_sessions(folders: Folders) -> None:
    folders.create_session_home(PROJECT, "gogol_x")
    folders.remove_project("proj_x")
    assert list(folders.projects.iterdir()) == []
    assert list(folders.homes.iterdir()) == []
