"""Messages between a ContainerActor and the other actors of its container."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply
from oubliette.records import Container

StageName = Literal["image", "create", "start", "relay"]


class Acquire(Message, Reply[str]):
    """Take a lease: the container is started if necessary, and not stopped before Release.

    Answers its id once it runs and its guest has proved its identity. Taking the same lease twice
    is one lease.
    """

    session_id: str
    start: bool = True
    """False: only the lease; the container runs, or is lost."""


class Release(Message):
    """Give a lease back."""

    session_id: str


class StopContainer(Message, Reply[None]):
    """Stop and remove the container; refused under leases unless `force`."""

    force: bool = False


class GetContainer(Message, Reply[Container | None]):
    """Request for the container's record; None if none runs."""


class GetStages(Message, Reply[dict[str, float]]):
    """Request for the duration of each stage of the last start, in seconds."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Exit code and output of a command."""

    exit_code: int
    """128 + the signal for a killed one."""
    stdout: str
    stderr: str
    truncated: bool
    """Whether the middle was left out; the text contains the number of bytes."""
    timed_out: bool


class RunCommand(Message, Reply[CommandResult]):
    """Run a command and wait for its end. The asker holds a lease."""

    argv: tuple[str, ...]
    workspace: str
    """As documented, absolute; the command gets it as a variable."""
    working_dir: str
    """As documented, absolute."""
    timeout_seconds: float
    env: dict[str, str] = {}
    """Further variables."""


class LogText(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a container's own log."""

    text: str
    truncated: bool


class ReadLogs(Message, Reply[LogText]):
    """Request for the end of what the container's own process wrote."""

    tail: int


class ContainerIsUp(Message):
    """To the SocketActor: the container's guest listens and has this key."""

    container_id: str
    key: bytes


class SocketStarted(Message):
    """To the ContainerActor: a SocketActor began, and needs to know the running container."""


class GuestGone(Message):
    """To the ContainerActor: no guest can be reached, even if the container runs."""

    container_id: str
    reason: str
    unusable: bool = False
    """True: there is a guest, and this server can never use it."""


class StageChanged(Message):
    """To the sessions that hold the container: progress of its start."""

    stage: StageName
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
