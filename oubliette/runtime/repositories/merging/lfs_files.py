"""Files of Git LFS in whose place a workspace has content, which the server cannot store there.

Workspaces have pointers to such files, or their content; a repository has nothing but pointers.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.lfs_pointers import MAX_POINTER, read_pointer
from oubliette.runtime.repositories.merging.laid_out import lay_out
from oubliette.runtime.repositories.merging.stored_forms import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.repositories.lfs_pointers import LfsPointer
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom

LFS_REASON: Final = "Git LFS keeps it, where this server cannot store its content"
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_USES: Final = b"filter=lfs"


async def written_content(
    room: MergeRoom, rules: Mapping[bytes, str], files: Mapping[bytes, str]
) -> set[bytes]:
    """Return those of the files that Git LFS keeps and that are no pointers.

    Args:
        room: Has the contents.
        rules: Path of each `.gitattributes` that is a file, and the name of its content.
        files: Path of each file that has changed, and the name of its content.
    """
    if not rules or not files:
        return set()
    folder = room.folder / f"lfs-{secrets.token_hex(4)}"
    there = await lay_out(room, folder, rules, MAX_BYTES)
    contents = [await asyncio.to_thread(_read, folder, path) for path in there]
    if not any(_USES in content for content in contents):
        return set()
    output = await room.run(
        *("-C", str(folder), "-c", "core.bare=false", "check-attr", "-z", "--stdin", "filter"),
        given=b"".join(b"%s\0" % path for path in files),
        more={"GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": None},
    )
    parts = output.split(b"\0")[:-1]
    kept = {
        path: files[path]
        for path, value in zip(parts[::3], parts[2::3], strict=True)
        if value == b"lfs" and path not in there
    }
    small = await lay_out(room, folder, kept, MAX_POINTER)
    pointers = {
        path
        for path in small
        if (await asyncio.to_thread(_read, folder, path)).startswith(_POINTER)
    }
    return kept.keys() - pointers


async def base_pointers(room: MergeRoom, files: Mapping[bytes, str]) -> dict[bytes, LfsPointer]:
    """Return those of the files that are pointers, with what they name."""
    if not files:
        return {}
    folder = room.folder / f"pointers-{secrets.token_hex(4)}"
    found: dict[bytes, LfsPointer] = {}
    for path in await lay_out(room, folder, files, MAX_POINTER):
        pointer = read_pointer(await asyncio.to_thread(_read, folder, path))
        if pointer is not None:
            found[path] = pointer
    return found


async def unchanged(
    room: MergeRoom, files: Mapping[bytes, str], pointers: Mapping[bytes, LfsPointer]
) -> set[bytes]:
    """Return those of the files whose content is what the pointers in their place name.

    Args:
        room: Has the contents.
        files: Path of each file, and the name of its content.
        pointers: Pointers of the base.
    """
    wanted = {path: blob for path, blob in files.items() if path in pointers}
    if not wanted:
        return set()
    folder = room.folder / f"contents-{secrets.token_hex(4)}"
    there = await lay_out(room, folder, wanted)
    try:
        return {p for p in there if await asyncio.to_thread(_digest, folder, p) == pointers[p].oid}
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _digest(folder: Path, path: bytes) -> str:
    with Path(os.fsdecode(bytes(folder) + b"/" + path)).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(folder: Path, path: bytes) -> bytes:
    return Path(os.fsdecode(bytes(folder) + b"/" + path)).read_bytes()
