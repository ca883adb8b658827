"""DatabaseCopies, the copies of snapshots of which all is in the database that the nodes share.

What asks the database raises StorageUnavailable if it does not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.copies import CopyPlace, CopyRecord
from oubliette.runtime.store.postgres.cluster import snapshot_copies
from oubliette.runtime.store.postgres.cluster.snapshot_copies import CHUNK_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.copies import CopyName, CopyPart
    from oubliette.runtime.store.postgres.control_thread import ControlThread
    from oubliette.runtime.store.postgres.fence import NodeFence


class CopyRecords:
    """Records of copies, in PostgreSQL.

    Args:
        connection: To the database, for this alone: chunks are large.
        fence: Epoch of this node, which its writes carry.
    """

    def __init__(self, connection: ControlThread, fence: NodeFence) -> None:
        self.run = connection.run
        self.fence = fence

    async def read(self, name: CopyName) -> CopyRecord | None:
        """Return the record of a copy; None: there is none."""
        found = await self.run(snapshot_copies.read_copy, _key(name))
        return None if found is None else msgspec.json.decode(found, type=CopyRecord)

    async def publish(self, name: CopyName, record: CopyRecord) -> None:
        """Replace the record by its next version.

        Raises:
            Conflict: another node has replaced it since.
            StaleNode: the epoch of this node has ended.
            NotHere: this node is not the home of the project.
        """
        await self.run(
            snapshot_copies.publish_copy,
            self.fence,
            _key(name),
            version=record.version,
            holder=record.holder,
            parts=[part.id for part in record.parts],
            record=msgspec.json.encode(record),
        )

    async def projects(self) -> list[str]:
        """The projects that are deleted and have copies."""
        return await self.run(snapshot_copies.deleted_projects)

    async def forget(self, project_id: str) -> None:
        """Remove the records of a project that is deleted, and what the database has of its parts.

        Raises:
            StaleNode: the epoch of this node has ended.
        """
        while await self.run(snapshot_copies.forget_copies, self.fence, project_id):
            pass


class DatabaseCopies(CopyRecords):
    """Records and parts of copies, in PostgreSQL."""

    async def place(self, name: CopyName, record: CopyRecord | None) -> CopyPlace:
        """Return that new parts are in the database, beside those that are there."""
        del name
        return CopyPlace(whole=record is None or record.holder != "")

    async def put(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Store a part in chunks, each in a transaction of its own.

        Raises:
            StaleNode: the epoch of this node has ended.
            NotHere: this node is not the home of the project.
        """
        del holder
        opened = await asyncio.to_thread(file.open, "rb")
        try:
            number = 0
            while data := await asyncio.to_thread(opened.read, CHUNK_BYTES):
                await self.run(
                    snapshot_copies.put_chunk,
                    self.fence,
                    _key(name),
                    part=part.id,
                    number=number,
                    data=data,
                )
                number += 1
        finally:
            await asyncio.to_thread(opened.close)

    async def get(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Write a part into a new file, chunk by chunk.

        Raises:
            RuntimeFailure: a chunk is missing.
        """
        del holder
        opened = await asyncio.to_thread(file.open, "xb")
        try:
            for number in range(-(-part.bytes // CHUNK_BYTES)):
                data = await self.run(snapshot_copies.get_chunk, _key(name), part.id, number)
                if data is None:
                    raise RuntimeFailure(f"part {part.id} of the copy is not whole")
                await asyncio.to_thread(opened.write, data)
        finally:
            await asyncio.to_thread(opened.close)

    async def publish(self, name: CopyName, record: CopyRecord) -> None:
        """Replace the record, and remove the chunks that belong to none of its parts.

        Raises:
            Conflict: another node has replaced it since.
            StaleNode: the epoch of this node has ended.
            NotHere: this node is not the home of the project.
        """
        await super().publish(name, record)
        while await self.run(snapshot_copies.drop_chunks, self.fence, _key(name)):
            pass


def _key(name: CopyName) -> tuple[str, str]:
    return name.project_id, name.name
