"""HeldCopiesActor, which holds copies of snapshots for other nodes.

The database has the records of all copies. It decides which parts count: what a node has beside
those is removed. Copies of this node's own projects whose holder is gone are sent elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.snapshot_requests import SNAPSHOTS, SendCopy
from oubliette.errors import OublietteError
from oubliette.kit import Actor, LocalMessage, Message, Reply, handles
from oubliette.node import part_files
from oubliette.runtime.store.postgres.cluster import held_copies

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.node.database_copies import CopyRecords

COPIES: Final = "copies"
"""Name of the actor on each node."""
CHUNK_BYTES: Final = 512 * 1024
LOOK_SECONDS: Final = 30.0
"""Time between two looks for copies of this node's projects whose holder is gone or drained."""
TIDY_LOOKS: Final = 20
"""Looks after which the parts that are here are compared with the records."""

log = structlog.get_logger("oubliette.node")


class HoldChunk(Message, Reply[None]):
    """To `copies` of another node: some bytes of a part, in their order."""

    project_id: str
    part: str
    offset: int
    """Bytes before them; 0 begins the part again."""
    data: bytes


class SealPart(Message, Reply[None]):
    """To `copies` of another node: all bytes of a part were sent."""

    project_id: str
    part: str
    bytes: int
    sha256: str


class HasParts(Message, Reply[bool]):
    """To `copies` of another node: whether it has all of these parts."""

    project_id: str
    parts: tuple[str, ...]


class ReadPart(Message, Reply[bytes]):
    """To `copies` of another node: return the bytes of a part from there on, not all at once."""

    project_id: str
    part: str
    offset: int


class DropParts(Message):
    """To `copies` of another node: these parts are in no record any more."""

    project_id: str
    parts: tuple[str, ...]


class _Look(LocalMessage):
    """To itself: time to look after copies."""


class _Looked(LocalMessage):
    """To itself: copies were looked after."""


class HeldCopiesActor(Actor):
    """Holder of copies of snapshots. Its name must be `copies`."""

    mailbox_size: ClassVar[int] = 1000

    def __init__(self, home: Path, node: str, records: CopyRecords, max_bytes: int) -> None:
        super().__init__()
        self._home = home
        self._node = node
        self._records = records
        self._max_bytes = max_bytes
        self._looks = 0

    def on_start(self) -> None:
        """Remove what was to be removed while this node was away."""
        self._look(_Look())

    @handles(HoldChunk)
    async def _hold(self, message: HoldChunk) -> None:
        path = part_files.path_of(self._home, message.project_id, message.part)
        append = part_files.append
        await asyncio.to_thread(append, path, message.offset, message.data, self._max_bytes)

    @handles(SealPart)
    async def _seal(self, message: SealPart) -> None:
        path = part_files.path_of(self._home, message.project_id, message.part)
        await asyncio.to_thread(part_files.seal, path, message.bytes, message.sha256)

    @handles(HasParts)
    async def _has(self, message: HasParts) -> bool:
        paths = [part_files.path_of(self._home, message.project_id, part) for part in message.parts]
        return await asyncio.to_thread(lambda: all(path.is_file() for path in paths))

    @handles(ReadPart)
    async def _read(self, message: ReadPart) -> bytes:
        path = part_files.path_of(self._home, message.project_id, message.part)
        return await asyncio.to_thread(part_files.read, path, message.offset, CHUNK_BYTES)

    @handles(DropParts)
    async def _drop(self, message: DropParts) -> None:
        try:
            held = set(await self._records.run(held_copies.parts_held, self._node))
            left = [part for part in message.parts if (message.project_id, part) not in held]
            await asyncio.to_thread(part_files.remove, self._home, message.project_id, left)
        except OublietteError as error:
            log.warning("parts of copies are left for later", reason=str(error))

    @handles(_Look)
    def _look(self, _: _Look) -> None:
        tidy = self._looks % TIDY_LOOKS == 0
        self._looks += 1
        self.pipe_to_self(self._looked_after(tidy=tidy), lambda _: _Looked(), _failed)

    @handles(_Looked)
    def _looked(self, _: _Looked) -> None:
        self.after(LOOK_SECONDS, _Look())

    async def _looked_after(self, *, tidy: bool) -> None:
        if tidy:
            await self._tidy()
        snapshots = self.system.lookup(SNAPSHOTS)
        if snapshots is None:
            return
        for project_id, name in await self._records.run(held_copies.badly_held, self._node):
            snapshots.tell(SendCopy(project_id=project_id, workspace_id=name))

    async def _tidy(self) -> None:
        here = await asyncio.to_thread(part_files.projects, self._home)
        if not here:
            return
        run = self._records.run
        deleted = await run(held_copies.deleted_of, here)
        await asyncio.to_thread(part_files.remove_projects, self._home, deleted)
        held = await run(held_copies.parts_held, self._node)
        await asyncio.to_thread(part_files.tidy, self._home, set(held))


def _failed(error: BaseException) -> _Looked:
    log.warning("copies of snapshots could not be looked after", reason=str(error))
    return _Looked()
