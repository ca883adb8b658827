"""What agents have changed is merged into branches of the project's repository."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import oubliette as ob
from tests.callers import ToolFailed
from tests.git_hosts import GitHost, checkout, commit, git
from tests.selection import core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "agents.default": "scripted",
    "repositories.protocols": "http,https",
}
FILES = {"shop.py": "price = 1\n", "lines": "1\n2\n3\n4\n5\n", ".gitignore": "*.log\n"}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", checkout(tmp_path / "source", FILES))
        yield started


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


def repository(site, project) -> Path:
    return site.server.home_of(project["id"]) / "repositories" / project["id"] / "repository.git"


async def worked(site, caller, project, *commands: str):
    """A session in a workspace of its own, with a turn per command."""
    agent = None
    for command in commands:
        if agent is None:
            agent = await site.spawn(
                caller, f"exec {command}", project_id=project["id"], create_workspace=True
            )
        else:
            await agent.say(f"exec {command}")
        await agent.turn()
    assert agent is not None
    return agent


async def test_two_sessions_are_merged_and_one_that_conflicts_is_not(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    bare = repository(site, project)
    one = await worked(site, caller, project, "sed -i s/1/one/ lines && echo x > a.log")
    two = await worked(site, caller, project, "sed -i s/5/five/ lines", "echo 2 > two")
    clash = await worked(site, caller, project, "sed -i s/1/eins/ lines")
    main = git(bare, "rev-parse", "refs/remotes/origin/main").strip()
    first = await caller.call("session_merge", session_id=one.session_id, into="fix/test")
    assert (first["merged"], first["created"], first["fast_forward"]) == (True, True, True)
    assert (first["base"], first["before"], first["snapshot"]) == (main, None, "1")
    assert (first["ignored"], first["ignored_count"]) == (["a.log"], 1)
    second = await caller.call("session_merge", session_id=two.session_id, into="fix/test")
    assert (second["before"], second["commits"], second["files"]) == (first["commit"], 3, 2)
    assert git(bare, "show", "fix/test:lines") == "one\n2\n3\n4\nfive\n"
    subjects = git(bare, "log", "--no-merges", "--format=%s", f"{main}..fix/test").splitlines()
    assert sorted(subjects) == sorted(
        [
            "exec sed -i s/1/one/ lines && echo x > a.log",
            "exec sed -i s/5/five/ lines",
            "exec echo 2 > two",
        ]
    )
    refused = await caller.call("session_merge", session_id=clash.session_id, into="fix/test")
    assert (refused["merged"], refused["commit"], refused["conflicts_count"]) == (False, None, 1)
    (conflict,) = refused["conflicts"]
    assert (conflict["path"], conflict["kind"]) == ("lines", "contents")
    assert [each["stage"] for each in conflict["stages"]] == ["base", "ours", "theirs"]
    assert git(bare, "rev-parse", "fix/test").strip() == second["commit"]
    again = await caller.call("session_merge", session_id=two.session_id, into="fix/test")
    assert (again["merged"], again["up_to_date"], again["commit"]) == (False, True, None)


@pytest.mark.whole
async def test_a_squash_a_rebase_and_a_turn_alone(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    bare = repository(site, project)
    agent = await worked(site, caller, project, "echo 1 > one", "echo 2 > two")
    other = await worked(site, caller, project, "echo 3 > three")
    for branch in ("squashed", "rebased"):
        await caller.call("session_merge", session_id=other.session_id, into=branch)
    tried = await caller.call(
        "session_merge", session_id=agent.session_id, into="never", dry_run=True
    )
    assert (tried["merged"], tried["created"], tried["commits"]) == (True, True, 2)
    assert "never" not in git(bare, "for-each-ref")
    squashed = await caller.call(
        "session_merge",
        session_id=agent.session_id,
        into="squashed",
        strategy="squash",
        message="Both at once",
    )
    assert (squashed["commits"], squashed["files"]) == (1, 2)
    told = git(bare, "log", "-1", "--format=%B", "squashed")
    assert told.startswith(
        f"Both at once\n\nOubliette-Session: {agent.session_id}\nOubliette-Turn: 2\n"
    )
    rebased = await caller.call(
        "session_merge", session_id=agent.session_id, into="rebased", strategy="rebase", turn=1
    )
    assert (rebased["commits"], rebased["snapshot"]) == (1, "1")
    assert git(bare, "ls-tree", "--name-only", "rebased").split()[-2:] == ["shop.py", "three"]
    assert "one" in git(bare, "ls-tree", "--name-only", "rebased").split()
    with pytest.raises(ToolFailed, match="a rebase makes a commit per turn"):
        await caller.call(
            "session_merge",
            session_id=agent.session_id,
            into="rebased",
            strategy="rebase",
            message="no",
        )


@pytest.mark.whole
async def test_an_agent_resolves_conflicts_in_a_workspace_of_the_branch(
    site, caller, host, oubliette
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    bare = repository(site, project)
    one = await worked(site, caller, project, "sed -i s/1/one/ lines")
    two = await worked(site, caller, project, "sed -i s/1/eins/ lines && echo 2 > two")
    await caller.call("session_merge", session_id=one.session_id, into="work")
    before = git(bare, "rev-parse", "work")
    begun = await caller.call(
        "session_merge", session_id=two.session_id, into="work", resolve="agent"
    )
    assert (begun["merged"], begun["conflicts_count"]) == (False, 1)
    assert git(bare, "rev-parse", "work") == before
    resolver = site.agent(begun["resolving_session_id"], caller)
    await resolver.turn()
    shown = await resolver.get()
    assert "* lines (contents)" in shown["last_prompt"]
    with pytest.raises(ToolFailed, match="still have markers of conflicts: lines"):
        await caller.call("session_merge", session_id=resolver.session_id, into="work")
    await resolver.say("exec grep -c '<<<<<<<' lines; git status --short; git diff --stat | cat")
    said = (await resolver.turn())[0]
    assert "1" in said
    await resolver.say("exec printf 'one or eins\\n2\\n3\\n4\\n5\\n' > lines")
    await resolver.turn()
    done = await caller.call("session_merge", session_id=resolver.session_id, into="work")
    assert (done["merged"], done["files"], done["fast_forward"]) == (True, 2, True)
    assert git(bare, "show", "work:lines").startswith("one or eins\n")
    assert git(bare, "show", "work:two") == "2\n"
    again = await caller.call("session_merge", session_id=two.session_id, into="work")
    assert again["up_to_date"], "its changes came with the session that resolved its conflicts"
    assert "<<<<<<<" not in git(bare, "log", "-p", f"{before.strip()}..work")
    with pytest.raises(ToolFailed, match="resolve: conflicts of a rebase"):
        await caller.call(
            "session_merge",
            session_id=two.session_id,
            into="work",
            resolve="agent",
            strategy="rebase",
        )
    three = await worked(site, caller, project, "sed -i s/1/uno/ lines")
    refused = await oubliette("merge", three.session_id, "--into", "work", "--resolve")
    assert refused.code == 1
    assert refused.err.splitlines()[-1].endswith(" --into work")


NAMES = ["refs/oubliette/x", "a..b", "-x", "HEAD", "a b", "x.lock"]


@pytest.mark.parametrize("name", core({"refs/oubliette/x"}, NAMES))
async def test_what_is_no_name_of_a_branch_is_refused(site, caller, host, name) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await worked(site, caller, project, "echo 1 > one")
    with pytest.raises(ToolFailed, match="into: "):
        await caller.call("session_merge", session_id=agent.session_id, into=name)


async def test_a_project_without_a_repository_has_no_branches(site, caller) -> None:
    project = await site.new_project()
    agent = await worked(site, caller, project, "echo 1 > one")
    with pytest.raises(ToolFailed, match="was not cloned from a repository"):
        await caller.call("session_merge", session_id=agent.session_id, into="work")


@pytest.mark.whole
async def test_keys_that_only_read_cannot_merge(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await worked(site, caller, project, "echo 1 > one")
    async with site.caller("http-auto", token=site.server.token("admin:ro")) as reader:
        with pytest.raises(ToolFailed, match="needs the scope write"):
            await reader.call("session_merge", session_id=agent.session_id, into="work")


@pytest.mark.whole
async def test_an_agents_own_git_counts_for_nothing(site, caller, host) -> None:
    """It commits, plants a hook, and moves its branch: what is merged are the files."""
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await worked(
        site,
        caller,
        project,
        "echo '#!/bin/sh' > .git/hooks/post-merge && echo 2 > two && git add two"
        " && git -c user.name=a -c user.email=a@b commit -qm mine && git update-ref -d"
        " refs/remotes/origin/main && git checkout -q --orphan other && rm -rf .git/objects",
    )
    done = await caller.call("session_merge", session_id=agent.session_id, into="work")
    assert (done["merged"], done["files"], done["commits"]) == (True, 1, 1)
    git(repository(site, project), "fsck", "--strict")


@pytest.mark.whole
async def test_the_command_merges_and_shows_conflicts(site, caller, host, oubliette) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    one = await worked(site, caller, project, "sed -i s/1/one/ lines")
    clash = await worked(site, caller, project, "sed -i s/1/eins/ lines")
    tried = await oubliette("merge", one.session_id, "--into", "work", "--dry-run")
    assert (tried.code, tried.out) == (0, "")
    assert tried.err == "work (a new branch) would get 1 commit, 1 file, +1 -1 lines.\n"
    done = await oubliette("merge", one.session_id[-10:], "--into", "work", "--squash", "-m", "One")
    assert done.code == 0, done.err
    bare = repository(site, project)
    assert git(bare, "rev-parse", "work") == done.out
    assert git(bare, "log", "-1", "--format=%s", "work") == "One\n"
    if bare.is_relative_to(site.server.home):  # and not the home of another node
        assert f"take it   git fetch {bare} work\n" in done.err
    assert f"push it   oubliette push {one.session_id} origin work\n" in done.err
    refused = await oubliette("merge", clash.session_id, "--into", "work")
    assert refused.code == 1
    lines = refused.out.splitlines()
    assert lines[0] == "contents\tlines"
    assert [line.split("\t")[1] for line in lines[1:]] == ["before", "branch", "session"]
    assert refused.err == "1 path conflicts with the session; work is as it was.\n"
    as_json = await oubliette("merge", clash.session_id, "--into", "work", "-o", "json")
    assert as_json.code == 1
    assert json.loads(as_json.out)["conflicts"][0]["path"] == "lines"
    both = await oubliette("merge", one.session_id, "--into", "work", "--squash", "--rebase")
    assert both.code == 2
    nothing = await oubliette("merge", one.session_id, "--into", "work")
    assert nothing.err == "Nothing to merge: work has all that the session has changed.\n"


@pytest.mark.whole
async def test_a_program_merges(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await worked(site, caller, project, "echo 1 > one")
    async with ob.connect(site.server.url, token=site.server.token("write")) as system:
        session = await system.session(agent.session_id)
        tried = await session.merge("work", dry_run=True)
        assert (tried.merged, tried.files, tried.dry_run) == (True, 1, True)
        done = await session.merge("work", strategy="squash", message="One")
        assert (done.merged, done.created, done.snapshot) == (True, True, "1")
        with pytest.raises(ob.NotFound, match="no snapshot"):
            await session.merge("work", turn=7)


async def test_a_branch_is_pushed_where_the_project_consents(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    assert project["repository"]["push"] is False
    there = host.receiving("shop")
    agent = await worked(site, caller, project, "echo 1 > one")
    with pytest.raises(ToolFailed, match="does not consent to pushes"):
        await caller.call("session_push", session_id=agent.session_id, branch="fix/test")
    assert "fix/test" not in git(there, "branch")
    changed = await caller.call("project_update", project_id=project["id"], allow_push=True)
    assert changed["repository"]["push"] is True
    done = await caller.call("session_push", session_id=agent.session_id, branch="fix/test")
    assert (done["pushed"], done["merged"], done["created"]) == (True, True, True)
    assert git(there, "rev-parse", "fix/test").strip() == done["commit"]
    assert git(there, "ls-tree", "--name-only", "fix/test").split()[-2:] == ["one", "shop.py"]
    again = await caller.call("session_push", session_id=agent.session_id, branch="fix/test")
    assert (again["pushed"], again["up_to_date"], again["merged"]) == (False, True, False)
    await caller.call("project_update", project_id=project["id"], allow_push=False)
    with pytest.raises(ToolFailed, match="does not consent to pushes"):
        await caller.call("session_push", session_id=agent.session_id, branch="fix/test")


@pytest.mark.whole
async def test_what_others_have_pushed_is_never_replaced(site, caller, host, tmp_path) -> None:
    project = await site.new_project(repository={"url": host.url("shop"), "push": True})
    there = host.receiving("shop")
    agent = await worked(site, caller, project, "echo 1 > one")
    await caller.call("session_merge", session_id=agent.session_id, into="main")
    theirs = commit(tmp_path / "source", {"theirs": "1\n"}, "theirs")
    git(tmp_path / "source", "push", "--quiet", str(there), "main")
    with pytest.raises(ToolFailed, match="has got other commits at http.* since it was fetched"):
        await caller.call("session_push", session_id=agent.session_id, branch="main")
    assert git(there, "rev-parse", "main").strip() == theirs
    await caller.call("repository_fetch", project_id=project["id"])
    with pytest.raises(ToolFailed, match="has commits that main does not contain"):
        await caller.call("session_push", session_id=agent.session_id, branch="main")
    merged = await caller.call("session_merge", session_id=agent.session_id, into="main")
    assert merged["merged"]
    done = await caller.call("session_push", session_id=agent.session_id, branch="main")
    assert (done["pushed"], done["created"], done["before"]) == (True, False, theirs)
    assert {"one", "theirs"} <= set(git(there, "ls-tree", "--name-only", "main").split())


@pytest.mark.whole
async def test_a_host_that_refuses_a_push_is_a_sentence(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop"), "push": True})
    agent = await worked(site, caller, project, "echo 1 > one")
    with pytest.raises(ToolFailed, match="does not let this server push to"):
        await caller.call("session_push", session_id=agent.session_id, branch="work")
    there = host.receiving("shop")
    hook = there / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'GH006: Protected branch update failed' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(ToolFailed, match="has a rule against this change of the branch"):
        await caller.call("session_push", session_id=agent.session_id, branch="work")
    hook.unlink()
    host.password = "secret"
    with pytest.raises(ToolFailed, match="wants a login for"):
        await caller.call("session_push", session_id=agent.session_id, branch="work")
    host.password = None
    done = await caller.call("session_push", session_id=agent.session_id, branch="work", to="other")
    assert (done["to"], done["merged"]) == ("other", False), "it was merged by the first attempt"
    assert git(there, "rev-parse", "other").strip() == done["commit"]


@pytest.mark.whole
async def test_a_checkout_gets_branches_but_the_one_that_is_checked_out(
    site, caller, tmp_path, oubliette
) -> None:
    """None of its hooks is run, and its files stay as they are."""
    source = checkout(tmp_path / "source", FILES)
    for name in ("pre-receive", "post-receive", "post-update"):
        hook = source / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/planted\n")
        hook.chmod(0o755)
    git(source, "config", "core.hooksPath", str(source / ".git" / "hooks"))
    git(source, "config", "receive.denyCurrentBranch", "updateInstead")
    made = await oubliette(
        "project", "create", "mine", "--repo", str(source), "--allow-push", "-o", "json"
    )
    project = json.loads(made.out)
    agent = await worked(site, caller, project, "echo 1 > one")
    with pytest.raises(ToolFailed, match="the branch is checked out in"):
        await caller.call("session_push", session_id=agent.session_id, branch="main")
    done = await oubliette("push", agent.session_id, "origin", "fix/test")
    assert done.code == 0, done.err
    assert git(source, "rev-parse", "fix/test") == done.out
    assert f"fix/test was pushed to fix/test (a new branch) of {source}.\n" in done.err
    assert git(source, "status", "--short") == ""
    assert not (source / "one").exists()
    assert not (tmp_path / "planted").exists()
    again = await oubliette("push", agent.session_id, "--to", "fix/test")
    assert "has this commit already" in again.err
    other = await oubliette("push", agent.session_id, "--to", "other", "--branch", "fix/test")
    assert git(source, "rev-parse", "other") == other.out
    wrong = await oubliette("push", agent.session_id)
    assert wrong.code == 2
    assert (await oubliette("project", "update", "mine", "--no-allow-push")).code == 0
    refused = await oubliette("push", agent.session_id, "--to", "third")
    assert (refused.code, "does not consent" in refused.err) == (4, True)


async def test_keys_of_a_project_cannot_give_the_consent(site, caller, host) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await worked(site, caller, project, "echo 1 > one")
    token = site.server.token(f"project:{project['id']}")
    async with site.caller("http-auto", token=token) as bound:
        with pytest.raises(ToolFailed, match="not allowed for this token scope"):
            await bound.call("project_update", project_id=project["id"], allow_push=True)
        with pytest.raises(ToolFailed, match="does not consent"):
            await bound.call("session_push", session_id=agent.session_id, branch="work")


@pytest.mark.whole
async def test_a_program_pushes(site, caller, host) -> None:
    there = host.receiving("shop")
    async with ob.connect(site.server.url, token=site.server.token("write")) as system:
        project = await system.create_project("pushed", repository=host.url("shop"))
        agent = await worked(site, caller, {"id": project.id}, "echo 1 > one")
        session = await system.session(agent.session_id)
        with pytest.raises(ob.Forbidden, match="does not consent"):
            await session.push("work")
        await project.update(allow_push=True)
        assert project.info.repository is not None
        assert project.info.repository.push
        done = await session.push("work", to="theirs")
        assert (done.pushed, done.merged, done.to) == (True, True, "theirs")
        assert git(there, "rev-parse", "theirs").strip() == done.commit
