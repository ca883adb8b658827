"""BareRepository, the repository of a project, in which no agent ever writes.

    repositories/<project-id>/repository.git   what was fetched: refs/remotes/origin/*, and tags
    repositories/<project-id>/clone.new/       a clone that is under way
    repositories/<project-id>/.<32 hex>.new/   a workspace that is being made

`refs/oubliette/head` is the commit at which workspaces begin where the source's HEAD is no branch,
`refs/oubliette/dirty` the uncommitted changes that came with it. Two methods of one repository must
not run at a time; its owner sees to that.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oubliette.contract.project import BranchInfo
from oubliette.errors import DeadlineExceeded, NotFound, RuntimeFailure
from oubliette.runtime.repositories.addresses import without_password
from oubliette.runtime.repositories.git_errors import BranchNotFound, RepositoryEmpty
from oubliette.runtime.repositories.uncommitted import commit_uncommitted
from oubliette.runtime.snapshots.ref_files import refs_below

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.records import ProjectRepository
    from oubliette.runtime.repositories.remote_git import RemoteGit
    from oubliette.runtime.snapshots.git_program import GitProgram

REMOTE: Final = "refs/remotes/origin"
HEAD_REF: Final = "refs/oubliette/head"
DIRTY_REF: Final = "refs/oubliette/dirty"
CLONING: Final = "clone.new"
SECONDS: Final = 60.0
"""Time for a command on the repository alone."""
TIDY_SECONDS: Final = 300.0
MAX_PACKS: Final = 40
"""Packs, one for each fetch and merge, above which they are made one."""
MAX_BRANCHES: Final = 10_000
MAX_LISTED: Final = 32 * 1024 * 1024
"""Bytes of names among which files of attributes are looked for: a tree can have any number."""
MAX_ATTRIBUTES: Final = 100
"""Files of attributes in which Git LFS is looked for."""
_CONFIG: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\tfilemode = true
\thooksPath = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""
_OBJECT: Final = re.compile(r"[0-9a-f]{40,64}")


class BareRepository:
    """The repository of one project. Its owner calls one method at a time."""

    def __init__(self, folder: Path, git: GitProgram, record: ProjectRepository) -> None:
        self.folder = folder
        self._git = git
        self._record = record

    @property
    def exists(self) -> bool:
        """Whether it has been cloned. Blocks."""
        return (self.folder / "HEAD").exists()

    @property
    def new(self) -> Path:
        """Folder in which it is cloned."""
        return self.folder.parent / CLONING

    async def clone(
        self, remote: RemoteGit, *, seconds: float, report: Callable[[str], object]
    ) -> ProjectRepository:
        """Clone the other repository, all of it or nothing; return the record with its branch.

        Raises:
            RepositoryError: git failed; the sentence has the cause and a remedy.
            DeadlineExceeded: the time was too short.
        """
        record, made = self._record, self.new / "clone"
        await asyncio.to_thread(_emptied, self.new)
        options = ["--no-checkout", "--no-local", "--template=", "--origin=origin", "--progress"]
        if record.depth is not None:
            options.append(f"--depth={record.depth}")
        if record.branch is not None:
            options.append(f"--branch={record.branch}")
        await remote.run(
            self.new,
            *("clone", *options, "--", remote.access.address, str(made)),
            doing="the clone",
            seconds=seconds,
            report=report,
        )
        bare = made / ".git"
        head = (await self._try(bare, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")).strip()
        if not head:
            raise RepositoryEmpty(
                f"{remote.access.shown} has no commit yet",
                hint="push a first commit, or create the project without a repository",
            )
        branch = (await self._try(bare, "symbolic-ref", "--quiet", "--short", "HEAD")).strip()
        await self._tidy_refs(bare, head, branch)
        await asyncio.to_thread(_made_bare, bare)
        lfs = await self._uses_lfs(bare, head)
        record = replace(record, branch=branch or None, lfs=lfs, ready=True)
        if record.dirty:
            assert record.path is not None, "the parameters are checked"
            await commit_uncommitted(self._git, bare, record.path, head, DIRTY_REF)
        await asyncio.to_thread(bare.rename, self.folder)
        self._record = record
        return record

    async def _tidy_refs(self, bare: Path, head: str, branch: str) -> None:
        """Leave no branch of our own: they come from merges alone."""
        own = (
            (
                await self._git.run(
                    bare, "for-each-ref", "--format=%(refname)", "refs/heads/", seconds=SECONDS
                )
            )
            .decode()
            .splitlines()
        )
        lines = [f"update {HEAD_REF} {head}\n", *(f"delete {each}\n" for each in own)]
        await self._git.run(
            bare, "symbolic-ref", "HEAD", f"refs/heads/{branch or 'none'}", seconds=SECONDS
        )
        await self._git.run(
            bare,
            "update-ref",
            "--no-deref",
            "--stdin",
            given="".join(lines).encode(),
            seconds=SECONDS,
        )

    async def fetch(
        self, remote: RemoteGit, *, seconds: float, report: Callable[[str], object] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fetch what is new in the other repository.

        Returns:
            The branches that are new or have another commit, and those that are gone.

        Raises:
            RepositoryError: git failed; nothing has changed.
            DeadlineExceeded: the time was too short.
        """
        record = self._record
        before = {each.name: each.commit for each in await self.branches()}
        if record.depth is not None and record.branch is not None:
            wanted = f"+refs/heads/{record.branch}:{REMOTE}/{record.branch}"
        else:
            wanted = f"+refs/heads/*:{REMOTE}/*"
        options = [
            "--prune",
            "--atomic",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--progress",
        ]
        if record.depth is not None:
            options.append(f"--depth={record.depth}")
        refs = [wanted] if record.branch is not None else [wanted, f"+HEAD:{HEAD_REF}"]
        await remote.run(
            self.folder,
            *("fetch", *options, "--", remote.access.address, *refs),
            doing="the fetch",
            seconds=seconds,
            report=report,
            more={"GIT_DIR": str(self.folder)},
        )
        if record.dirty and record.path is not None:
            await commit_uncommitted(
                self._git, self.folder, record.path, await self._source_head(record), DIRTY_REF
            )
        after = {each.name: each.commit for each in await self.branches()}
        updated = (name for name, commit in after.items() if before.get(name) != commit)
        return tuple(sorted(updated)), tuple(sorted(before.keys() - after.keys()))

    async def branches(self) -> list[BranchInfo]:
        """The branches of the other repository, those with the newest commits first."""
        form = "%(refname:lstrip=3)%00%(objectname)%00%(committerdate:unix)%00%(subject)"
        output = await self._git.run(
            self.folder,
            "for-each-ref",
            f"--format={form}",
            "--sort=-committerdate",
            f"--count={MAX_BRANCHES}",
            f"{REMOTE}/",
            seconds=SECONDS,
        )
        found: list[BranchInfo] = []
        for line in output.decode(errors="replace").splitlines():
            name, commit, when, subject = line.split("\0", 3)
            if name != "HEAD":
                found.append(
                    BranchInfo(
                        name=name,
                        commit=commit,
                        committed_at=float(when or 0),
                        subject=subject[:200],
                        default=name == self._record.branch,
                    )
                )
        return found

    def refs(self) -> dict[str, str]:
        """All its refs that name a commit or a tag: name → object. Blocks."""
        return refs_below(self.folder, "refs/")

    async def start_of(self, branch: str | None = None) -> str:
        """The commit at which a workspace begins.

        Raises:
            BranchNotFound: there is no such branch; names some that there are.
            NotFound: there is no repository here.
        """
        if not await asyncio.to_thread(lambda: self.exists):
            raise NotFound("the project's repository is not on this machine")
        name = branch or self._record.branch
        if name is None:
            return await self._source_head(self._record)
        ours, theirs = [
            await self._commit_of(ref) for ref in (f"refs/heads/{name}", f"{REMOTE}/{name}")
        ]
        if ours is not None and theirs is not None:
            # A branch into which nothing was merged since it was pushed is behind after a fetch.
            ahead = await self._try(self.folder, "rev-list", "--count", ours, "--not", theirs)
            return theirs if ahead.strip() == "0" else ours
        if (found := ours or theirs) is not None:
            return found
        known = ", ".join(each.name for each in (await self.branches())[:5])
        where = without_password(self._record.url or self._record.path or "")
        raise BranchNotFound(
            f"{where} has no branch {name}, as far as it was fetched",
            hint=f"some that it has: {known}; repository_fetch brings new ones",
        )

    async def _commit_of(self, ref: str) -> str | None:
        found = await self._try(
            self.folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"
        )
        return found.strip() if _OBJECT.fullmatch(found.strip()) else None

    async def tidy(self) -> bool:
        """Make one pack of many, without what no ref needs any more; return whether it did.

        Raises:
            RuntimeFailure: git failed; nothing is lost.
            DeadlineExceeded: it takes too long; nothing is lost.
        """
        packs = self.folder / "objects" / "pack"
        if len(await asyncio.to_thread(lambda: list(packs.glob("*.pack")))) <= MAX_PACKS:
            return False
        await self._git.run(self.folder, "pack-refs", "--all", "--prune", seconds=TIDY_SECONDS)
        repack = ("repack", "-a", "-d", "-q", "--no-write-bitmap-index")
        await self._git.run(self.folder, *repack, seconds=TIDY_SECONDS)
        await self._git.run(self.folder, "prune", "--expire=now", seconds=TIDY_SECONDS)
        return True

    async def dirty(self) -> str | None:
        """The commit with the uncommitted changes, if some came."""
        found = await self._try(self.folder, "rev-parse", "--verify", "--quiet", DIRTY_REF)
        return found.strip() or None

    async def _uses_lfs(self, bare: Path, commit: str) -> bool:
        """Whether files of a commit are kept by Git LFS."""
        listing, _ = await self._git.piece(
            bare, "ls-tree", "-r", "-z", "--name-only", commit,
            offset=0, most=MAX_LISTED, seconds=SECONDS,
        )  # fmt: skip
        listed = listing.decode(errors="surrogateescape").split("\0")
        named = [path for path in listed if f"/{path}".endswith("/.gitattributes")]
        if not named:
            return False
        wanted = ("--fixed-strings", "-e", "filter=lfs", commit, "--", *named[:MAX_ATTRIBUTES])
        found = await self._try(bare, "grep", "-l", *wanted)
        return bool(found.strip())

    async def _source_head(self, record: ProjectRepository) -> str:
        ref = HEAD_REF if record.branch is None else f"{REMOTE}/{record.branch}"
        return (
            (await self._git.run(self.folder, "rev-parse", f"{ref}^{{commit}}", seconds=SECONDS))
            .decode()
            .strip()
        )

    async def _try(self, repository: Path, *arguments: str) -> str:
        """The output of a command that may find nothing."""
        try:
            output = await self._git.run(repository, *arguments, seconds=SECONDS)
        except DeadlineExceeded:
            raise
        except RuntimeFailure:
            return ""
        return output.decode(errors="surrogateescape")


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


def _made_bare(repository: Path) -> None:
    """Give a clone the configuration of a bare repository; nothing of the source's is in it."""
    (repository / "config").write_text(_CONFIG)
    (repository / "index").unlink(missing_ok=True)
    shutil.rmtree(repository / "logs", ignore_errors=True)
    (repository / "info").mkdir(exist_ok=True)
    repository.chmod(0o700)
