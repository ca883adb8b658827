"""What an agent has changed comes out as files for git, and into a person's checkout."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oubliette as ob
from tests.callers import ToolFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "snapshots.max_file_bytes": 2_000_000,
    "agents.default": "scripted",
}
MINE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "me",
    "GIT_AUTHOR_EMAIL": "me@example.org",
    "GIT_COMMITTER_NAME": "me",
    "GIT_COMMITTER_EMAIL": "me@example.org",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder, env={**os.environ, **MINE}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def checkout(folder: Path) -> Path:
    """A checkout with what the workspace had before the session."""
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "kept").write_text("1\n2\n3\n")
    (folder / "gone").write_text("text\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    return folder


async def changed(site, caller):
    """A session that has changed, removed and added files, also binary ones."""
    project = await site.new_project()
    home = site.server.home_of(project["id"])
    folder = home / "projects" / project["id"] / "workspaces" / project["default_workspace_id"]
    (folder / "kept").write_text("1\n2\n3\n")
    (folder / "gone").write_text("text\n")
    (folder / "kept").chmod(0o666)  # the agent may be another user
    prompt = "exec printf '1\\ntwo\\n3\\n' > kept; rm gone; printf '\\0\\377' > binary; mkdir a;"
    prompt += " seq 1 100000 > a/long; ln -s kept link; printf x > a/tool; chmod +x a/tool"
    agent = await site.spawn(caller, prompt, project_id=project["id"])
    await agent.turn()
    return agent, folder


async def run_in(site, folder: Path, *words: str):
    environ = {**os.environ, **MINE, "OUBLIETTE_HOME": str(site.server.home), "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oubliette.cli.main", *words,
        cwd=folder, env={**environ, "PYTHONPATH": str(Path(ob.__file__).parents[1])},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out, err.decode()


async def test_a_patch_makes_the_checkout_equal_to_the_workspace(site, tmp_path: Path) -> None:
    mine = checkout(tmp_path / "mine")
    async with site.caller("http-auto") as caller:
        agent, folder = await changed(site, caller)
    code, _, err = await run_in(site, tmp_path, "export", agent.session_id, "fix.patch")
    assert code == 0, err
    assert (tmp_path / "fix.patch").stat().st_size > 600_000
    git(mine, "apply", str(tmp_path / "fix.patch"))
    assert (mine / "kept").read_text() == "1\ntwo\n3\n"
    for name in ("kept", "binary", "a/long", "a/tool", "link"):
        assert (mine / name).read_bytes() == (folder / name).read_bytes(), name
    assert (mine / "link").is_symlink()
    assert os.access(mine / "a/tool", os.X_OK)
    assert not (mine / "gone").exists()
    code, _, err = await run_in(site, tmp_path, "export", agent.session_id, "fix.patch")
    assert (code, "fix.patch exists already" in err) == (7, True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fix.patch", "mine"]


@pytest.mark.whole
async def test_a_bundle_has_all_snapshots_for_plain_git(site, tmp_path: Path) -> None:
    mine = checkout(tmp_path / "mine")
    async with site.caller("http-auto") as caller:
        agent, folder = await changed(site, caller)
    code, _, err = await run_in(site, tmp_path, "export", agent.session_id, "all.bundle")
    assert code == 0, err
    git(mine, "fetch", "-q", str(tmp_path / "all.bundle"), "refs/*:refs/*")
    prefix = f"refs/oubliette/{agent.session_id}"
    assert git(mine, "show", f"{prefix}/1:a/long") == (folder / "a/long").read_text()
    assert git(mine, "diff", "--stat", "HEAD", f"{prefix}/1-start") == ""


async def test_changes_are_applied_to_a_checkout_as_a_whole(site, tmp_path: Path) -> None:
    mine = checkout(tmp_path / "mine")
    (mine / "other").write_text("of mine, and in nobody's way")
    (mine / "sub").mkdir()
    async with site.caller("http-auto") as caller:
        agent, folder = await changed(site, caller)
    code, _, err = await run_in(site, mine / "sub", "apply", agent.session_id)
    assert code == 0, err
    assert (mine / "kept").read_text() == "1\ntwo\n3\n", err
    assert (mine / "binary").read_bytes() == (folder / "binary").read_bytes()
    assert git(mine, "diff", "--cached") == ""


@pytest.mark.whole
async def test_ignored_files_stay_in_the_workspace_unless_asked_for(site, tmp_path: Path) -> None:
    folder = checkout(tmp_path / "mine")
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        words = "exec echo '*.pyc' > .gitignore; echo x > a.py; echo x > a.pyc"
        agent = await site.spawn(caller, words, project_id=project["id"])
        await agent.turn()
        shown = await site.eyes.call("session_diff", session_id=agent.session_id, format="names")
    assert [each["path"] for each in shown["changes"]] == [".gitignore", "a.py"]
    assert shown["ignored_count"] == 1
    _, _, err = await run_in(site, folder, "diff", agent.session_id, "--stat")
    assert "not shown: 1 that .gitignore names (--ignored shows them)\n" in err
    code, _, err = await run_in(site, folder, "apply", agent.session_id)
    assert code == 0, err
    assert "1 that .gitignore names are not in the patch without --ignored\n" in err
    assert sorted(os.listdir(folder)) == [".git", ".gitignore", "a.py", "gone", "kept"]
    _, out, _ = await run_in(site, folder, "diff", agent.session_id, "--stat", "--ignored")
    assert b"a.pyc" in out


@pytest.mark.whole
async def test_what_does_not_fit_or_is_dirty_leaves_the_checkout_as_it_is(
    site, tmp_path: Path
) -> None:
    mine = checkout(tmp_path / "mine")
    async with site.caller("http-auto") as caller:
        agent, _ = await changed(site, caller)
    (mine / "gone").write_text("changed by me\n")
    code, _, err = await run_in(site, mine, "apply", agent.session_id)
    assert code == 1
    assert "these files have changes of your own: gone" in err
    git(mine, "commit", "-q", "-a", "-m", "mine")
    code, _, err = await run_in(site, mine, "apply", agent.session_id)
    assert code == 1
    assert "do not fit this checkout" in err
    assert git(mine, "status", "--porcelain") == ""
    code, _, err = await run_in(site, tmp_path, "apply", agent.session_id)
    assert code == 1
    assert "is in no git checkout" in err


async def test_a_file_above_the_limit_is_named_as_it_is_not_in_the_patch(
    site, tmp_path: Path
) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        prompt = "exec echo 1 > small; head -c 3000000 /dev/zero > large"
        agent = await site.spawn(caller, prompt, project_id=project["id"])
        await agent.turn()
    code, out, err = await run_in(site, tmp_path, "export", agent.session_id, "-")
    assert code == 0, err
    assert b"+++ b/small" in out
    assert "1 files are not in the patch: large: 3000000 bytes" in err


@pytest.mark.whole
async def test_a_program_writes_the_same_file(site, tmp_path: Path) -> None:
    mine = checkout(tmp_path / "mine")
    async with site.caller("http-auto") as caller:
        agent, _ = await changed(site, caller)
    async with ob.connect(site.server.url, token=site.server.token("read")) as system:
        session = await system.session(agent.session_id)
        done = await session.export(tmp_path / "fix.patch")
        assert (tmp_path / "fix.patch").stat().st_size == done.size
        with pytest.raises(FileExistsError):
            await session.export(tmp_path / "fix.patch")
        await session.export(tmp_path / "all.bundle", bundle=True)
    git(mine, "apply", "--check", str(tmp_path / "fix.patch"))
    git(mine, "bundle", "verify", "-q", str(tmp_path / "all.bundle"))


async def test_a_piece_of_a_file_that_is_gone_or_never_was_is_refused(site) -> None:
    async with site.caller("http-auto") as caller:
        agent, _ = await changed(site, caller)
        first = await site.eyes.call("session_export", session_id=agent.session_id)
        assert first["next_cursor"] is not None
        with pytest.raises(ToolFailed, match="cursor: give next_cursor"):
            await site.eyes.call(
                "session_export", session_id=agent.session_id, cursor=first["next_cursor"][:-9]
            )
        for _ in range(4):  # for which the first file makes room
            await site.eyes.call("session_export", session_id=agent.session_id)
        with pytest.raises(ToolFailed, match="is not kept any more"):
            await site.eyes.call(
                "session_export", session_id=agent.session_id, cursor=first["next_cursor"]
            )
