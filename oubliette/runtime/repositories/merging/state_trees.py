"""Trees of a workspace's states as git's users expect them: the base with what has changed.

A snapshot has all files of a workspace. What `.gitignore` names and the base does not have stays
out of what is merged. What a snapshot cannot have stays as it was in the base: submodules, the
content of large or unreadable files, and Oubliette's own folders. So do files of Git LFS whose
content was written. All others are in the form in which git stores them.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.runtime.repositories.merging.laid_out import lay_out
from oubliette.runtime.repositories.merging.lfs_files import (
    LFS_REASON,
    base_pointers,
    unchanged,
    written_content,
)
from oubliette.runtime.repositories.merging.stored_forms import GITATTRIBUTES, store_forms
from oubliette.runtime.snapshots.git_program import git_failure
from oubliette.runtime.snapshots.workspace.tree_table import placed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from oubliette.runtime.repositories.lfs_pointers import LfsPointer
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom
    from oubliette.runtime.snapshots.history_records import UnstoredFile, WorkspaceState

REFUSED_REASON: Final = "git refuses this name in a checkout"
GITLINK: Final = "160000"
LINK: Final = "120000"
NOTHING: Final = "000000"
_FILES: Final = frozenset({"100644", "100755"})
_DIFF: Final = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")


class TreeEntry(NamedTuple):
    """A file, link or submodule of a tree."""

    mode: str
    blob: str


class TreeChange(NamedTuple):
    """A path that differs between two trees."""

    path: bytes
    old: TreeEntry
    new: TreeEntry


@dataclass(frozen=True, slots=True)
class StateTree:
    """A tree that can be merged."""

    tree: str
    ignored: frozenset[bytes] = frozenset()
    """Files that are left out because `.gitignore` names them."""
    left_out: dict[bytes, str] = field(default_factory=dict[bytes, str])
    """Other files that are left out, with the reasons."""


class StateTrees:
    """Trees of the states of one workspace.

    Args:
        room: Has the objects of the repository and of the snapshots.
        base: Commit that the workspace was made of.
    """

    def __init__(self, room: MergeRoom, base: str) -> None:
        self._room = room
        self._base = base
        self._entries: dict[bytes, TreeEntry] | None = None
        self._links: frozenset[bytes] = frozenset()

    async def tree_of(self, state: WorkspaceState) -> StateTree:
        """The tree of a state."""
        base = await self.base_entries()
        output = await self._room.run(*_DIFF, f"{self._base}^{{tree}}", state.tree)
        unstored = {each.path: each for each in state.unstored}
        changes = [each for each in changes_in(output) if self._counts(each, unstored)]
        added = {each.path for each in changes if each.old.mode == NOTHING}
        unknown = {path for path in unstored if path not in base}
        skipped = await self._ignored(base, changes, added | unknown)
        changes = [each for each in changes if each.path not in skipped]
        lfs = await written_content(self._room, *for_attributes(base, changes))
        pointers = await self._pointers(base, lfs | unstored.keys())
        kept = {each.path: each.new.blob for each in changes if each.path in lfs}
        changes = [each for each in changes if each.path not in lfs]
        lfs -= await unchanged(self._room, kept, pointers)
        left_out = dict.fromkeys(sorted(lfs), LFS_REASON) | {
            path: each.reason
            for path, each in unstored.items()
            if path not in skipped
            and self._is_file(path)
            and not (path in pointers and pointers[path].oid == each.sha256)
            and not await self._is_base(base.get(path), each)
        }
        left_out |= dict.fromkeys(filter(self._is_refused, state.refused), REFUSED_REASON)
        tree = await self._written(base, changes)
        return StateTree(tree, frozenset(skipped & added), left_out)

    async def changes_to(self, tree: str) -> list[TreeChange]:
        """The paths in which a tree differs from the base."""
        return list(changes_in(await self._room.run(*_DIFF, f"{self._base}^{{tree}}", tree)))

    async def base_entries(self) -> dict[bytes, TreeEntry]:
        """The files of the base."""
        if self._entries is None:
            output = await self._room.run("ls-tree", "-r", "-z", "--full-tree", self._base)
            entries: dict[bytes, TreeEntry] = {}
            for line in output.split(b"\0")[:-1]:
                head, _, path = line.partition(b"\t")
                mode, _, blob = head.decode().split(" ")
                entries[path] = TreeEntry(mode, blob)
            self._entries = entries
            self._links = frozenset(p for p, each in entries.items() if each.mode == GITLINK)
        return self._entries

    async def _pointers(
        self, base: dict[bytes, TreeEntry], paths: set[bytes]
    ) -> dict[bytes, LfsPointer]:
        entries = {path: base[path] for path in paths if path in base}
        files = {path: each.blob for path, each in entries.items() if each.mode in _FILES}
        return await base_pointers(self._room, files)

    def _counts(self, change: TreeChange, unstored: dict[bytes, UnstoredFile]) -> bool:
        path, old = change.path, change.old
        above = list(_above(path))
        if old.mode == GITLINK or any(each in self._links for each in above):
            return False  # a snapshot has the files of a submodule, and no submodule
        if old.mode == NOTHING:
            return True
        if change.new.mode == NOTHING and any(each in unstored for each in (path, *above)):
            return False
        return placed(path, link=old.mode == LINK)[0] == "files"

    def _is_file(self, path: bytes) -> bool:
        """Whether a path is neither Oubliette's own, nor of a `.git` or a submodule."""
        return placed(path, link=False)[0] == "files" and not any(
            each in self._links for each in _above(path)
        )

    def _is_refused(self, path: bytes) -> bool:
        """Whether a path with a name that git refuses is new, and not of a submodule."""
        assert self._entries is not None
        return path not in self._entries and not any(each in self._links for each in _above(path))

    async def _ignored(
        self, base: dict[bytes, TreeEntry], changes: list[TreeChange], paths: set[bytes]
    ) -> set[bytes]:
        """Return the paths that the base's rules, or those of the workspace, name."""
        before, now = _named(GITIGNORE, base, ()), _named(GITIGNORE, base, changes)
        found: set[bytes] = set()
        for rules in (before, *((now,) if now != before else ())):
            found |= await ignored(self._room, rules, paths - found)
        return found

    async def _is_base(self, entry: TreeEntry | None, file: UnstoredFile) -> bool:
        """Whether a file without content is as it was in the base."""
        if entry is None or file.size is None or entry.mode not in _FILES:
            return False
        size = await self._room.line("cat-file", "-s", entry.blob)
        if int(size) != file.size:
            return False
        copy = self._room.folder / "large"
        await asyncio.to_thread(copy.write_bytes, b"")
        await self._room.run_onto(copy, "cat-file", "blob", entry.blob)
        digest = await asyncio.to_thread(_digest, copy)
        await asyncio.to_thread(copy.unlink)
        return digest == file.sha256

    async def _written(self, base: dict[bytes, TreeEntry], changes: list[TreeChange]) -> str:
        if not changes:
            return await self._room.line("rev-parse", f"{self._base}^{{tree}}")
        await self._room.run("read-tree", self._base)
        # What is gone comes first: a folder may have taken the place of a file.
        gone = [b"0 %s\t%s\0" % (b"0" * 40, e.path) for e in changes if e.new.mode == NOTHING]
        new = [
            b"%s %s\t%s\0" % (each.new.mode.encode(), each.new.blob.encode(), each.path)
            for each in changes
            if each.new.mode != NOTHING
        ]
        given = b"".join((*gone, *new))
        await self._room.run("update-index", "-z", "--index-info", given=given)
        await store_forms(self._room, *for_attributes(base, changes))
        return await self._room.line("write-tree")


def changes_in(listing: bytes) -> Iterator[TreeChange]:
    """Read the output of `git diff-tree -r -z --raw`."""
    parts = listing.split(b"\0")[:-1]
    for head, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old, new, _ = head[1:].decode().split(" ")
        yield TreeChange(path, TreeEntry(old_mode, old), TreeEntry(new_mode, new))


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _named(
    name: bytes, base: dict[bytes, TreeEntry], changes: Sequence[TreeChange]
) -> dict[bytes, str]:
    """Return the files of this name in the base with the changes, and their contents' names."""
    found = {path: each for path, each in base.items() if _last(path) == name}
    found |= {each.path: each.new for each in changes if _last(each.path) == name}
    return {path: each.blob for path, each in found.items() if each.mode in _FILES}


def for_attributes(
    base: dict[bytes, TreeEntry], changes: Sequence[TreeChange]
) -> tuple[dict[bytes, str], dict[bytes, str]]:
    """Return the files with attributes, the changed files, and the names of their contents."""
    files = {each.path: each.new.blob for each in changes if each.new.mode in _FILES}
    return _named(GITATTRIBUTES, base, changes), files


def _last(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


GITIGNORE: Final = b".gitignore"
MAX_BYTES: Final = 1 << 20
"""Largest `.gitignore` that is read."""
_NONE: Final = 1
"""Exit code of git where no path is ignored."""


async def ignored(
    room: MergeRoom, rules: Mapping[bytes, str], paths: Collection[bytes]
) -> set[bytes]:
    """Return those of the paths that are ignored.

    Args:
        room: Has the contents.
        rules: Path of each `.gitignore` that is a file, and the name of its content.
        paths: Paths of files.
    """
    if not rules or not paths:
        return set()
    folder = room.folder / f"rules-{secrets.token_hex(4)}"
    await lay_out(room, folder, rules, MAX_BYTES)
    more = {"GIT_WORK_TREE": str(folder), "GIT_LITERAL_PATHSPECS": None, "GIT_INDEX_FILE": None}
    # A leading ./ keeps git from reading :(…) in a name as more than a name.
    given = b"".join(b"./%s\0" % path for path in sorted(paths))
    done = await room.try_run(
        *("-C", str(folder), "-c", "core.bare=false", "-c", "core.excludesFile=/dev/null"),
        *("check-ignore", "-z", "--stdin", "--no-index"),
        given=given,
        more=more,
    )
    if done.code not in {0, _NONE}:
        raise git_failure("check-ignore", done)
    return {each.removeprefix(b"./") for each in done.output.split(b"\0") if each}
