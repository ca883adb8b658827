"""Containers and pipes of a killed server, removed by the next one before it recovers anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.store.actor import Transact
from oubliette.runtime.containers.process import adoption
from oubliette.runtime.store.operations import DeleteContainer

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.records import Container
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.files.project_dirs import Folders
    from oubliette.runtime.store.reader import Reader

log = structlog.get_logger("oubliette.server")


async def remove_orphans(
    *,
    runtime: ContainerRuntime,
    base: Path,
    reader: Reader,
    store: Ref,
    instance: str,
    folders: Folders,
    here: frozenset[str] | None,
) -> None:
    """Remove unknown containers; `here` are the projects of this server; None: all."""
    records = await reader.containers()
    if here is not None:
        records = [record for record in records if record.project_id in here]
    deleted: set[str] = set()
    for project_id in {record.project_id for record in records}:
        project = await reader.project(project_id)
        if project is not None and project.deleted_at is not None:
            deleted.add(project_id)
    await _reap_orphans(runtime, records, store, instance, deleted)
    known = {record.id for record in await reader.containers()}
    await asyncio.to_thread(folders.clear_spools, known)
    await asyncio.to_thread(adoption.clear_half_made, base)


async def _reap_orphans(
    runtime: ContainerRuntime,
    records: list[Container],
    store: Ref,
    instance: str,
    deleted: set[str],
) -> None:
    """Remove containers of this instance without a record, or whose project is `deleted`."""
    known = {record.id for record in records if record.project_id not in deleted}
    for info in await runtime.adopt(instance):
        if info.id not in known:
            log.warning("removing an orphan", container_id=info.id)
            await runtime.remove(info.id)
    gone = tuple(DeleteContainer(record.id) for record in records if record.id not in known)
    if gone:
        await store.ask(Transact(ops=gone))
