"""Submodules of a workspace that is being made, and those in them.

A repository of a few objects can name submodules without end, each with files without end. So they
are fetched level by level, each with the room that those before it have left, and their files are
counted before they are written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Final

from oubliette.errors import DeadlineExceeded, RuntimeFailure
from oubliette.runtime.repositories.checkout_size import check_size
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge
from oubliette.runtime.repositories.remote_git import RemoteGit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        most: Maximum bytes of what they send together, and of their files together; 0: none.
        seconds: Time for all of it.
        report: Gets lines about the progress.

    Raises:
        RepositoryTooLarge: there are too many of them, or they are too large.
        RepositoryError: git failed; the sentence has the cause and a remedy.
        DeadlineExceeded: the time was too short.
    """
    end = asyncio.get_running_loop().time() + seconds
    try:
        await _fetch_levels(top, remote, git, most=most, end=end, report=report)
    except DeadlineExceeded as error:  # of one step, which had what was left
        raise DeadlineExceeded(
            f"{_DOING} of {remote.access.shown} took more than {seconds:g} s",
            hint="raise repositories.clone_seconds, or leave submodules out",
        ) from error


async def _fetch_levels(
    top: Path,
    remote: RemoteGit,
    git: GitProgram,
    *,
    most: int,
    end: float,
    report: Callable[[str], object] | None,
) -> None:
    loop = asyncio.get_running_loop()
    waiting, found, left, room = [top], 0, most, most
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
        for path in commits:
            limited = RemoteGit(git, dataclasses.replace(remote.access, max_bytes=room))
            room = await _fetch_one(
                limited, folder, path, settings=unwritten, seconds=end - loop.time(), report=report
            )
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


async def _fetch_one(
    remote: RemoteGit,
    folder: Path,
    path: str,
    *,
    settings: dict[str, str],
    seconds: float,
    report: Callable[[str], object] | None,
) -> int:
    """Fetch one submodule of a checkout; return the bytes that are left for the others.

    Each file that git writes, and all of them together, have the limit of `remote`.
    """
    most = remote.access.max_bytes
    try:
        # The path is no pattern, which could be that of all of them.
        await remote.run(
            folder, "--literal-pathspecs", *_UPDATE, "--", path, doing=_DOING, seconds=seconds,
            report=report, settings=settings,
        )  # fmt: skip
        size = await asyncio.to_thread(_written, folder / path) if most else 0
    except RepositoryTooLarge:
        size = most
    if most and size >= most:
        raise RepositoryTooLarge(
            f"the submodules of {remote.access.shown} are together larger than"
            " repositories.max_bytes",
            hint="raise repositories.max_bytes, or leave submodules out, and have an agent fetch"
            " those that it needs",
        )
    return most - size


def _written(submodule: Path) -> int:
    """The bytes that git has written for a submodule that it has just fetched. Blocks."""
    try:
        link = (submodule / ".git").read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):  # .gitmodules excludes it
        return 0
    own = submodule / link.removeprefix("gitdir: ").removesuffix("\n")
    return sum(
        os.lstat(os.path.join(folder, each)).st_size  # noqa: PTH118 - a thousand Paths take longer
        for folder, _, names in os.walk(own)
        for each in names
    )


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
