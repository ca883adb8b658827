"""Moves of projects from this node to another one, and the receiver of the projects of others.

The files go first, and the placement decides: until it has changed the project is here, afterwards
it is there. What either node then has of it beside that is removed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.project.supervisor import HoldProject, ReleaseProject
from oubliette.actors.tree.messages import CloseTrees, ReopenTrees
from oubliette.errors import InvalidParameter, OublietteError, RuntimeFailure
from oubliette.kit import Actor, Message, Reply, handles
from oubliette.node import project_files

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.node.homes import ClusterHomes

ARRIVALS: Final = "arrivals"
"""Name of the actor on each node that receives the files of projects."""
CHUNK_BYTES: Final = 512 * 1024
CHUNK_SECONDS: Final = 30.0
"""Time in which a node must have taken a part of the files."""
UNPACK_SECONDS: Final = 600.0
"""Time in which a node must have unpacked them."""
HOLD_SECONDS: Final = 30.0

log = structlog.get_logger("oubliette.node")


class ReceiveChunk(Message, Reply[None]):
    """To `arrivals` of another node: a part of the packed files of a project, in order."""

    project_id: str
    offset: int
    """Bytes before it; 0 begins the file again."""
    data: bytes


class UnpackProject(Message, Reply[None]):
    """To `arrivals` of another node: all parts were sent."""

    project_id: str
    sha256: str


class DiscardProject(Message, Reply[None]):
    """To `arrivals` of another node: the project does not move."""

    project_id: str


class ArrivalsActor(Actor):
    """Receiver of the files of projects that move to this node. Its name must be `arrivals`."""

    mailbox_size: ClassVar[int] = 1000

    def __init__(self, home: Path, homes: ClusterHomes) -> None:
        super().__init__()
        self._home = home
        self._homes = homes

    @handles(ReceiveChunk)
    async def _receive(self, message: ReceiveChunk) -> None:
        await self._check_not_here(message.project_id)
        await asyncio.to_thread(_append, self._home, message)

    @handles(UnpackProject)
    async def _unpack(self, message: UnpackProject) -> None:
        await self._check_not_here(message.project_id)
        project_id, sha256 = message.project_id, message.sha256
        await asyncio.to_thread(project_files.unpack, self._home, project_id, sha256)

    @handles(DiscardProject)
    async def _discard(self, message: DiscardProject) -> None:
        await self._check_not_here(message.project_id)
        await asyncio.to_thread(project_files.remove, self._home, message.project_id)

    async def _check_not_here(self, project_id: str) -> None:
        """Refuse to touch the files of a project that lives here."""
        if await self._homes.is_here(project_id):
            raise InvalidParameter(f"project {project_id} has its home here", field="project_id")


def _append(home: Path, message: ReceiveChunk) -> None:
    path = project_files.packed(home, message.project_id)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 - of a descriptor
            size = os.fstat(file.fileno()).st_size
            if message.offset == 0:
                file.truncate(0)
            elif message.offset != size:
                raise RuntimeFailure(f"part at {message.offset} of project {message.project_id}")
            file.seek(message.offset)
            file.write(message.data)
    except OSError as error:
        if isinstance(error, OublietteError):
            raise
        raise RuntimeFailure(f"project {message.project_id} cannot be received: {error}") from error


async def move_project(homes: ClusterHomes, home: Path, projects: Ref, project_id: str) -> str:
    """Move a project without live sessions to the node with the most room; return that node.

    Raises:
        Conflict: sessions of it live.
        Unavailable: no node can take it now.
        OublietteError: another reason for which it stays here.
    """
    target = await homes.choose_for(project_id)
    await projects.ask(HoldProject(project_id=project_id), timeout=HOLD_SECONDS)
    moved = False
    try:
        arrivals = homes.ref(target, ARRIVALS)
        try:
            await _send(arrivals, home, project_id)
        finally:  # once handed over it may come back, to a file of the same name
            await asyncio.to_thread(project_files.discard, home, project_id)
        moved = await hand_over(homes, project_id, target)
        if not moved:
            await arrivals.ask(DiscardProject(project_id=project_id), timeout=UNPACK_SECONDS)
    finally:
        projects.tell(ReleaseProject(project_id=project_id, moved=moved))
    if not moved:
        raise RuntimeFailure(f"project {project_id} was moved by another node meanwhile")
    log.info("project moved", project_id=project_id, to=target)
    return target


async def hand_over(homes: ClusterHomes, project_id: str, target: str) -> bool:
    """Change the placement, while no node counts the trees that began in the project.

    Their sessions in other projects live on.
    """
    trees = homes.system.ref("trees")
    await trees.ask(CloseTrees(project_id=project_id), timeout=HOLD_SECONDS)
    try:
        return await homes.hand_over(project_id, target)
    finally:
        trees.tell(ReopenTrees(project_id=project_id))


async def _send(arrivals: Ref, home: Path, project_id: str) -> None:
    path, sha256 = await asyncio.to_thread(project_files.pack, home, project_id)
    offset = 0
    with await asyncio.to_thread(path.open, "rb") as file:
        while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
            chunk = ReceiveChunk(project_id=project_id, offset=offset, data=data)
            await arrivals.ask(chunk, timeout=CHUNK_SECONDS)
            offset += len(data)
    unpack = UnpackProject(project_id=project_id, sha256=sha256)
    await arrivals.ask(unpack, timeout=UNPACK_SECONDS)
