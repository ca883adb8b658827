"""Workspaces that are being made, where no agent sees them, until they are moved to their place.

What a killed server leaves of them is removed by the next one (`leftovers`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.records import Project

NAME: Final = re.compile(r"\.[0-9a-f]{32}\.new")
"""Names of their folders."""


def make_blank(repositories: Path, project: Project) -> Path:
    """Make an empty folder that belongs to the user of a project. Blocks.

    Raises:
        RuntimeFailure: the file system refused.
    """
    folder = repositories / project.id
    made = folder / f".{secrets.token_hex(16)}.new"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.mkdir(mode=0o755)
        made.chmod(0o755)  # not left to the umask
        safe_files.own(made, project.uid)
    except OSError as error:
        raise RuntimeFailure(f"the workspace cannot be made: {error.strerror}") from error
    return made


def give(made: Path, project: Project) -> None:
    """Give a folder, and all that the server has put into it, to the user of a project. Blocks."""
    for _, _, files, fd in os.fwalk(made):
        safe_files.own(fd, project.uid)
        for name in files:
            safe_files.own_entry(fd, name, project.uid)


def discard(made: Path) -> None:
    """Remove such a folder, if it was not moved. Blocks.

    Raises:
        RuntimeFailure: the file system refused.
    """
    with contextlib.suppress(FileNotFoundError), safe_files.opened(made.parent) as folder:
        safe_files.remove(folder, made.name)
