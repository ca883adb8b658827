"""NodeCopies, the copies of snapshots that other nodes of the cluster hold.

The records are in the database. The holder of a copy is a running node that is not the home of its
project; each copy has its own, so that the nodes share the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure, Unavailable
from oubliette.kit import MailboxFull
from oubliette.node.database_copies import DatabaseCopies
from oubliette.node.held_copies import (
    CHUNK_BYTES,
    COPIES,
    DropParts,
    HasParts,
    HoldChunk,
    ReadPart,
    SealPart,
)
from oubliette.runtime.snapshots.copies import CopyPlace
from oubliette.runtime.store.postgres.cluster import held_copies, nodes

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref, System
    from oubliette.runtime.snapshots.copies import CopyName, CopyPart, CopyRecord
    from oubliette.runtime.store.postgres.control_thread import ControlThread
    from oubliette.runtime.store.postgres.fence import NodeFence

ASK_SECONDS: Final = 30.0
"""Time in which a holder must have answered."""


class NodeCopies(DatabaseCopies):
    """Copies whose records are in PostgreSQL, and whose parts are on other nodes."""

    def __init__(self, connection: ControlThread, fence: NodeFence, system: System) -> None:
        super().__init__(connection, fence)
        self._system = system

    def _ref(self, node: str) -> Ref:
        here = node == self.fence.node
        return self._system.ref(COPIES if here else f"{node}!{COPIES}")

    async def place(self, name: CopyName, record: CopyRecord | None) -> CopyPlace:
        """The holder of a copy as long as it runs and has it, else another one.

        Raises:
            Unavailable: no other node runs.
            OublietteError: the database or the holder does not answer.
        """
        found = await self.run(nodes.all_nodes)
        running = {
            node.name
            for node in found
            if node.state == "running" and node.lease_seconds > 0 and node.name != self.fence.node
        }
        if not running:
            raise Unavailable(
                "there is no other running node that could hold copies",
                hint='start another one, or set cluster.snapshots to "postgres"',
            )
        if record is None or record.holder not in running:
            return CopyPlace(holder=max(running, key=lambda node: _weight(node, name)), whole=True)
        asked = HasParts(project_id=name.project_id, parts=tuple(p.id for p in record.parts))
        has = await self._ref(record.holder).ask(asked, timeout=ASK_SECONDS)
        return CopyPlace(holder=record.holder, whole=not has)

    async def put(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Send a part to its holder.

        Raises:
            OublietteError: the holder does not take it.
        """
        ref, offset = self._ref(holder), 0
        opened = await asyncio.to_thread(file.open, "rb")
        try:
            while data := await asyncio.to_thread(opened.read, CHUNK_BYTES):
                chunk = HoldChunk(
                    project_id=name.project_id, part=part.id, offset=offset, data=data
                )
                await ref.ask(chunk, timeout=ASK_SECONDS)
                offset += len(data)
        finally:
            await asyncio.to_thread(opened.close)
        whole = SealPart(
            project_id=name.project_id, part=part.id, bytes=part.bytes, sha256=part.sha256
        )
        await ref.ask(whole, timeout=ASK_SECONDS)

    async def get(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        """Write a part into a new file, as its holder has it.

        Raises:
            RuntimeFailure: the holder has another one, or none.
            OublietteError: the holder does not answer.
        """
        if not holder:  # it was sent with `cluster.snapshots = "postgres"`
            await super().get(name, holder, part, file)
            return
        ref, offset = self._ref(holder), 0
        opened = await asyncio.to_thread(file.open, "xb")
        try:
            while offset < part.bytes:
                ask = ReadPart(project_id=name.project_id, part=part.id, offset=offset)
                data = await ref.ask(ask, timeout=ASK_SECONDS)
                if not data or offset + len(data) > part.bytes:
                    raise RuntimeFailure(f"node {holder} does not have part {part.id} as it was")
                await asyncio.to_thread(opened.write, data)
                offset += len(data)
        finally:
            await asyncio.to_thread(opened.close)

    async def publish(self, name: CopyName, record: CopyRecord) -> None:
        """Replace the record, and let holders remove parts that are in it no more.

        Raises:
            Conflict: another node has replaced it since.
            StorageUnavailable: the database does not answer.
            StaleNode: the epoch of this node has ended.
            NotHere: this node is not the home of the project.
        """
        before = await self.read(name)
        await super().publish(name, record)
        if before is not None:
            left = {part.id for part in before.parts} - {part.id for part in record.parts}
            self._drop(before.holder, name.project_id, left)

    async def forget(self, project_id: str) -> None:
        """Remove the records of a project that is deleted, and let holders remove its parts.

        Raises:
            StorageUnavailable: the database does not answer.
            StaleNode: the epoch of this node has ended.
        """
        held = await self.run(held_copies.parts_of, project_id)
        await super().forget(project_id)
        for holder, parts in held.items():
            self._drop(holder, project_id, parts)

    def _drop(self, holder: str, project_id: str, parts: set[str]) -> None:
        # A holder that does not get it finds them when it tidies.
        if holder and parts:
            with contextlib.suppress(MailboxFull):
                drop = DropParts(project_id=project_id, parts=tuple(sorted(parts)))
                self._ref(holder).tell(drop)


def _weight(node: str, name: CopyName) -> bytes:
    """The weight of a node for a copy, by which each copy has its own order of nodes."""
    text = f"{node}\0{name.project_id}\0{name.name}"
    return hashlib.sha256(text.encode()).digest()
