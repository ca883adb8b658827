"""Ports of what keeps copies of snapshots away from the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.copy_records import (
        CopyName,
        CopyPart,
        CopyPlace,
        CopyRecord,
    )

FETCHED: Final = "refs/second"
"""Refs, in a repository, of the newest snapshot of its copy."""


class SnapshotCopies(Protocol):
    """Copies of repositories. Their owner calls one method at a time for each copy."""

    async def exists(self, name: CopyName) -> bool:
        """Return whether there is a copy.

        Raises:
            OublietteError: the copies cannot be reached.
        """
        ...

    async def send(self, repository: Path, name: CopyName) -> None:
        """Send what is new in a repository; a copy that does not lead to it is not changed.

        Raises:
            OublietteError: it was not sent; contains the reason.
        """
        ...

    async def fetch_newest(self, repository: Path, name: CopyName) -> None:
        """Fetch the newest snapshot of a copy, as refs below `FETCHED`.

        Raises:
            OublietteError: the copy cannot be used.
        """
        ...

    async def fetch_turns(self, repository: Path, name: CopyName) -> None:
        """Fetch all other snapshots of a copy, after the newest one, under their own names.

        Raises:
            OublietteError: the copy cannot be used.
        """
        ...

    async def drop(self, name: CopyName) -> None:
        """Remove a copy, if there is one.

        Raises:
            OublietteError: it cannot be removed now.
        """
        ...

    async def projects(self) -> list[str]:
        """Return the projects that have copies and may be deleted.

        Raises:
            OublietteError: the copies cannot be reached.
        """
        ...

    async def forget(self, project_id: str) -> None:
        """Remove the copies of a project that is deleted.

        Raises:
            OublietteError: they cannot be removed now.
        """
        ...


class CopyParts(Protocol):
    """Records and parts of copies, and where these are kept."""

    async def read(self, name: CopyName) -> CopyRecord | None:
        """Return the record of a copy; None: there is none.

        Raises:
            OublietteError: the records cannot be reached.
        """
        ...

    async def place(self, name: CopyName, record: CopyRecord | None) -> CopyPlace:
        """Return the place of new parts: that of the record, as long as it can have them.

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
        """Return the projects that are deleted and have copies.

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
