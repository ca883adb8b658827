"""What agents have committed themselves comes to branches as they have made it, out of real containers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.callers import ToolFailed
from tests.git_hosts import checkout, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "agents.default": "scripted",
    "repositories.protocols": "http,https",
}
WORK = (
    "git config user.name Grace && git config user.email grace@example.invalid"
    " && echo 2 > two && git add two && git commit -qm 'Add two' -m 'As one is not enough'"
    " && echo 3 > three"
)


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


@pytest.fixture
async def project(site, oubliette, tmp_path: Path):
    source = checkout(tmp_path / "source", {"one": "1\n", ".gitignore": "*.log\n"})
    made = await oubliette("project", "create", f"of {tmp_path.name}", "--repo", str(source))
    assert made.code == 0, made.err
    return made.out.strip()


def repository(site, project: str) -> Path:
    return site.server.home_of(project) / "repositories" / project / "repository.git"


async def test_the_commits_of_an_agent_are_merged_with_author_and_message(
    site, caller, oubliette, project
) -> None:
    agent = await site.spawn(caller, f"exec {WORK}", project_id=project)
    assert (await agent.outcome())["exit_code"] == 0
    merged = await oubliette("merge", agent.session_id, "--into", "work", "--own-commits")
    assert merged.code == 0, merged.err
    bare = repository(site, project)
    log = git(bare, "log", "--format=%an|%s|%b", "work").splitlines()
    assert f"Oubliette|What session {agent.session_id} had not committed|" in log[0]
    assert "Grace|Add two|As one is not enough" in log
    assert git(bare, "show", "work:three") == "3\n"
    listed = await caller.call("session_log", session_id=agent.session_id, commits=True)
    assert [(each["author"], each["subject"]) for each in listed["commits"]] == [
        ("Grace", "Add two")
    ]
    again = await caller.call(
        "session_merge", session_id=agent.session_id, into="work", commits="agent"
    )
    assert again["up_to_date"]


async def test_a_workspace_without_a_repository_says_what_to_do(site, caller, project) -> None:
    agent = await site.spawn(caller, "exec chmod -R u+w .git && rm -rf .git", project_id=project)
    assert (await agent.outcome())["exit_code"] == 0
    with pytest.raises(ToolFailed, match="no repository of git any more") as refused:
        await caller.call(
            "session_merge", session_id=agent.session_id, into="work", commits="agent"
        )
    assert 'commits="turns"' in str(refused.value)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("given", "field"),
    [({"strategy": "squash"}, "commits"), ({"turn": 1}, "turn"), ({"resolve": "agent"}, "resolve")],
)
async def test_what_excludes_the_commits_of_an_agent_is_refused(
    site, caller, project, given, field
) -> None:
    agent = await site.spawn(caller, "exec true", project_id=project)
    await agent.outcome()
    with pytest.raises(ToolFailed, match=f"{field}:"):
        await caller.call(
            "session_merge", session_id=agent.session_id, into="x", commits="agent", **given
        )
