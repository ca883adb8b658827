"""Messages that only the jobs and timers of a ContainerActor send, to itself."""

from __future__ import annotations

from oubliette.errors import OublietteError
from oubliette.kit import Message
from oubliette.records import Container
from oubliette.runtime.containers.base import ContainerInfo


class ContainerStarted(Message):
    """The engine has started it; `seconds` are those of each stage so far."""

    record: Container
    info: ContainerInfo
    seconds: dict[str, float]


class RoomTaken(Message):
    """The memory for a session's agent is free and counted, or its asker got an error."""

    session_id: str
    taken: bool


class Relayed(Message):
    """Its guest has proved its identity."""

    container_id: str
    seconds: dict[str, float]


class StartFailed(Message):
    """A stage of the start failed."""

    reason: str
    hint: str | None = None
    container_id: str = ""
    """Set if the container already ran."""


class ContainerEnded(Message):
    """The engine reports that it has ended."""

    container_id: str
    exit_code: int | None = None


class IdleStop(Message):
    """The container was unused for the idle time."""


class FilesIdle(Message):
    """The job for requests for files has ended."""


class Answered(Message):
    """A deferred ask was answered."""


class Stopped(Message):
    """It was stopped and removed, or was not, because of `error`."""

    container_id: str
    error: str | None = None


class Inspected(Message):
    """The engine's state of a container whose guest was reported as gone."""

    container_id: str
    running: bool
    error: str | None = None
    reason: str = ""


class Unused(Message):
    """Time to report that nothing uses the container, if that is still so."""


class AdoptAgain(Message):
    """Time to ask the engine again for the containers."""


class RemovePending(Message):
    """Time to try again to remove ended containers."""


class Removed(Message):
    """An ended container was removed from the engine, or was not, because of `error`."""

    container_id: str
    error: str | None = None


def start_failed(error: BaseException, container_id: str = "") -> StartFailed:
    if isinstance(error, OublietteError):
        return StartFailed(reason=error.message, hint=error.hint, container_id=container_id)
    return StartFailed(reason=str(error) or repr(error), container_id=container_id)
