"""Copies of snapshots away from the node: their records, and the port of what keeps them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

PART_ID: Final = re.compile(r"[0-9a-f]{32}")
"""Ids of parts."""
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}")
"""Names of copies, and ids of projects."""
UNSENT: Final = "unsent-"
"""Beginning of the names of files, in a repository, with a part that is on its way."""


class CopyName(msgspec.Struct, frozen=True):
    """Name of the copy of one repository."""

    project_id: str
    name: str
    """Unique in its project, such as the id of a workspace."""


class CopyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a copy: a bundle of git with what was new when it was sent."""

    id: str
    bytes: int
    sha256: str


class CopyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place of new parts of a copy."""

    holder: str = ""
    """Node that is to have them; empty: they are where the record is."""
    whole: bool
    """Whether it needs all of the copy, as it lacks the parts before."""


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one copy: its parts in their order, and the snapshot that they end with."""

    version: int
    """Rises by one with each change."""
    holder: str = ""
    """Node that has the parts; empty: they are where the record is."""
    files: str
    rest: str
    """Commits of the newest snapshot."""
    parts: tuple[CopyPart, ...]

    @property
    def heads(self) -> dict[str, str]:
        """Commits of the newest snapshot, by part of its tree."""
        return {"files": self.files, "rest": self.rest}

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


FETCHED: Final = "refs/second"
"""Refs, in a repository, of the newest snapshot of its copy."""


class CopyParts(Protocol):
    """Records and parts of copies, and where these are kept."""

    async def read(self, name: CopyName) -> CopyRecord | None:
        """Return the record of a copy; None: there is none.

        Raises:
            OublietteError: the records cannot be reached.
        """
        ...

    async def place(self, name: CopyName, record: CopyRecord | None) -> CopyPlace:
        """The place of new parts: that of the record, as long as it can have them.

        Raises:
            OublietteError: there is none now.
        """
        ...

    async def put(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Store a part, which counts once it is in the record.

        Raises:
            OublietteError: it cannot be stored.
        """
        ...

    async def get(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Write a part into a new file.

        Raises:
            OublietteError: it cannot be read.
        """
        ...

    async def publish(self, name: CopyName, record: CopyRecord) -> None:
        """Replace the record by its next version, and remove parts that are in it no more.

        Raises:
            Conflict: another node has replaced it since.
            OublietteError: it cannot be stored.
        """
        ...

    async def projects(self) -> list[str]:
        """The projects that are deleted and have copies.

        Raises:
            OublietteError: the records cannot be reached.
        """
        ...

    async def forget(self, project_id: str) -> None:
        """Remove the records and the parts of a project that is deleted.

        Raises:
            OublietteError: they cannot be removed now.
        """
        ...
