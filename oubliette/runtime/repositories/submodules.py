"""Submodules of a workspace that is being made, and those in them.

A repository of a few objects can name submodules without end, each with files without end. So they
are fetched level by level, and their files are counted before they are written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.repositories.checkout_size import check_size
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.runtime.repositories.remote_git import RemoteGit
    from oubliette.runtime.snapshots.git_program import GitProgram

MAX_SUBMODULES: Final = 1000
_DOING: Final = "the fetch of the submodules"
_UPDATE: Final = ("submodule", "update", "--init", "--progress")
_LEFT: Final = "!true"
"""Command in place of the checkout of a submodule that git has fetched: it does nothing."""


async def fetch_all(
    top: Path,
    remote: RemoteGit,
    git: GitProgram,
    *,
    most: int,
    seconds: float,
    report: Callable[[str], object] | None,
) -> None:
    """Fetch the submodules of a checkout, and those in them.

    Args:
        top: Folder of the checkout.
        remote: Fetches them.
        git: The program.
        most: Maximum bytes of their files together; 0: none.
        seconds: Time for all of it.
        report: Gets lines about the progress.

    Raises:
        RepositoryTooLarge: there are too many of them, or their files are too large.
        RepositoryError: git failed; the sentence has the cause and a remedy.
        DeadlineExceeded: the time was too short.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    waiting, found, left = [top], 0, most
    while waiting:
        folder = waiting.pop()
        commits = await _commits(folder, remote, end - loop.time())
        if not commits:
            continue
        found += len(commits)
        if found > MAX_SUBMODULES:
            raise RepositoryTooLarge(
                f"{remote.access.shown} has more than {MAX_SUBMODULES} submodules, with those in"
                " them",
                hint="leave submodules out, and have an agent fetch those that it needs",
            )
        unwritten = await _unwritten(folder, remote, end - loop.time())
        await remote.run(
            folder, *_UPDATE, doing=_DOING, seconds=end - loop.time(), report=report,
            settings=unwritten,
        )  # fmt: skip
        there = [path for path in commits if (folder / path / ".git").exists()]
        for path in there if most else ():
            left -= await check_size(
                git.path,
                commits[path],
                environment=git.environment(folder / path / ".git"),
                folder=folder / path,
                most=max(left, 1),
                seconds=end - loop.time(),
            )
        # It is at its commit already, so that only --force writes its files.
        await remote.run(
            folder, *_UPDATE, "--force", doing=_DOING, seconds=end - loop.time(), report=report
        )
        waiting += [folder / path for path in there if _is_inside(folder / path, top)]


def _is_inside(folder: Path, top: Path) -> bool:
    return folder.resolve().is_relative_to(top.resolve())


async def _commits(folder: Path, remote: RemoteGit, seconds: float) -> dict[str, str]:
    """The paths of the submodules of one checkout, each with its commit."""
    listed = await remote.run(folder, "ls-files", "-s", "-z", doing=_DOING, seconds=seconds)
    entries = [each.partition(b"\t") for each in listed.split(b"\0")[:-1]]
    return {
        path.decode(errors="surrogateescape"): head.split(b" ")[1].decode()
        for head, _, path in entries
        if head.startswith(b"160000 ")
    }


async def _unwritten(folder: Path, remote: RemoteGit, seconds: float) -> dict[str, str]:
    """Return settings with which git fetches the submodules of a checkout and writes no file.

    Those that `.gitmodules` excludes have none, and so stay excluded.
    """
    file = folder / ".gitmodules"
    if file.is_symlink() or not file.is_file():
        raise RuntimeFailure(
            f"{remote.access.shown} has submodules, but no .gitmodules with their addresses",
            hint="leave submodules out, or add it to the repository",
        )
    listed = await remote.run(
        folder, "config", "-z", "-f", str(file), "--list", doing=_DOING, seconds=seconds
    )
    names, excluded = set[str](), set[str]()
    for each in listed.decode(errors="surrogateescape").split("\0"):
        key, _, value = each.partition("\n")
        section, _, last = key.rpartition(".")
        if section.startswith("submodule."):
            names.add(section)
            if last == "update" and value == "none":
                excluded.add(section)
    return {f"{section}.update": _LEFT for section in names - excluded}
