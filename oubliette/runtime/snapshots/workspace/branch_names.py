"""A branch of its own for a copy of a workspace.

The repository may be an agent's, so no git runs on it: the three files that name a branch are read
and written from their folders, and no link is followed. What is not as git writes it, stays.

Standard library only: the program that writes workspaces imports this module.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from oubliette.runtime.snapshots.workspace.tree_walk import FILE, FOLDER

if TYPE_CHECKING:
    from collections.abc import Generator

_HEADS: Final = "refs/heads/"
_HEADS_REF: Final = b"ref: refs/heads/"
_COMMIT: Final = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX: Final = 64 * 1024 * 1024
"""Size of a file of refs that is read at most."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def begin_branch(workspace: int, old: str, new: str) -> bool:
    """Check out a new branch of the repository in a folder, at the commit that is checked out.

    Args:
        workspace: Descriptor of the folder.
        old: Name without `refs/heads/` of a branch that gets the new name, if it is checked out.
            Another one stays beside the new one.
        new: Name that no branch has.

    Returns:
        Whether it could be done.
    """
    try:
        git = os.open(".git", FOLDER, dir_fd=workspace)
    except OSError:
        return False  # none, or a file
    try:
        return _begin(git, old, new)
    except OSError:
        return False  # an agent has put something else in the place of a folder
    finally:
        os.close(git)


def _begin(git: int, old: str, new: str) -> bool:
    head = _read(git, "HEAD").strip()
    if _COMMIT.fullmatch(head):
        current, commit = "", head
    elif head.startswith(_HEADS_REF):
        current = os.fsdecode(head.removeprefix(_HEADS_REF))
        commit = _commit_of(git, current)
    else:
        return False
    if commit:
        _write(git, f"{_HEADS}{new}", commit + b"\n")
    _write(git, "HEAD", f"ref: {_HEADS}{new}\n".encode())
    if current == old:
        _forget(git, old)
    return True


def _commit_of(git: int, branch: str) -> bytes:
    """Return the commit of a branch; nothing if it has none."""
    if any(name in {"", ".", ".."} for name in branch.split("/")):
        return b""
    commit = _read(git, f"{_HEADS}{branch}").strip()  # which git prefers
    if not commit:
        ending = os.fsencode(f" {_HEADS}{branch}")
        packed = _read(git, "packed-refs").splitlines()
        found = [line for line in packed if line.endswith(ending)]
        commit = found[0].partition(b" ")[0] if found else b""
    return commit if _COMMIT.fullmatch(commit) else b""


def _forget(git: int, branch: str) -> None:
    if _read(git, f"{_HEADS}{branch}"):
        _remove(git, f"{_HEADS}{branch}")
    lines = _read(git, "packed-refs").splitlines(keepends=True)
    kept = [line for line in lines if not line.endswith(f" {_HEADS}{branch}\n".encode())]
    if len(kept) < len(lines):
        _write(git, "packed-refs", b"".join(kept))


def _read(git: int, path: str) -> bytes:
    """Return the content of a file; nothing where there is none that can be read."""
    try:
        with _folder_of(git, path, make=False) as (folder, name):
            fd = os.open(name, FILE, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            content = file.read(_MAX + 1)
    except OSError:
        return b""
    return content if len(content) <= _MAX else b""


def _write(git: int, path: str, content: bytes) -> None:
    with _folder_of(git, path, make=True) as (folder, name):
        beside = f".{secrets.token_hex(16)}.new"
        with os.fdopen(os.open(beside, _NEW, 0o644, dir_fd=folder), "wb") as file:
            file.write(content)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(git: int, path: str) -> None:
    with _folder_of(git, path, make=False) as (folder, name):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _folder_of(git: int, path: str, *, make: bool) -> Generator[tuple[int, str]]:
    """Give a descriptor of the folder of a path, and the name in it."""
    *names, last = path.split("/")
    folder = os.dup(git)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder, last
    finally:
        os.close(folder)
