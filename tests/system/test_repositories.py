"""Projects that are cloned from a repository, and the agents that work on it."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette import FetchedBranches, InvalidParameter
from tests.callers import ToolFailed
from tests.git_hosts import GitHost, checkout, commit, git
from tests.lfs_hosts import ATTRIBUTES, LfsHost
from tests.system.python_api import DOORS, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {"repositories.protocols": "http,https"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkout(tmp_path / "source", {"shop.py": "price = 1\n"})


@pytest.fixture
def host(tmp_path: Path, source: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", source)
        yield started


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def test_an_agent_works_on_a_clone_on_its_own_branch(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    assert project["repository"]["state"] == "ready"
    assert project["repository"]["branch"] == "main"
    assert project["remote_url"] == host.url("shop")
    agent = await site.spawn(
        caller,
        "exec cat shop.py && git branch --show-current && git remote get-url origin"
        " && git log --format=%s origin/main && echo 'price = 2' > shop.py"
        " && git commit -qam 'raise it' && git status --short",
        project_id=project["id"],
    )
    outcome = await agent.outcome()
    assert outcome["exit_code"] == 0, outcome
    lines = outcome["stdout"].splitlines()
    assert lines == ["price = 1", "oubliette/default", host.url("shop"), "the first one"]


@pytest.mark.requires("git-lfs")
async def test_agents_have_the_content_of_files_that_git_lfs_keeps(site, caller, tmp_path) -> None:
    (tmp_path / "lfs").mkdir()
    with LfsHost(tmp_path / "lfs") as lfs:
        files = {".gitattributes": ATTRIBUTES, "art.bin": lfs.keep(b"painted")}
        lfs.add("shop", checkout(tmp_path / "art", files))
        project = await site.new_project(repository={"url": lfs.url("shop"), "lfs": True})
        shown = project["repository"]
        assert (shown["lfs"], shown["lfs_content"]) == (True, True)
        for create in (False, True):
            agent = await site.spawn(
                caller,
                "exec cat art.bin && git status --short",
                project_id=project["id"],
                create_workspace=create,
            )
            assert (await agent.outcome())["stdout"] == "painted"


async def test_each_workspace_is_a_clone_of_its_own(site, caller, host) -> None:
    """An agent that destroys its repository hurts no other."""
    project = await site.new_project(repository={"url": host.url("shop")})
    spoiler = await site.spawn(
        caller, "exec chmod -R u+w .git && rm -rf .git && echo gone", project_id=project["id"]
    )
    assert (await spoiler.outcome())["exit_code"] == 0
    agents = [
        await site.spawn(
            caller,
            "exec git fsck --strict && git branch --show-current",
            project_id=project["id"],
            create_workspace=True,
        )
        for _ in range(2)
    ]
    for agent in agents:
        outcome = await agent.outcome()
        assert outcome["exit_code"] == 0, outcome
        workspace = (await agent.get())["workspace_id"]
        assert outcome["stdout"].splitlines()[-1] == f"oubliette/{workspace}"


@pytest.mark.whole
async def test_many_workspaces_are_made_at_the_same_time(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agents = await asyncio.gather(
        *(
            site.spawn(
                caller,
                "exec cat shop.py",
                project_id=project["id"],
                create_workspace=True,
            )
            for _ in range(5)
        )
    )
    for agent in agents:
        assert (await agent.outcome())["stdout"] == "price = 1\n"


async def test_what_is_new_is_fetched_and_new_workspaces_begin_there(site, caller, host, source):
    project = await site.new_project(repository={"url": host.url("shop")})
    made = commit(source, {"shop.py": "price = 3\n"}, "dearer")
    git(source, "branch", "fix/test")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main", "fix/test")
    news = await caller.call("repository_fetch", project_id=project["id"])
    assert news["updated"] == ["fix/test", "main"]
    found = await caller.call("repository_branches", project_id=project["id"])
    assert {each["name"]: each["default"] for each in found["branches"]} == {
        "main": True,
        "fix/test": False,
    }
    assert found["branches"][0]["commit"] == made
    agent = await site.spawn(
        caller, "exec cat shop.py", project_id=project["id"], create_workspace=True
    )
    assert (await agent.outcome())["stdout"] == "price = 3\n"


@pytest.mark.parametrize(
    ("repository", "words"),
    [
        ({"url": "{none}"}, "there is no repository at"),
        pytest.param(
            {"url": "{shop}", "branch": "nope"}, "has no branch nope", marks=pytest.mark.whole
        ),
        pytest.param(
            {"url": "http://127.0.0.1:1/x.git"}, "does not answer", marks=pytest.mark.whole
        ),
        pytest.param(
            {"url": "ssh://git@host/x"},
            "this server does not clone over ssh",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            {"url": "ext::sh -c id"}, "is no URL of a repository", marks=pytest.mark.whole
        ),
        pytest.param(
            {"url": "http://user:secret@127.0.0.1/x.git"},
            "must not contain a user name",
            marks=pytest.mark.whole,
        ),
        ({"path": "/"}, "keys may not clone"),
        pytest.param(
            {"url": "{shop}", "branch": "--upload-pack=x"},
            "is no name of a branch",
            marks=pytest.mark.whole,
        ),
        pytest.param({}, "needs a url or a path", marks=pytest.mark.whole),
    ],
)
async def test_a_clone_that_fails_leaves_no_project(site, caller, host, repository, words) -> None:
    places = {"{none}": host.url("none"), "{shop}": host.url("shop")}
    asked = {key: places.get(value, value) for key, value in repository.items()}
    before = {each["id"] for each in (await caller.call("project_list", limit=1000))["projects"]}
    with pytest.raises(ToolFailed, match=words) as failed:
        await caller.call("project_create", name=f"failing {asked}", repository=asked)
    assert "secret" not in str(failed.value)
    after = {each["id"] for each in (await caller.call("project_list", limit=1000))["projects"]}
    assert after == before


@pytest.mark.whole
async def test_the_command_line_clones_a_checkout_with_its_changes(
    site, oubliette, caller, source
) -> None:
    """And shows what is fetched later."""
    (source / "shop.py").write_text("price = 8\n")
    made = await oubliette("project", "create", "of a folder", "--repo", str(source), "--dirty")
    assert made.code == 0, made.err
    assert "Receiving objects" in made.err
    project_id = made.out.strip()
    agent = await site.spawn(
        caller, "exec cat shop.py && git status --short && git remote", project_id=project_id
    )
    assert (await agent.outcome())["stdout"].splitlines() == ["price = 8", " M shop.py"]
    commit(source, {"shop.py": "price = 9\n"}, "nine")
    fetched = await oubliette("project", "fetch", project_id)
    assert (fetched.code, fetched.out) == (0, "updated main\n"), fetched.err
    listed = await oubliette("project", "branches", project_id, "-o", "json")
    assert [each["subject"] for each in listed.json["branches"]] == ["nine"]
    shown = await oubliette("project", "branches", project_id)
    assert "main *" in shown.out


@pytest.mark.whole
async def test_the_command_line_names_what_is_wrong_with_a_repository(oubliette, tmp_path) -> None:
    no_folder = await oubliette("project", "create", "x", "--repo", str(tmp_path / "none"))
    assert no_folder.code == 2
    assert "there is no folder" in no_folder.err
    no_repository = await oubliette("project", "create", "x", "--repo", str(tmp_path))
    assert no_repository.code == 1
    assert "there is no repository at" in no_repository.err
    alone = await oubliette("project", "create", "x", "--branch", "main")
    assert alone.code == 2
    assert "belong to --repo" in alone.err


async def held(caller, host: GitHost, **arguments) -> asyncio.Task:
    """Begin a clone that the host holds up."""
    host.may_send.clear()
    task = asyncio.create_task(
        caller.call("project_create", repository={"url": host.url("shop")}, **arguments)
    )
    assert await asyncio.to_thread(host.waits.wait, 20)
    return task


async def the_project(caller, name: str) -> dict:
    found = await caller.call("project_list", name_contains=name)
    return await caller.call("project_get", project_id=found["projects"][0]["id"])


async def test_a_project_shows_that_it_is_cloned_and_begins_nothing_meanwhile(
    site, caller, host
) -> None:
    task = await held(caller, host, name="slow one")
    project = await the_project(caller, "slow one")
    assert project["repository"]["state"] == "cloning"
    assert project["repository"]["progress"]
    with pytest.raises(ToolFailed, match="still being cloned"):
        await caller.call("session_spawn", project_id=project["id"], prompt="say no")
    with pytest.raises(ToolFailed, match="already exists"):
        await caller.call("project_create", name="slow one")
    host.may_send.set()
    assert (await task)["id"] == project["id"]
    agent = await site.spawn(caller, "exec cat shop.py", project_id=project["id"])
    assert (await agent.outcome())["stdout"] == "price = 1\n"


async def test_a_request_that_is_repeated_waits_for_the_same_clone(caller, host) -> None:
    first = await held(caller, host, name="asked twice", idempotency_key="twice")
    second = asyncio.create_task(
        caller.call(
            "project_create",
            name="asked twice",
            repository={"url": host.url("shop")},
            idempotency_key="twice",
        )
    )
    with pytest.raises(ToolFailed, match="other arguments"):
        await caller.call(
            "project_create",
            name="asked otherwise",
            repository={"url": host.url("shop")},
            idempotency_key="twice",
        )
    host.may_send.set()
    assert (await first)["id"] == (await second)["id"]


async def test_a_project_can_be_deleted_while_it_is_cloned(site, caller, host) -> None:
    task = await held(caller, host, name="not wanted")
    project = await the_project(caller, "not wanted")
    folder = site.server.home_of(project["id"]) / "repositories" / project["id"]
    assert folder.is_dir()
    await caller.call("project_delete", project_id=project["id"])
    with pytest.raises(ToolFailed, match="deleted while it was cloned"):
        await task
    assert not folder.exists()


@pytest.mark.whole
@pytest.mark.parametrize("door", DOORS)
async def test_a_program_clones_and_fetches(site, host, source, door) -> None:
    repository = host.url("shop") if door == "connected" else source
    async with opened(door, site) as ob:
        project = await ob.create_project(f"cloned {door}", repository=repository, branch="main")
        assert project.info.repository is not None
        assert project.info.repository.branch == "main"
        assert (await project.run("exec cat shop.py")).text.count("price = 1") == 1
        assert (await project.fetch()) == FetchedBranches()
        made = commit(source, {"shop.py": "price = 4\n"}, "four")
        git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
        assert (await project.fetch()).updated == ("main",)
        assert [each.commit for each in await project.branches()] == [made]
        with pytest.raises(InvalidParameter, match="need one"):
            await ob.create_project("x", branch="main")
        await project.delete()


async def test_a_deleted_project_takes_its_repository_along(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    folder = site.server.home_of(project["id"]) / "repositories" / project["id"]
    assert folder.is_dir()
    await caller.call("project_delete", project_id=project["id"])
    assert not folder.exists()
