"""Messages between a ContainerActor and the other actors of its container."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.contract.project import CommandResult
from oubliette.kit import Message, Perishable, Reply
from oubliette.records import Container, Project
from oubliette.runtime.containers.base import ContainerInfo, ImageInfo
from oubliette.runtime.guest.file_answers import (
    FileRange,
    FilesDeleted,
    FileWritten,
    FolderPage,
)


class ContainerKey(msgspec.Struct, frozen=True):
    """Identity of a shared container; `workspace_id` is set exactly when isolation is on."""

    container_type: str
    workspace_id: str | None = None

    @property
    def label(self) -> str:
        """Its name below the project's containers."""
        return self.container_type + (f":{self.workspace_id}" if self.workspace_id else "")


StageName = Literal["image", "create", "start", "relay"]


class Acquire(Message, Reply[str]):
    """To a ContainerActor: take a lease. The container is started and not stopped before Release.

    Answers its id once it runs and its guest has proved its identity. Taking the same lease twice
    is one lease.
    """

    session_id: str
    start: bool = True
    """False: only the lease; the container runs, or is lost."""
    memory_mb: int = 0
    """Need of the session's agent, for which the answer waits until that much is free."""


class Release(Message):
    """To a ContainerActor: give a lease back, and the memory of its agent."""

    session_id: str
    ending: bool = False
    """True: its agent is still being ended, so the container is not stopped for this; a second
    message follows.
    """


class GetMemoryRoom(Message, Reply[int | None]):
    """Request for the number of further agents of a kind that there is memory for; None: any."""

    memory_mb: int
    """Need of one."""


class UnitUnused(Message):
    """To a ProjectActor, through the ContainerSupervisor: nothing uses the container, none runs."""

    label: str
    """Name of the unit below its project."""


class GetUnused(Message, Reply[bool]):
    """To a ContainerActor: whether no container runs or is to be removed, and nothing wants one.

    To a ProjectActor: whether nothing of the project runs, and nothing is under way.
    """


class GetContainerInfo(Message, Reply[ContainerInfo | None]):
    """Request for the state of the container as its runtime reported it at its start."""


class StopContainer(Message, Reply[None]):
    """To a ContainerActor: stop and remove the container; refused under leases unless `force`."""

    force: bool = False


class StoreImage(Message, Reply[ImageInfo]):
    """To a ContainerActor: store the file system of its container, which runs, as an image."""

    image: str
    labels: dict[str, str]
    timeout: float
    """Seconds that the engine has."""


class UseProject(Message):
    """To a ContainerActor: its project has changed; the next container is made for the new one."""

    project: Project


class GetContainer(Message, Reply[Container | None]):
    """To a ContainerActor: the container's record; None if none runs."""


class GetStages(Message, Reply[dict[str, float]]):
    """To a ContainerActor: the duration of each stage of the last start, in seconds."""


class RunCommand(Message, Reply[CommandResult]):
    """To a ContainerActor: run a command and wait for its end. The asker holds a lease."""

    argv: tuple[str, ...]
    workspace: str
    """As documented, absolute; the command gets it as a variable."""
    working_dir: str
    """As documented, absolute."""
    timeout_seconds: float
    env: dict[str, str] = {}
    """Further variables."""


class FetchCommits(Message, Reply[str]):
    """To a ContainerActor: fetch what an agent has committed. The asker holds a lease.

    The answer is the commit that is HEAD in the workspace; the project's repository has it then.
    """

    workspace_id: str
    workspace: str
    """As documented, absolute."""
    repository: str
    """Folder of the project's repository."""
    base: str
    """Commit that the workspace was made of."""
    git: str
    """Path of git of the server."""
    most: int
    """Maximum bytes; 0: no limit."""
    seconds: float


class FileRequest(Message):
    """To a ContainerActor: base of operations on files. The asker holds a lease."""

    workspace: str
    """As documented, absolute."""
    path: bytes
    """Below the workspace."""
    seconds: float = 60.0
    """Time after which the operation is ended, counted from its turn."""


class ListFolder(FileRequest, Reply[FolderPage]):
    """To a ContainerActor: what a path is, and a page of its names if it is a folder."""

    after: bytes = b""
    """Name after which the page begins."""
    limit: int


class ReadFile(FileRequest, Reply[FileRange]):
    """To a ContainerActor: a range of a file."""

    offset: int
    length: int


class WriteFile(FileRequest, Reply[FileWritten]):
    """To a ContainerActor: write a file or a piece of it, or make a folder, and those above it."""

    data: bytes = b""
    folder: bool = False
    expected: str | None = None
    """Version that the file must still have; `absent`: it must not exist."""
    executable: bool | None = None
    """None: as before."""
    upload: str = ""
    """Name under which pieces are collected; empty: `data` is the whole content."""
    offset: int = 0
    final: bool = True
    """Whether this is the last piece, with which the file takes its place."""


class DeleteFile(FileRequest, Reply[FilesDeleted]):
    """To a ContainerActor: delete a file, a link itself, or a folder."""

    recursive: bool = False
    """Also a folder that is not empty."""


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a container's own log."""

    text: str
    truncated: bool


class ReadLogs(Message, Reply[LogText]):
    """To a ContainerActor: the end of what the container's own process wrote."""

    tail: int


class ContainerIsUp(Message):
    """To the SocketActor: the container's guest listens and has this key."""

    container_id: str
    key: bytes
    info: ContainerInfo


class ContainerIsLost(Message):
    """To the SocketActor: the container is gone, with everything that ran in it."""

    reason: str


class GuestConnected(Perishable):
    """To the ContainerActor: the guest has proved its identity, its control link is open."""

    container_id: str


class ForgetProcess(Message, Reply[None]):
    """To the SocketActor: end a process whose session has stored its end, and forget it."""

    process_id: str


class SocketStarted(Message):
    """To the ContainerActor: a SocketActor began, and needs to know the running container."""


class GuestGone(Message):
    """To the ContainerActor: no guest can be reached, even if the container runs."""

    container_id: str
    reason: str
    unusable: bool = False
    """True: this server can never use it."""


class StageChanged(Message):
    """To the sessions that hold the container: progress of its start, or of the wait for memory."""

    stage: StageName | Literal["memory"]
    state: Literal["progress", "done", "failed"]
    elapsed_ms: int
    """Milliseconds since the stage began."""
    container_id: str = ""
    detail: str = ""
    """Progress of a pull."""
    error: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    """Warnings that a user should see at every start."""
