"""Files as git stores them: `.gitattributes` may give those of a checkout another form.

With `eol=crlf`, for example, a checkout has other ends of lines than the repository; a snapshot has
those of the checkout. git itself converts them back, in a folder with nothing but these files. It
knows no filter there, so it starts no program.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.merging.laid_out import lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.repositories.merging.merge_room import MergeRoom

GITATTRIBUTES: Final = b".gitattributes"
MAX_BYTES: Final = 1 << 20
"""Largest `.gitattributes` that is read."""
_CONVERTS: Final = re.compile(rb"(?<![\w-])(?:text|eol|crlf|ident|working-tree-encoding)(?![\w-])")


async def store_forms(
    room: MergeRoom, rules: Mapping[bytes, str], files: Mapping[bytes, str]
) -> None:
    """Give files in the room's index the form in which git stores them.

    Files that cannot be converted, such as text that is not in its encoding, stay as they are.

    Args:
        room: Has the contents, and the files in its index.
        rules: Path of each `.gitattributes` that is a file, and the name of its content.
        files: Path of each file that has changed, and the name of its content.

    Raises:
        RuntimeFailure: git failed.
        DeadlineExceeded: it takes too long.
    """
    if not rules or not files:
        return
    folder = room.folder / f"forms-{secrets.token_hex(4)}"
    there = await lay_out(room, folder, rules, MAX_BYTES)
    if not await asyncio.to_thread(_converts, folder, there):
        return
    await lay_out(room, folder, {path: blob for path, blob in files.items() if path not in there})
    settings = ("core.bare=false", "core.autocrlf=false", "core.safecrlf=false")
    await room.try_run(  # if it fails, the index is as it was
        *("-C", str(folder), *(word for each in settings for word in ("-c", each))),
        *("-c", "core.fileMode=false", "update-index", "-z", "--stdin"),
        given=b"".join(b"%s\0" % path for path in sorted(files)),
        more={"GIT_WORK_TREE": str(folder)},
    )


def _converts(folder: Path, rules: set[bytes]) -> bool:
    """Whether any of these files gives files another form. Blocks."""
    return any(
        _CONVERTS.search(Path(os.fsdecode(bytes(folder) + b"/" + path)).read_bytes())
        for path in rules
    )
