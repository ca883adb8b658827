"""What the jobs and timers of a ContainerActor tell it; nobody else sends these."""

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


class Relayed(Message):
    """Its host has proved itself."""

    container_id: str
    seconds: dict[str, float]


class StartFailed(Message):
    """A stage of the start failed."""

    reason: str
    hint: str | None = None
    container_id: str = ""
    """Set where the container ran already."""


class ContainerEnded(Message):
    """The engine says that it has ended."""

    container_id: str
    exit_code: int | None = None


class IdleStop(Message):
    """Nobody has used it for long enough."""


class Answered(Message):
    """An ask that was answered aside has its answer."""


class Stopped(Message):
    """It was stopped and removed; or was not, for `error`."""

    container_id: str
    error: str | None = None


class Inspected(Message):
    """What the engine says of a container whose host is said to be gone."""

    container_id: str
    running: bool
    error: str | None = None
    reason: str = ""


class AdoptAgain(Message):
    """It is time to ask the engine again what there is."""


class RemovePending(Message):
    """It is time to try again to remove what has ended."""


class Removed(Message):
    """What has ended was removed from the engine; or was not, for `error`."""

    container_id: str
    error: str | None = None


def start_failed(error: BaseException, container_id: str = "") -> StartFailed:
    """What to tell of a start that ended with `error`."""
    if isinstance(error, OublietteError):
        return StartFailed(reason=error.message, hint=error.hint, container_id=container_id)
    return StartFailed(reason=str(error) or repr(error), container_id=container_id)
