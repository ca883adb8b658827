"""Merges of trees by `git merge-tree`, which touches no checkout; conflicts are data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oubliette.contract.changes import ConflictInfo, ConflictStageInfo
from oubliette.runtime.repositories.git_errors import repository_error

if TYPE_CHECKING:
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom

_CLEAN: Final = 0
_CONFLICTS: Final = 1
_CONFLICT: Final = "CONFLICT ("
_STAGES: Final = {"1": "base", "2": "ours", "3": "theirs"}


@dataclass(frozen=True, slots=True)
class MergedTree:
    """Outcome of a merge."""

    tree: str
    """With conflicts, it has files with markers."""
    conflicts: tuple[ConflictInfo, ...] = ()


async def merge_commits(
    room: MergeRoom, ours: str, theirs: str, names: dict[str, str]
) -> MergedTree:
    """Merge two commits by their common ancestors.

    Args:
        room: Has both; gets the tree.
        ours: Commit of the branch.
        theirs: Commit that is merged into it.
        names: What messages show in the place of a commit.

    Raises:
        HistoryMissing: they have none in common, as far as the clone has the history.
        RepositoryError: git failed.
        DeadlineExceeded: it takes too long.
    """
    done = await room.try_run("merge-tree", "--write-tree", "-z", "--messages", ours, theirs)
    if done.code not in {_CLEAN, _CONFLICTS}:
        raise repository_error(done.errors, where="the project", host="", doing="the merge")
    tree, _, rest = done.output.partition(b"\0")
    if done.code == _CLEAN:
        return MergedTree(tree.decode())
    return MergedTree(tree.decode(), _conflicts(rest, names))


async def merge_trees(
    room: MergeRoom, base: str, ours: str, theirs: str, names: dict[str, str]
) -> MergedTree:
    """Merge two commits as if `base` were their only common ancestor.

    Raises:
        RepositoryError: git failed.
        DeadlineExceeded: it takes too long.
    """
    # git 2.39 cannot be given a base, so two commits are made that have it.
    start = await room.commit(
        await room.line("rev-parse", f"{base}^{{tree}}"), (), "", written=0, made=0
    )
    sides: list[str] = []
    shown = dict(names)
    for each in (ours, theirs):
        tree = await room.line("rev-parse", f"{each}^{{tree}}")
        side = await room.commit(tree, (start,), each, written=0, made=0)
        sides.append(side)
        shown[side] = names.get(each, each)
    return await merge_commits(room, sides[0], sides[1], shown)


def _conflicts(output: bytes, names: dict[str, str]) -> tuple[ConflictInfo, ...]:
    """Read what follows the tree: stages, an empty one, and messages with their paths."""
    parts = output.split(b"\0")
    stages: dict[bytes, list[ConflictStageInfo]] = {}
    place = 0
    while parts[place]:
        head, _, path = parts[place].partition(b"\t")
        mode, oid, stage = head.decode().split(" ")
        version = ConflictStageInfo(stage=_STAGES[stage], mode=mode, oid=oid)
        stages.setdefault(path, []).append(version)
        place += 1
    place += 1
    said: dict[bytes, tuple[str, str]] = {}
    while place < len(parts) and parts[place]:
        count = int(parts[place])
        paths = parts[place + 1 : place + 1 + count]
        kind, message = parts[place + 1 + count : place + 3 + count]
        place += 3 + count
        text = kind.decode(errors="replace")
        if text.startswith(_CONFLICT):
            words = _named(message.decode(errors="backslashreplace").strip(), names)
            for path in paths:
                said.setdefault(path, (text.removeprefix(_CONFLICT).rstrip(")"), words))
    return tuple(
        ConflictInfo(
            path=path.decode(errors="backslashreplace"),
            kind=said.get(path, ("", ""))[0],
            message=said.get(path, ("", ""))[1],
            stages=tuple(stages.get(path, ())),
        )
        for path in sorted(stages.keys() | said.keys())
    )


def _named(text: str, names: dict[str, str]) -> str:
    for commit, name in names.items():
        text = text.replace(commit, name)
    return text
