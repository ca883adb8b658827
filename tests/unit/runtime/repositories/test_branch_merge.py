"""What sessions have changed is merged into branches of the project's repository, by a real git."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.records import ProjectRepository
from oubliette.runtime.repositories.merging.branch_merge import BranchMerge
from oubliette.runtime.repositories.merging.merge_records import MergeOutcome, MergeRequest
from oubliette.runtime.snapshots import history
from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.history_records import StatesAnswer, StatesQuestion
from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel, SnapshotLimits
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs
from tests.git_hosts import commit, git
from tests.lfs_hosts import ATTRIBUTES, lfs_file, pointer_to
from tests.unit.runtime.repositories.conftest import PROJECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from oubliette.records import Project
    from tests.unit.runtime.repositories.conftest import Bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


class Work:
    """A workspace of the project, and a session in it."""

    def __init__(self, bare: Path, folder: Path, name: str, jobs: WorkspaceJobs) -> None:
        self.bare = bare
        self.folder = folder
        self.session_id = f"session-{name}"
        self.workspace_id = name
        self.turns = 0
        self.program = GitProgram(shutil.which("git") or "git")
        self.snapshots = bare.parent / f"{name}.git"
        limits = SnapshotLimits(max_file_bytes=1000)
        self.shadow = ShadowRepository(self.snapshots, folder, self.program, jobs, limits)

    async def take(self, moment: Any = "end", tag: str = "") -> None:
        await self.shadow.take(
            SnapshotLabel(
                session_id=self.session_id,
                turn=self.turns,
                moment=moment,
                tag=tag,
                when=1_700_000_000.0 + self.turns,
            )
        )

    async def turn(self, files: dict[str, str | None]) -> None:
        """A turn that writes files, or removes those that are None."""
        self.turns += 1
        await self.take("start")
        for name, content in files.items():
            path = self.folder / name
            if content is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode())
        await self.take()

    async def merge(self, into: str = "work", upto: Any = None, **more: Any) -> MergeOutcome:
        states = await self.shadow.answer(StatesQuestion(session_id=self.session_id, upto=upto))
        assert isinstance(states, StatesAnswer)
        request = MergeRequest(
            session_id=self.session_id,
            workspace_id=self.workspace_id,
            into=into,
            states=states,
            **more,
        )
        merger = BranchMerge(self.bare, self.snapshots, self.program, lambda: 1_800_000_000.0)
        return await merger.merge(request)


class Site:
    def __init__(self, bench: Bench, project: Project, jobs: WorkspaceJobs) -> None:
        self.bench = bench
        self.project = project
        self.jobs = jobs
        self.access = bench.access()
        assert project.repository is not None
        self.repository = self.access.of(PROJECT, project.repository)
        self.bare = self.repository.folder

    async def work(self, name: str) -> Work:
        clone = await self.access.new_workspace(self.project, name)
        return Work(self.bare, await clone.make(), name, self.jobs)

    def git(self, *arguments: str) -> str:
        return git(self.bare, *arguments).strip()

    def files(self, branch: str) -> set[str]:
        return set(self.git("ls-tree", "-r", "--name-only", branch).splitlines())

    def refs(self) -> str:
        return self.git("for-each-ref", "refs/heads", "refs/remotes", "refs/tags")

    async def fetch(self) -> None:
        assert self.project.repository is not None
        await self.repository.fetch(await self.access.source(self.project.repository), seconds=60)


@pytest.fixture
async def jobs() -> AsyncIterator[WorkspaceJobs]:
    found = WorkspaceJobs(2, 2, 2)
    yield found
    await found.aclose()


@pytest.fixture
def made(bench: Bench, source: Path, jobs: WorkspaceJobs) -> Callable[..., Any]:
    async def make(**files: Any) -> Site:
        commit(source, {"lines": "1\n2\n3\n4\n5\n", **files.pop("files", {})}, "more")
        project = await bench.clone(ProjectRepository(path=str(source), **files))
        return Site(bench, project, jobs)

    return make


async def test_a_branch_is_created_from_the_base_and_has_a_commit_per_turn(made) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"shop.py": "price = 2\n"})
    await work.turn({"new/file": "x\n", "docs/a.md": None})
    done = await work.merge("fix/test", subjects=((work.session_id, 1, "Raise the price\nplease"),))
    assert (done.merged, done.created, done.fast_forward, done.before) == (True, True, True, None)
    assert (done.commits, done.files, done.insertions, done.deletions) == (2, 3, 2, 2)
    assert site.git("log", "--format=%s", f"{done.base}..fix/test").splitlines() == [
        "Turn 2 of session session-one",
        "Raise the price",
    ]
    assert site.files("fix/test") == {"README", "lines", "new/file", "shop.py"} - {"README"}
    told = site.git("log", "-1", "--format=%(trailers:key=Oubliette-Turn,valueonly)", "fix/test")
    assert told == "2"
    site.git("fsck", "--strict")
    again = await work.merge("fix/test")
    assert (again.merged, again.up_to_date, again.created) == (False, True, False)


@pytest.mark.whole
async def test_lines_that_take_too_long_to_count_hold_up_no_merge(made, monkeypatch) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"shop.py": "price = 2\n", "new": "1\n"})
    monkeypatch.setattr(history, "COUNT_SECONDS", 0.0)
    done = await work.merge()
    assert (done.merged, done.files, done.insertions, done.deletions) == (True, 2, None, None)


async def test_a_dry_run_changes_nothing(made) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"shop.py": "price = 2\n"})
    before, objects = site.refs(), site.git("count-objects", "-v")
    done = await work.merge(dry_run=True)
    assert (done.merged, done.created, done.files) == (True, True, 1)
    assert (site.refs(), site.git("count-objects", "-v")) == (before, objects)
    assert [each.name for each in site.bare.parent.iterdir() if each.name.endswith(".new")] == [
        work.folder.name
    ]


async def test_two_sessions_that_change_different_lines_are_both_there(made) -> None:
    site = await made()
    one, two = await site.work("one"), await site.work("two")
    await one.turn({"lines": "one\n2\n3\n4\n5\n"})
    await two.turn({"lines": "1\n2\n3\n4\ntwo\n"})
    assert (await one.merge()).fast_forward
    done = await two.merge()
    assert (done.merged, done.fast_forward, done.commits) == (True, False, 2)
    assert site.git("show", "work:lines") == "one\n2\n3\n4\ntwo"
    assert site.git("log", "-1", "--format=%s", "work") == "Merge session session-two into work"
    assert len(site.git("log", "-1", "--format=%P", "work").split()) == 2


async def test_conflicts_are_data_and_the_branch_is_as_it_was(made) -> None:
    site = await made()
    one, two = await site.work("one"), await site.work("two")
    await one.turn({"lines": "one\n2\n3\n4\n5\n", "shop.py": None})
    await two.turn({"lines": "two\n2\n3\n4\n5\n", "shop.py": "price = 9\n"})
    await one.merge()
    before = site.refs()
    for strategy in ("merge", "squash", "rebase"):
        done = await two.merge(strategy=strategy)
        assert (done.merged, done.commit, site.refs()) == (False, None, before)
        first, second = done.conflicts
        assert (first.path, first.kind) == ("lines", "contents")
        assert [each.stage for each in first.stages] == ["base", "ours", "theirs"]
        assert site.git("cat-file", "-e", first.stages[0].oid) == ""
        assert (second.path, second.kind) == ("shop.py", "modify/delete")
        assert [each.stage for each in second.stages] == ["base", "theirs"]
        assert "deleted in work" in second.message
    assert done.conflict_with == "turn 1"


async def test_a_squash_is_one_commit_and_a_rebase_one_per_turn(made) -> None:
    site = await made()
    one, two = await site.work("one"), await site.work("two")
    await one.turn({"lines": "one\n2\n3\n4\n5\n"})
    await two.turn({"lines": "1\n2\n3\n4\ntwo\n"})
    await two.turn({"second": "2\n"})
    await one.merge("squashed")
    await one.merge("rebased")
    done = await two.merge("squashed", strategy="squash", message="All of it\n\nAt once")
    assert (done.commits, done.files) == (1, 2)
    message = site.git("log", "-1", "--format=%B", "squashed")
    assert message.startswith("All of it\n\nAt once\n\nOubliette-Session: session-two\n")
    done = await two.merge("rebased", strategy="rebase")
    assert (done.commits, site.git("rev-list", "--merges", "--count", "rebased")) == (2, "0")
    assert site.git("rev-parse", "squashed^{tree}") == site.git("rev-parse", "rebased^{tree}")


@pytest.mark.whole
@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase"])
async def test_what_a_branch_has_already_is_not_merged_twice(made, strategy) -> None:
    """A later turn changes the same lines again, and another session's change is between."""
    site = await made()
    one, two = await site.work("one"), await site.work("two")
    await two.turn({"lines": "1\n2\n3\n4\ntwo\n"})
    await two.merge(strategy=strategy)
    await one.turn({"lines": "first\n2\n3\n4\n5\n"})
    assert (await one.merge(strategy=strategy)).merged
    await one.turn({"lines": "second\n2\n3\n4\n5\n"})
    done = await one.merge(strategy=strategy)
    assert done.merged, done
    assert site.git("show", "work:lines") == "second\n2\n3\n4\ntwo"
    assert (await one.merge(strategy=strategy)).up_to_date
    await one.turn({"lines": "third\n2\n3\n4\n5\n"})
    await one.take("checkpoint", "mine")
    assert (await one.merge(upto="3-checkpoint-mine", strategy=strategy)).merged
    assert site.git("show", "work:lines") == "third\n2\n3\n4\ntwo"


@pytest.mark.whole
async def test_a_turn_can_be_named(made) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"first": "1\n"})
    await work.turn({"second": "2\n"})
    assert (await work.merge(upto=1)).files == 1
    assert "second" not in site.files("work")
    assert (await work.merge()).files == 1
    assert {"first", "second"} <= site.files("work")


async def test_files_that_gitignore_names_stay_out(made) -> None:
    site = await made(
        files={".gitignore": "*.log\nbuild/\n", "kept.log": "tracked\n", "sub/.gitignore": "/x\n"}
    )
    git(site.bench.folder.parent / "source", "add", "-f", "kept.log")
    work = await site.work("one")
    await work.turn(
        {
            "a.log": "1",
            "build/out": "1",
            "sub/x": "1",
            "sub/y/x": "1",
            ":(odd)*": "1",
            "node_modules/.gitignore": "*\n",
            "node_modules/m": "1",
        }
    )
    done = await work.merge()
    assert {
        each for each in site.files("work") if each not in {"lines", "shop.py", "docs/a.md"}
    } == {
        ".gitignore",
        ":(odd)*",
        "sub/.gitignore",
        "sub/y/x",
    }
    assert done.ignored == (
        "a.log", "build/out", "node_modules/.gitignore", "node_modules/m", "sub/x",
    )  # fmt: skip
    assert done.ignored_count == 5


@pytest.mark.whole
async def test_a_tracked_file_that_gitignore_names_is_merged(made, source) -> None:
    (source / ".gitignore").write_text("*.log\n")
    (source / "kept.log").write_text("1\n")
    git(source, "add", "--force", "--all")
    git(source, "commit", "-qm", "a log")
    site = await made()
    work = await site.work("one")
    await work.turn({"kept.log": "2\n", "other.log": "2\n"})
    assert (await work.merge()).files == 1
    assert site.git("show", "work:kept.log") == "2"


async def test_what_snapshots_cannot_have_stays_as_it_was(made, source) -> None:
    """Large files, Oubliette's own folders, and submodules are no deletions."""
    (source / "module").mkdir()
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(source, "commit", "-qm", "a submodule")
    site = await made(files={"large": "x" * 5000, "other": "y" * 5000, ".factory/settings": "{}\n"})
    work = await site.work("one")
    (work.folder / "module").mkdir(exist_ok=True)
    await work.turn({"shop.py": "price = 2\n", "other": "z" * 5000, "big": "b" * 2000})
    await work.turn({"module/inside": "of the submodule\n"})
    done = await work.merge()
    assert done.files == 1, site.git("diff", "--stat", done.base, "work")
    assert "160000" in site.git("ls-tree", "work", "module")
    assert {path: why.partition(",")[0] for path, why in done.left_out.items()} == {
        "other": "5000 bytes",
        "big": "2000 bytes",
    }


async def test_names_that_git_refuses_are_left_out_by_name(made, source) -> None:
    """One entry for a folder; none for the `.git` of the workspace, of a submodule or for ours."""
    (source / "module").mkdir()
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(source, "commit", "-qm", "a submodule")
    site = await made()
    work = await site.work("one")
    (work.folder / "module").mkdir(exist_ok=True)
    (work.folder / ".gitmodules").symlink_to("elsewhere")
    await work.turn({"git~1": "1\n"})
    await work.turn(
        {
            "git~1": None,
            "shop.py": "price = 2\n",
            "nested/.git/HEAD": "ref: refs/heads/main\n",
            "nested/.git/config": "",
            "nested/code.py": "1\n",
            "a\\.git": "1\n",
            "module/.git": "gitdir: ../elsewhere\n",
            ".factory/.git": "1\n",
        }
    )
    done = await work.merge()
    new = {"module", "nested/code.py"}
    assert site.files("work") == {"docs/a.md", "lines", "shop.py", *new}
    assert done.left_out == dict.fromkeys(
        (".gitmodules", "a\\.git", "nested/.git"), "git refuses this name in a checkout"
    )
    assert done.left_out_count == 3


@pytest.mark.whole
async def test_files_are_stored_in_the_form_of_the_repository(made, source) -> None:
    """A checkout has other ends of lines, another encoding, and the names of contents."""
    (source / ".gitattributes").write_text(
        "*.bat text eol=crlf\nid ident\n*.u16 text working-tree-encoding=UTF-16LE\n"
        "bad text working-tree-encoding=UTF-16\n"
    )
    site = await made(
        files={"old.bat": "a\nb\n", "new.bat": "a\nb\n", "id": "$Id$\n", "run.bat": "x\n"}
    )
    work = await site.work("one")
    assert (work.folder / "old.bat").read_bytes() == b"a\r\nb\r\n"
    assert (work.folder / "id").read_bytes() != b"$Id$\n"
    await work.turn({"lines": "0\n"})
    first = await work.merge()
    assert first.files == 1, site.git("diff", "--stat", first.base, "work")
    (work.folder / "text.u16").write_bytes("hé\n".encode("utf-16-le"))
    (work.folder / "run.bat").chmod(0o755)
    await work.turn({"new.bat": "a\r\nb\r\nc\r\n"})
    second = await work.merge()
    assert second.files == 3, site.git("diff", "--stat", first.commit, "work")
    assert git(site.bare, "show", "work:new.bat") == "a\nb\nc\n"
    assert git(site.bare, "show", "work:text.u16") == "hé\n"
    assert "100755" in site.git("ls-tree", "work", "run.bat")
    await work.turn({"bad": "no such encoding"})
    assert (await work.merge()).merged, "what cannot be converted stays as it is"
    assert site.git("show", "work:bad") == "no such encoding"


@pytest.mark.whole
async def test_content_in_the_place_of_a_pointer_of_git_lfs_stays_out(made, source) -> None:
    (source / ".gitattributes").write_text("*.psd filter=lfs diff=lfs merge=lfs -text\n")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 9\n"
    site = await made(files={"a.psd": pointer.format("a" * 64), "b.psd": pointer.format("b" * 64)})
    work = await site.work("one")
    await work.turn({"a.psd": "the content", "b.psd": pointer.format("c" * 64), "c.psd": "new"})
    done = await work.merge()
    assert done.files == 1
    assert done.left_out == dict.fromkeys(
        ["a.psd", "c.psd"], "Git LFS keeps it, where this server cannot store its content"
    )
    assert "c" * 64 in site.git("show", "work:b.psd")


@pytest.mark.whole
async def test_content_of_git_lfs_that_nobody_has_changed_is_not_a_change(made, source) -> None:
    """Neither what a snapshot has, nor what is too large for it."""
    small, large = b"small\n", b"large\n" * 1000
    for content in (small, large):
        lfs_file(source / ".git" / "lfs", content)
    pointers = {"small.bin": pointer_to(small), "large.bin": pointer_to(large)}
    site = await made(files={".gitattributes": ATTRIBUTES, **pointers}, fetch_lfs=True)
    work = await site.work("one")
    content = await site.access.lfs_content(PROJECT, site.project.repository)
    await content.place(work.folder, await content.fetch("origin/main", seconds=60))
    await work.turn({"shop.py": "price = 2\n"})
    done = await work.merge()
    assert (done.files, done.left_out_count, done.commits) == (1, 0, 1)
    await work.turn({"small.bin": "changed", "large.bin": "changed " * 1000})
    done = await work.merge()
    assert set(done.left_out) == {"small.bin", "large.bin"}
    assert site.git("show", "work:small.bin") == pointers["small.bin"].strip()
    assert site.git("show", "work:large.bin") == pointers["large.bin"].strip()


@pytest.mark.whole
async def test_a_branch_of_the_other_side_begins_where_it_was_fetched(made, source) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"lines": "one\n2\n3\n4\n5\n"})
    commit(source, {"theirs": "1\n"}, "theirs")
    await site.fetch()
    done = await work.merge("main")
    assert (done.created, done.fast_forward) == (True, False)
    assert {"theirs", "lines"} <= site.files("main")
    commit(source, {"more": "1\n"}, "more of theirs")
    await site.fetch()
    again = await work.merge("main")
    assert again.merged, "what was fetched meanwhile is in it"
    assert {"theirs", "more"} <= site.files("main")
    assert site.git("show", "main:lines").startswith("one")


async def test_a_workspace_begins_at_what_was_merged_or_at_what_was_fetched_after_it(
    made, source
) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"new": "1\n"})
    merged = await work.merge("main")
    assert await site.repository.start_of("main") == merged.commit
    git(source, "fetch", "--quiet", str(site.bare), "main")
    git(source, "merge", "--quiet", "--ff-only", "FETCH_HEAD")
    later = commit(source, {"later": "1\n"}, "later")
    await site.fetch()
    assert await site.repository.start_of("main") == later


async def test_uncommitted_changes_that_came_along_are_a_commit(made, source) -> None:
    (source / "shop.py").write_text("price = 7\n")
    bench_site = made(dirty=True)
    commit(source, {}, "nothing")
    (source / "shop.py").write_text("price = 8\n")
    site = await bench_site
    work = await site.work("one")
    await work.turn({"new": "1\n"})
    done = await work.merge()
    assert done.merged
    assert site.git("show", "work:shop.py").startswith("price")


async def test_names_that_exclude_each_other_are_an_error_of_the_parameter(made) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({"new": "1\n"})
    await work.merge("fix")
    with pytest.raises(ValueError, match="exclude each other"):
        await work.merge("fix/test")


async def test_nothing_to_merge_creates_no_branch(made) -> None:
    site = await made()
    work = await site.work("one")
    await work.turn({})
    done = await work.merge()
    assert (done.merged, done.up_to_date, done.created) == (False, True, False)
    assert site.refs().count("refs/heads") == 0


async def test_what_git_takes_for_an_attack_is_refused(made) -> None:
    """The URL of a submodule would be an option of a program on the machine of a reader."""
    site = await made()
    work = await site.work("one")
    await work.turn(
        {".gitmodules": '[submodule "m"]\n\tpath = m\n\turl = --upload-pack=touch planted\n'}
    )
    before, objects = site.refs(), site.git("count-objects", "-v")
    with pytest.raises(RuntimeFailure, match="git refuses what is to be merged: .*gitmodules"):
        await work.merge()
    assert (site.refs(), site.git("count-objects", "-v")) == (before, objects)
    assert [each.name for each in site.bare.parent.glob(".*.new")] == [work.folder.name]
    await work.turn({".gitmodules": None, "harmless": "1\n"})
    with pytest.raises(RuntimeFailure, match="strategy squash"):  # the first turn has it still
        await work.merge()
    assert (await work.merge(strategy="squash")).files == 1


@pytest.mark.whole
async def test_links_modes_and_names_are_merged_as_they_are(made) -> None:
    site = await made()
    work = await site.work("one")
    work.turns = 1
    await work.take("start")
    os.symlink("/etc/passwd", work.folder / "out")
    (work.folder / "run").write_text("#!/bin/sh\n")
    (work.folder / "run").chmod(0o755)
    (work.folder / "SHOP.py").write_text("clash\n")
    (work.folder / "nested" / ".git").mkdir(parents=True)
    (work.folder / "nested" / ".git" / "config").write_text("[core]\n")
    (work.folder / "nested" / "file").write_text("1\n")
    (work.folder / "lines").unlink()
    (work.folder / "lines").mkdir()
    (work.folder / "lines" / "inside").write_text("1\n")
    await work.take()
    done = await work.merge()
    assert done.merged
    listed = site.git("ls-tree", "-r", "work")
    assert "120000" in listed
    assert "100755" in listed
    assert {"lines/inside", "nested/file", "out", "run", "SHOP.py", "shop.py"} <= site.files("work")
    assert not any(".git/" in each for each in site.files("work"))
    site.git("fsck", "--strict")
