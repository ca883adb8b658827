"""LfsContent, the contents of a project's files that Git LFS keeps.

    repositories/<project-id>/lfs/objects/ab/cd/abcd…    a content, by its SHA-256

git-lfs fetches them as a program, with the credential and the limits of a clone. It works in an
empty repository that has pointers alone: nothing of the project's repository is configuration for
it, no hook or filter is run, and it never sees a checkout. Out of a folder of this machine they are
copied. Each content is compared with its name before anybody gets it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter, RuntimeFailure, Unavailable
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.repositories.addresses import check_url
from oubliette.runtime.repositories.credentials import credential_for
from oubliette.runtime.repositories.git_errors import LfsMissing
from oubliette.runtime.repositories.lfs_pointers import pointers_in
from oubliette.runtime.repositories.remote_git import RemoteGit
from oubliette.runtime.repositories.workspace_clone import NEW, copy_content

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from oubliette.runtime.repositories.lfs_pointers import LfsPointer
    from oubliette.runtime.snapshots.git_program import GitProgram

PROGRAM: Final = "git-lfs"
STORE: Final = "lfs"
SECONDS: Final = 60.0
_SHOWN: Final = 5
_SETTINGS: Final = {
    "lfs.basictransfersonly": "true",
    "lfs.transfer.maxretries": "2",
    "lfs.dialtimeout": "30",
    "lfs.activitytimeout": "60",
}
WANTED: Final = "refs/heads/wanted"
_COMMIT: Final = f"""\
commit {WANTED}
committer Oubliette <oubliette@oubliette.invalid> 0 +0000
data 0
""".encode()
"""Beginning of a commit by which git-lfs learns what is wanted: pointers, and nothing else."""
_CONFIG: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\thooksPath = /dev/null
"""


def check_git_lfs() -> None:
    """Check that git-lfs is there.

    Raises:
        Unavailable: it is not installed.
    """
    if shutil.which(PROGRAM) is None:
        raise Unavailable(
            "repository.lfs: git-lfs is not installed on the server's machine",
            hint="install it there (apt-get install git-lfs), or leave lfs out to get pointers to"
            " the files that Git LFS keeps",
        )


class LfsContent:
    """The contents of one project.

    Args:
        repository: Folder of the project's repository.
        git: The program.
        remote: git for the repository that it was cloned from.
        credentials: Those of the configuration, by host.
    """

    def __init__(
        self, repository: Path, git: GitProgram, remote: RemoteGit, credentials: Iterable[str] = ()
    ) -> None:
        self._repository = repository
        self._store = repository.parent / STORE
        self._git = git
        self._remote = remote
        self._credentials = tuple(credentials)

    async def fetch(
        self, tree: str, *, seconds: float, report: Callable[[str], object] | None = None
    ) -> dict[bytes, LfsPointer]:
        """Fetch the contents of a tree that are not here; return its files that Git LFS keeps.

        Raises:
            Unavailable: git-lfs is not installed.
            LfsMissing: some cannot be had; names them.
            RepositoryTooLarge: they are larger than the limit.
            RepositoryError: git-lfs failed; the sentence has the cause and a remedy.
            DeadlineExceeded: the time was too short.
        """
        found = await pointers_in(
            self._git, self._repository, tree, most=self._remote.access.max_bytes
        )
        missing = await asyncio.to_thread(self._missing, found.values())
        if missing:
            total = sum(each.size for each in missing)
            if report is not None:
                report(f"fetching {len(missing)} files of Git LFS, {total} bytes")
            if self._remote.access.local:
                await in_own_thread(self._copy_from, Path(self._remote.access.address), missing)
            else:
                await self._download(tree, missing, seconds, report)
            self._check_all(await asyncio.to_thread(self._missing, found.values()), found)
        return found

    async def place(self, workspace: Path, files: Mapping[bytes, LfsPointer]) -> None:
        """Put contents into a new workspace, in the place of their pointers.

        git in the workspace takes these files for unchanged, whether git-lfs is there or not.

        Args:
            workspace: Its folder, in which no agent works yet.
            files: Those that `fetch` returned.

        Raises:
            RuntimeFailure: the workspace cannot be written.
            DeadlineExceeded: it takes too long.
        """
        if not files:
            return
        try:
            placed = await in_own_thread(self._place, workspace, files)
        except OSError as error:
            raise RuntimeFailure(f"files of Git LFS cannot be written: {error}") from error
        await self._git.run(
            workspace / ".git",
            *("-C", str(workspace), "-c", "core.bare=false"),
            *("update-index", "-z", "--assume-unchanged", "--stdin"),
            given=b"".join(b"%s\0" % path for path in placed),
            seconds=SECONDS,
            environment={"GIT_WORK_TREE": str(workspace)},
        )

    # ------------------------------------------------------------------ fetching

    async def _download(
        self,
        tree: str,
        wanted: Collection[LfsPointer],
        seconds: float,
        report: Callable[[str], object] | None,
    ) -> None:
        check_git_lfs()
        place = self._repository.parent / f".{secrets.token_hex(16)}{NEW}"
        repository = place / "repository"
        try:
            await asyncio.to_thread(_made, repository)
            stream = b"".join((_COMMIT, *map(_added, wanted)))
            await self._git.run(repository, "fast-import", "--quiet", given=stream, seconds=SECONDS)
            settings = {**_SETTINGS, "lfs.storage": str(place / STORE)}
            settings["remote.origin.url"] = self._remote.access.address
            remote, other = self._remote, await self._endpoint(tree)
            if other is not None:
                settings["lfs.url"] = other
                credential = await asyncio.to_thread(credential_for, self._credentials, other)
                access = replace(remote.access, address=other, credential=credential)
                remote = RemoteGit(self._git, access)
            await remote.run(
                repository,
                *("lfs", "fetch", "origin", WANTED),
                doing="the fetch of files of Git LFS",
                seconds=seconds,
                report=report,
                more={"GIT_DIR": str(repository)},
                settings=settings,
            )
            await in_own_thread(self._keep, place / STORE, wanted)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def _endpoint(self, tree: str) -> str | None:
        """Return another server that the repository names for these files; None: it names none.

        Raises:
            LfsMissing: it is one to which this server does not go.
        """
        output = await self._git.run(
            self._repository, "config", "--no-includes", f"--blob={tree}:.lfsconfig",
            "--get", "lfs.url", seconds=SECONDS, accepted=(0, 1, 128),
        )  # fmt: skip
        url = output.decode(errors="replace").strip()
        if not url:
            return None
        try:
            return check_url(url, self._remote.access.protocols, "lfs.url")
        except InvalidParameter as error:
            raise LfsMissing(
                f"the repository's .lfsconfig is not followed: {error.message}",
                hint="leave lfs out to get pointers to the files that Git LFS keeps",
            ) from error

    def _keep(self, fetched: Path, wanted: Collection[LfsPointer]) -> None:
        for each in wanted:
            self._take(object_path(fetched, each.oid), each, move=True)

    def _copy_from(self, checkout: Path, wanted: Collection[LfsPointer]) -> None:
        """Copy contents that a checkout of this machine has; it is only read. Blocks."""
        own = checkout / ".git"
        folder = (own if own.is_dir() else checkout) / STORE
        for each in wanted:
            self._take(object_path(folder, each.oid), each, move=False)

    def _take(self, file: Path, pointer: LfsPointer, *, move: bool) -> None:
        """Take a content into the store, if the file has it. Blocks."""
        target = object_path(self._store, pointer.oid)
        new = target.with_name(f"{pointer.oid}.{secrets.token_hex(4)}.new")
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # the check of all names it
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != pointer.size:
                return
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                if move:
                    file.replace(new)
                else:
                    with new.open("xb") as copy:
                        copy_content(opened, copy)
                with new.open("rb") as taken:  # as it is here, where the server alone writes
                    digest = hashlib.file_digest(taken, "sha256").hexdigest()
                if digest == pointer.oid:
                    new.replace(target)
            finally:
                new.unlink(missing_ok=True)

    def _missing(self, pointers: Collection[LfsPointer]) -> list[LfsPointer]:
        return sorted(
            each for each in set(pointers) if not object_path(self._store, each.oid).exists()
        )

    def _check_all(
        self, missing: Collection[LfsPointer], files: Mapping[bytes, LfsPointer]
    ) -> None:
        if not missing:
            return
        lost = set(missing)
        paths = [p.decode(errors="backslashreplace") for p, each in files.items() if each in lost]
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        raise LfsMissing(
            f"{self._remote.access.shown} does not have the content of files that Git LFS keeps:"
            f" {', '.join(paths[:_SHOWN])}{more}",
            hint="run git lfs fetch in the checkout, or git lfs push where they were made; or leave"
            " lfs out to get pointers",
        )

    # ------------------------------------------------------------------ placing

    def _place(self, workspace: Path, files: Mapping[bytes, LfsPointer]) -> list[bytes]:
        placed: list[bytes] = []
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path, pointer in files.items():
                if self._place_one(root, path, pointer):
                    placed.append(path)
        finally:
            os.close(root)
        return placed

    def _place_one(self, root: int, path: bytes, pointer: LfsPointer) -> bool:
        *folders, name = path.split(b"/")
        folder = os.dup(root)
        try:
            for each in folders:  # a link is not followed
                below = os.open(
                    each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
                )
                os.close(folder)
                folder = below
            found = os.lstat(name, dir_fd=folder)
            if not stat.S_ISREG(found.st_mode):
                return False
            new = b".%s.new" % secrets.token_hex(8).encode()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with (
                object_path(self._store, pointer.oid).open("rb") as content,
                os.fdopen(os.open(new, flags, dir_fd=folder), "wb") as target,
            ):
                copy_content(content, target)
                os.fchmod(target.fileno(), stat.S_IMODE(found.st_mode))
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
        finally:
            os.close(folder)


def object_path(store: Path, oid: str) -> Path:
    """The place of a content in a store, as git-lfs has it."""
    return store / "objects" / oid[:2] / oid[2:4] / oid


def _added(pointer: LfsPointer) -> bytes:
    """The command of `git fast-import` that adds a pointer to a commit."""
    head = "version https://git-lfs.github.com/spec/v1"
    text = f"{head}\noid sha256:{pointer.oid}\nsize {pointer.size}\n"
    return f"M 100644 inline {pointer.oid}\ndata {len(text)}\n{text}\n".encode()


def _made(repository: Path) -> None:
    for folder in ("objects", "refs/heads"):
        (repository / folder).mkdir(mode=0o700, parents=True)
    (repository / "config").write_text(_CONFIG)
    (repository / "HEAD").write_text("ref: refs/heads/none\n")
