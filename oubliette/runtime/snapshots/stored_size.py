"""Size of a project's snapshots, which an agent can make grow with each turn."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from pathlib import Path


def check_room(project: Path, limit: int) -> None:
    """Check that a project may store another snapshot. Blocks for some milliseconds.

    Args:
        project: Folder of its repositories, which need not exist.
        limit: Bytes that they may have; 0: no limit.

    Raises:
        LimitExceeded: they have as many.
    """
    if limit and stored_bytes(project) >= limit:
        raise LimitExceeded(
            f"the snapshots of this project take all of projects.max_bytes ({limit})",
            hint="raise it, or go on in another project",
        )


def stored_bytes(project: Path) -> int:
    """Return the size of the packs of all repositories in a folder."""
    size = 0
    for pack in project.glob("*/objects/pack/*"):
        with contextlib.suppress(FileNotFoundError):  # many were made one meanwhile
            size += pack.stat().st_size
    return size
