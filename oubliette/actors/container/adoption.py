"""Adoption: which container of an earlier server is kept, from records and the engine's answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oubliette.errors import ContainerLost, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from oubliette.actors.container.messages import ContainerKey
    from oubliette.records import Container, Session
    from oubliette.runtime.containers.base import ContainerInfo, ContainerRuntime


@dataclass(frozen=True, slots=True)
class ExaminedContainer:
    """A container that is on record, and what the engine knows of it."""

    record: Container
    info: ContainerInfo | None
    """None: the engine does not have it any more."""


@dataclass(frozen=True, slots=True)
class AdoptedContainer:
    """A container that runs, and that is used further."""

    record: Container
    info: ContainerInfo
    outdated: bool
    """Whether it was made with other settings."""
    leases: AbstractSet[str]
    """Ids of the sessions whose agents run in it."""


@dataclass(slots=True)
class Adoption:
    """Decision about the containers that an earlier server, or actor, left behind."""

    kept: AdoptedContainer | None = None
    removed: list[Container] = field(default_factory=list["Container"])
    """Those that the engine has, and that are of no use."""
    forgotten: list[Container] = field(default_factory=list["Container"])
    """Those that the engine does not have."""


def records_of(records: Iterable[Container], project_id: str, key: ContainerKey) -> list[Container]:
    """The records of the containers at one place of a project."""
    return [
        record
        for record in records
        if (record.project_id, record.workspace_id, record.container_type)
        == (project_id, key.workspace_id, key.container_type)
    ]


def holders_of(sessions: Iterable[Session]) -> dict[str, set[str]]:
    """Return container id → ids of the sessions, of those that live, whose agents run in it."""
    found: dict[str, set[str]] = {}
    for session in sessions:
        if session.container_id is not None:
            found.setdefault(session.container_id, set()).add(session.id)
    return found


async def examine(
    runtime: ContainerRuntime, records: Iterable[Container]
) -> list[ExaminedContainer]:
    """Ask the engine for each recorded container.

    Raises:
        OublietteError: the engine did not answer.
    """
    found: list[ExaminedContainer] = []
    for record in records:
        try:
            info = await runtime.inspect(record.id)
        except (NotFound, ContainerLost):
            info = None
        found.append(ExaminedContainer(record, info))
    return found


def choose(
    examined: Iterable[ExaminedContainer],
    holders: Mapping[str, AbstractSet[str]],
    is_current: Callable[[Container], bool],
) -> Adoption:
    """Return which container is kept: the first that runs, and is up to date or in use.

    Args:
        examined: containers of one place, oldest first.
        holders: container id → ids of the live sessions whose agents run in it.
        is_current: whether a container was made with the present settings.
    """
    adoption = Adoption()
    for each in examined:
        record = each.record
        if each.info is None:
            adoption.forgotten.append(record)
            continue
        # Otherwise its start was interrupted halfway.
        whole = each.info.state == "running" and record.state == "running"
        current = is_current(record)
        held = holders.get(record.id, frozenset[str]())
        if not whole or adoption.kept is not None or not (current or held):
            adoption.removed.append(record)
            continue
        adoption.kept = AdoptedContainer(record, each.info, outdated=not current, leases=held)
    return adoption
