"""What a ContainerActor and its unit tell each other."""

from __future__ import annotations

from oubliette.kit import Message, Reply
from oubliette.records import Container


class Acquire(Message, Reply[str]):
    """Take a lease: the container is started if need be, and not stopped before Release.

    Answers its id once it runs. Taking the same lease twice is one lease.
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


class ContainerIsUp(Message):
    """To the SocketActor: its host listens and holds this key."""

    container_id: str
    key: bytes


class SocketStarted(Message):
    """To the ContainerActor: a SocketActor began; tell it of the container that is up."""


class ContainerStage(Message):
    """To the sessions that waited: how long the container's start took, by stage."""

    seconds: dict[str, float]
    warnings: tuple[str, ...] = ()
