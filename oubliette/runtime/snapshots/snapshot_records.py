"""Values of snapshots: their limits, what they belong to, what they contain."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from pathlib import Path

Moment = Literal[
    "start", "end", "final", "interrupt", "checkpoint", "branch", "restore", "restored"
]
"""Around a turn; before an interrupt; by request; before it was copied for another session; before
and after an older one was restored."""

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one snapshot."""

    max_file_bytes: int = 20 * 1024 * 1024
    """Larger files are recorded by size and SHA-256."""
    max_entries: int = 200_000
    max_bytes: int = 0
    """Size of all snapshots of the project above which no more is taken; 0: no limit."""
    seconds: float = 60.0


class SnapshotLabel(msgspec.Struct, frozen=True, kw_only=True):
    """Session and turn that a snapshot belongs to; its ref and its trailers."""

    session_id: str
    turn: int
    moment: Moment = "end"
    tag: str = ""
    """Distinguishes several of a moment: the name of a checkpoint, or the time of a restore."""
    agent: str = ""
    model: str = ""
    cost_usd: float | None = None
    when: float = 0.0
    """Second since 1970."""

    @property
    def name(self) -> str:
        """The end of its ref: session and turn."""
        if not _ID.fullmatch(self.session_id):
            raise ValueError(f"{self.session_id!r} is no id of a session")
        if self.tag and not TAG.fullmatch(self.tag):
            raise ValueError(f"{self.tag!r} is no name of a checkpoint")
        suffix = "" if self.moment == "end" else f"-{self.moment}"
        return f"{self.session_id}/{self.turn}{suffix}" + (f"-{self.tag}" if self.tag else "")

    @property
    def message(self) -> str:
        trailers = {
            "Session": self.session_id,
            "Turn": str(self.turn),
            "Moment": self.moment,
            "Name": self.tag,
            "Agent": self.agent,
            "Model": self.model,
            "Cost": "" if self.cost_usd is None else f"{self.cost_usd:.6f}",
        }
        lines = [f"{key}: {' '.join(value.split())}" for key, value in trailers.items() if value]
        return f"Turn {self.turn} of {self.session_id}\n\n" + "\n".join(lines) + "\n"


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a workspace that came from another node."""

    commit: str
    rest: str
    """Commits of the snapshot that has them."""
    written: int
    missing: int
    """Files that are not as they were, because snapshots have no content of them."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was taken."""

    ref: str | None
    """None: the workspace is empty, and always was."""
    changed: bool
    """Whether its files differ from those of the snapshot before it."""
    commit: str | None = None
    rest: str | None = None
    """Commits of its two trees."""
    files: int = 0
    insertions: int | None = 0
    deletions: int | None = 0
    """Lines; None: it takes too long to count them."""
    entries: int = 0
    left_out: int = 0
    """Entries that it does not contain: sockets, pipes, devices, unreadable and large files."""
    left_out_shown: dict[str, str] = {}
    """Some of them, and the reasons."""
    torn: bool = False
    """Whether the workspace was changing all the while."""
    brought: Brought | None = None
    """Files that came from another node, before it was taken."""
    home: Brought | None = None
    """Files of the agent's session that came from another node."""
    warning: str = ""
    """Reason for which files of another node may be missing."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a restore."""

    written: int
    removed: int
    missing_count: int
    """Files that are not as they were, because the snapshot does not have their content."""
    missing: dict[str, str]
    """Some of them, and what is known."""


class SnapshotCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is to become equal to a snapshot."""

    folder: str
    """Its path on the server's machine."""
    old_branch: str = ""
    """Branch that gets the new name, if it is checked out in the snapshot."""
    new_branch: str = ""
    """Branch that is checked out in the copy; empty: that of the snapshot."""
    large_from: str = ""
    """Path of a workspace with the files of which snapshots have no content; empty: they are
    left out."""
    keep_free: int = 0
    """Bytes that such files leave free on the disk."""


class StoredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot in the list of them."""

    ref: str
    commit: str


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
    """The size of the packs of all repositories in a folder."""
    size = 0
    for pack in project.glob("*/objects/pack/*"):
        with contextlib.suppress(FileNotFoundError):  # many were made one meanwhile
            size += pack.stat().st_size
    return size
