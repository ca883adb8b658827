"""Branches are pushed to other repositories by a real git, and refusals become sentences."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from oubliette.records import ProjectRepository
from oubliette.runtime.repositories import branch_push, git_errors
from oubliette.runtime.repositories.branch_push import BranchPush
from tests.git_hosts import commit, git
from tests.unit.runtime.repositories.conftest import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.repositories.branch_push import PushOutcome
    from tests.unit.runtime.repositories.conftest import Bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
WHERE = "https://git.example/acme/shop.git"
# As git 2.39 and three hosts write them.
SAID = [
    (
        "remote: error: GH006: Protected branch update failed for refs/heads/main.\n"
        " ! [remote rejected] main -> main (protected branch hook declined)",
        branch_push.BranchProtected,
        "git.example has a rule against this change of the branch",
    ),
    (
        "remote: GitLab: You are not allowed to push code to protected branches on this project.\n"
        " ! [remote rejected] main -> main (pre-receive hook declined)",
        branch_push.BranchProtected,
        "propose the change there",
    ),
    (
        "remote: error: GH013: Repository rule violations found\nremote: - GITHUB PUSH PROTECTION\n"
        "remote: - Push cannot contain secrets",
        branch_push.BranchProtected,
        "has found a secret in what is pushed",
    ),
    (
        "remote: error: GH008: Your push referenced at least 1 unknown Git LFS object:\n"
        " ! [remote rejected] main -> main (pre-receive hook declined)",
        git_errors.LfsMissing,
        "push from a checkout with git-lfs",
    ),
    (
        "remote: error: File big is 120.00 MB; this exceeds GitHub's file size limit of 100.00 MB",
        git_errors.RepositoryTooLarge,
        "refuses a file that is too large",
    ),
    (
        "remote: Permission to acme/shop.git denied to me.\nfatal: unable to access"
        " 'https://git.example/acme/shop.git/': The requested URL returned error: 403",
        git_errors.RepositoryDenied,
        f"does not let this server push to {WHERE}",
    ),
    (
        " ! [rejected]        abc -> main (stale info)",
        git_errors.BranchDiverged,
        "repository_fetch, merge again",
    ),
    (
        " ! [remote rejected] abc -> a/b (directory file conflict)",
        git_errors.RepositoryError,
        "exclude each other",
    ),
    (
        "fatal: could not read Username for 'https://git.example': terminal prompts disabled",
        git_errors.RepositoryDenied,
        "wants a login",
    ),
]


@pytest.mark.parametrize(("output", "kind", "words"), SAID, ids=[each[2][:40] for each in SAID])
def test_a_refusal_is_told_with_a_remedy(output: str, kind: type, words: str) -> None:
    error = branch_push.push_error(output, where=WHERE, host="git.example", doing="the push")
    assert type(error) is kind
    assert words in str(error)
    assert error.hint


async def pushed(bench: Bench, source: Path, branch: str = "work") -> PushOutcome:
    """Push `branch` of the project's repository, which is the commit after `main`."""
    access = bench.access()
    record = ProjectRepository(path=str(source), branch="main")
    bare = access.of(PROJECT, record)
    return await BranchPush(bare.folder, access.git(), await access.source(record), 60.0).push(
        branch, branch
    )


def ahead(bench: Bench) -> str:
    """Make a commit on the branch `work` of the project's repository; return it."""
    bare = bench.folder / PROJECT / "repository.git"
    made = git(bare, "commit-tree", "-p", "origin/main", "-m", "new", "origin/main^{tree}").strip()
    git(bare, "update-ref", "refs/heads/work", made)
    return made


async def test_a_push_that_was_cut_off_is_repeated(bench: Bench, source: Path) -> None:
    """It was done, but the server was killed before it had noted that."""
    await bench.clone(ProjectRepository(path=str(source), branch="main"))
    made = ahead(bench)
    assert (await pushed(bench, source)).pushed
    bare = bench.folder / PROJECT / "repository.git"
    git(bare, "update-ref", "-d", "refs/remotes/origin/work")
    again = await pushed(bench, source)
    assert (again.pushed, again.commit) == (True, made)
    assert git(bare, "rev-parse", "origin/work").strip() == made
    assert (await pushed(bench, source)).up_to_date


async def test_a_branch_that_appeared_there_meanwhile_is_not_replaced(
    bench: Bench, source: Path
) -> None:
    await bench.clone(ProjectRepository(path=str(source), branch="main"))
    ahead(bench)
    git(source, "branch", "work")
    with pytest.raises(git_errors.BranchDiverged, match="has got other commits"):
        await pushed(bench, source)
    assert git(source, "rev-parse", "work") == git(source, "rev-parse", "main")


async def test_a_branch_that_is_not_there_is_no_push(bench: Bench, source: Path) -> None:
    await bench.clone(ProjectRepository(path=str(source), branch="main"))
    assert (await pushed(bench, source, "nope")).commit is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_what_is_pushed_to_a_folder_belongs_to_its_owner(
    bench: Bench, source: Path, tmp_path: Path
) -> None:
    await bench.clone(ProjectRepository(path=str(source), branch="main"))
    made = ahead(bench)
    for folder in (source, *source.parents):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o055 != 0o055 and folder.is_relative_to(tmp_path.parents[2]):
            folder.chmod(mode | 0o055)
    for path in (source, *source.rglob("*")):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    assert (await pushed(bench, source)).pushed
    assert git(source, "rev-parse", "work").strip() == made
    assert {path.lstat().st_uid for path in source.rglob("*")} == {54321}
    commit(source, {"later": "1\n"})
