"""Workspaces as clones: a plain and full repository each, on a branch of its own.

One is made where no agent sees it, from objects that are copied (or shared by the file system,
where that can: a later change of one copy is never seen in another). Its owner moves it to its
place once it is complete. An agent that breaks its repository affects no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import sys
import threading
import unicodedata
from typing import TYPE_CHECKING, BinaryIO, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.repositories import submodules
from oubliette.runtime.repositories.checkout_size import check_size
from oubliette.runtime.repositories.git_errors import PathsClash
from oubliette.runtime.repositories.project_repository import REMOTE, SECONDS
from oubliette.runtime.snapshots.git_program import git_failure, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.runtime.repositories.project_repository import BareRepository
    from oubliette.runtime.repositories.remote_git import RemoteGit
    from oubliette.runtime.snapshots.git_program import GitProgram

BRANCHES: Final = "oubliette"
"""First part of the names of workspaces' branches."""
NEW: Final = ".new"
"""Ending of the names of workspaces that are being made."""
CHECKOUT_SECONDS: Final = 600.0
_CLONE_SHARES: Final = 0x40049409
"""FICLONE of <linux/fs.h>: the content of a file, shared until one of both changes."""
_PIECE: Final = 1 << 26
"""Bytes that the system copies at a time."""
_CONFIG: Final = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
"""
_ORIGIN: Final = """\
[remote "origin"]
\turl = "{url}"
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""
_EXCLUDED: Final = "# of Oubliette\n/.factory/\n/.rlm-context/\n"


def branch_of(workspace_id: str, *, default: bool) -> str:
    return f"{BRANCHES}/{'default' if default else workspace_id}"


class WorkspaceClone:
    """A workspace that is being made of a project's repository.

    Args:
        source: The project's repository.
        git: The program.
        branch: Name of the workspace's own branch.
        start: Commit at which it begins.
        origin: URL that it has as `origin`; None: none.
        dirty: Commit with uncommitted changes, which it has as such.
        max_bytes: Maximum size of its files together; 0: none.
    """

    def __init__(
        self,
        source: BareRepository,
        git: GitProgram,
        *,
        branch: str,
        start: str,
        origin: str | None = None,
        dirty: str | None = None,
        max_bytes: int = 0,
    ) -> None:
        self._source = source.folder
        self._git = git
        self._branch = branch
        self._start = start
        self._origin = origin
        self._dirty = dirty
        self._max_bytes = max_bytes
        self._unwanted = threading.Event()
        self.folder = source.folder.parent / f".{secrets.token_hex(16)}{NEW}"
        """Folder in which it is made; it is to be moved from there."""

    @property
    def tree(self) -> str:
        return self._dirty or self._start

    async def make(self) -> Path:
        """Make the workspace and return its folder, which belongs to the server's user.

        Raises:
            RepositoryTooLarge: its files would be larger than the limit; nothing is left.
            PathsClash: two paths would be one file; nothing is left.
            RuntimeFailure: git or the file system refused; nothing is left.
            DeadlineExceeded: it takes too long.
        """
        try:
            await check_size(
                self._git.path,
                self.tree,
                environment=self._git.environment(self._source),
                folder=self._source,
                most=self._max_bytes,
                seconds=CHECKOUT_SECONDS,
            )
            await self._make()
        except OSError as error:
            await self.discard()
            raise RuntimeFailure(f"the workspace cannot be made: {error}") from error
        except BaseException:
            await self.discard()
            raise
        return self.folder

    async def fetch_submodules(
        self, remote: RemoteGit, *, seconds: float, report: Callable[[str], object] | None = None
    ) -> None:
        """Fetch the submodules of the workspace that was made, and those in them.

        Raises:
            RepositoryTooLarge: they are too many, or their files too large.
            RepositoryError: git failed; the sentence has the cause and a remedy.
            DeadlineExceeded: the time was too short.
        """
        await submodules.fetch_all(
            self.folder,
            remote,
            self._git,
            most=self._max_bytes,
            seconds=seconds,
            report=report,
        )

    async def discard(self) -> None:
        """Remove what was made; nothing where it was moved."""
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _make(self) -> None:
        await asyncio.to_thread(self._lay_out)
        if await asyncio.to_thread(folds_case, self.folder):
            await self._check_clashes()
        # Both are long for a large repository; until the objects are here, git reads the source's
        copy = asyncio.create_task(in_own_thread(self._copy_objects))
        try:
            await self._check_out()
        except BaseException:
            self._unwanted.set()
            # It writes in the folder, which is going to be removed.
            await asyncio.gather(copy, return_exceptions=True)
            raise
        await copy

    async def _check_clashes(self) -> None:
        """Refuse paths that the file system takes for one: git would write one over the other."""
        listed = await self._git.run(
            self._source, "ls-tree", "-r", "-t", "-z", "--name-only", self.tree, seconds=SECONDS
        )
        known: dict[str, str] = {}
        for path in listed.decode(errors="backslashreplace").split("\0")[:-1]:
            other = known.setdefault(unicodedata.normalize("NFC", path.casefold()), path)
            if other != path:
                raise PathsClash(
                    f"{other} and {path} are one path for the file system of the server's home",
                    hint="rename one in the repository, or put the home on a file system where"
                    " upper and lower case differ",
                )

    async def _check_out(self) -> None:
        refs = await self._git.refs(self._source, f"{REMOTE}/", "refs/tags/", seconds=SECONDS)
        # A symbolic ref there would name a branch that a fetch may have removed since.
        lines = [
            f"create {name} {commit}\n" for name, commit in refs.items() if name != f"{REMOTE}/HEAD"
        ]
        lines.append(f"create refs/heads/{self._branch} {self._start}\n")
        await self._call("update-ref", "--stdin", given="".join(lines).encode())
        await self._call("pack-refs", "--all")
        await self._call("symbolic-ref", "HEAD", f"refs/heads/{self._branch}")
        await self._call("read-tree", "--reset", "-u", self.tree)
        if self._dirty is not None:
            await self._call("read-tree", self._start)
            await self._call("update-index", "-q", "--refresh", may_fail=True)

    async def _call(self, *arguments: str, given: bytes = b"", may_fail: bool = False) -> None:
        environment = self._git.environment(self.folder / ".git")
        environment["GIT_WORK_TREE"] = str(self.folder)
        objects = f'"{_escaped(str(self._source / "objects"))}"'  # as it may contain a colon
        environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = objects
        done = await run(
            [self._git.path, *arguments],
            environment=environment,
            folder=self.folder,
            given=given,
            seconds=CHECKOUT_SECONDS,
        )
        if done.code != 0 and not may_fail:
            raise git_failure(arguments[0], done)

    def _lay_out(self) -> None:
        """Make the repository as `git init` does. Blocks."""
        own = self.folder / ".git"
        for folder in ("refs/heads", "refs/tags", "info", "hooks", "objects"):
            (own / folder).mkdir(mode=0o755, parents=True)
        self.folder.chmod(0o755)
        origin = "" if self._origin is None else _ORIGIN.format(url=_escaped(self._origin))
        (own / "config").write_text(_CONFIG + origin)
        (own / "info" / "exclude").write_text(_EXCLUDED)
        (own / "HEAD").write_text(f"ref: refs/heads/{self._branch}\n")
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._source / "shallow", own / "shallow")

    def _copy_objects(self) -> None:
        """Give the repository all objects of the source. Blocks."""
        copy_tree(self._source / "objects", self.folder / ".git" / "objects", self._unwanted)


def folds_case(folder: Path) -> bool:
    """Whether a file system takes names for one that differ in case alone. Blocks."""
    return (folder / ".GIT").exists()


def copy_tree(source: Path, target: Path, stop: threading.Event) -> None:
    """Copy a folder of plain files until `stop`; the file system may share them. Blocks."""
    target.mkdir(mode=0o755, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if stop.is_set():
                return
            if entry.is_dir(follow_symlinks=False):
                copy_tree(source / entry.name, target / entry.name, stop)
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith("tmp_"):
                _copy_file(source / entry.name, target / entry.name, stop)


def _copy_file(source: Path, target: Path, stop: threading.Event) -> None:
    with source.open("rb") as old, target.open("xb") as new:
        copy_content(old, new, stop)
    target.chmod(0o444)


def copy_content(old: BinaryIO, new: BinaryIO, stop: threading.Event | None = None) -> None:
    """Copy a file into an empty one until `stop`; the file system may share it. Blocks."""
    if sys.platform != "linux":
        shutil.copyfileobj(old, new)
        return
    try:
        fcntl.ioctl(new.fileno(), _CLONE_SHARES, old.fileno())
    except OSError:  # this file system cannot
        while not (stop is not None and stop.is_set()) and os.sendfile(
            new.fileno(), old.fileno(), None, _PIECE
        ):
            pass


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
