"""What a ContainerActor and its unit tell each other."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply
from oubliette.records import Container

StageName = Literal["image", "create", "start", "relay"]


class Acquire(Message, Reply[str]):
    """Take a lease: the container is started if need be, and not stopped before Release.

    Answers its id once it runs and its host has proved itself. Taking the same lease twice is one
    lease.
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
    """The container's record, None where none runs."""


class GetStages(Message, Reply[dict[str, float]]):
    """How long each stage of the last start took, in seconds."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended and what it wrote."""

    exit_code: int
    """128 + the signal for a killed one."""
    stdout: str
    stderr: str
    truncated: bool
    """Something is left out of the middle; the text says how much."""
    timed_out: bool


class RunCommand(Message, Reply[CommandResult]):
    """Run a command and wait for its end. The asker holds a lease."""

    argv: tuple[str, ...]
    workspace: str
    """As documented, absolute; told to the command."""
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
    """The end of what the container's own process wrote."""

    tail: int


class ContainerIsUp(Message):
    """To the SocketActor: its host listens and holds this key."""

    container_id: str
    key: bytes


class SocketStarted(Message):
    """To the ContainerActor: a SocketActor began; tell it of the container that is up."""


class GuestGone(Message):
    """To the ContainerActor: there is no host to talk to, whatever the engine says of it."""

    container_id: str
    reason: str
    unusable: bool = False
    """True: a host is there, and this server can never talk to it."""


class StageChanged(Message):
    """To the sessions that hold the container: how far its start is."""

    stage: StageName
    state: Literal["progress", "done", "failed"]
    elapsed_ms: int
    """Since the stage began."""
    container_id: str = ""
    detail: str = ""
    """How far a pull is."""
    error: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    """What a user should hear at every start."""
