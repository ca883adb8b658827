"""Base of the runtimes on an engine that holds the containers: docker, podman, Apple's `container`.

The engine holds all state: a container's labels hold its spec, so that a new server finds all of it
again after a kill. A runtime adds its calls to the engine, and how links reach the guest.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from oubliette.errors import (
    ContainerLost,
    DeadlineExceeded,
    InvalidParameter,
    NotFound,
    OublietteError,
    RuntimeFailure,
)
from oubliette.runtime.containers import runtime_dirs, validation
from oubliette.runtime.containers.base import LABEL_CONTAINER, ContainerSpec, Hardening
from oubliette.runtime.containers.labels import read_spec
from oubliette.runtime.containers.layout import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import (
        Capabilities,
        ContainerInfo,
        ImageInfo,
        RuntimeStatus,
    )


class EngineContainer:
    """State of one known container."""

    def __init__(self, spec: ContainerSpec) -> None:
        self.spec = spec
        self.lock = asyncio.Lock()
        self.removed = False
        self.last: ContainerInfo | None = None


C = TypeVar("C", bound=EngineContainer)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Listed(Generic[S]):
    """Container of this instance as the engine lists it."""

    engine_id: str
    labels: Mapping[str, str]
    seen: S | None
    """State as the engine reports it; None: the list has too little, inspect it."""


class EngineRuntime(abc.ABC, Generic[C, S]):
    """`ContainerRuntime` on an engine; `C` is a known container, `S` its state at the engine.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest.
        hard: hardening of containers whose spec has none.
    """

    KILL_SECONDS: ClassVar[float]
    """Seconds from SIGKILL to the end of a container."""
    HANG_HINT: ClassVar[str]
    """Remedy for a container that SIGKILL does not end."""

    def __init__(self, base: Path, zipapp: Path, hard: Hardening | None) -> None:
        self._base = base
        self._zipapp = zipapp
        self._hard = hard or Hardening()
        self._root = os.geteuid() == 0
        self._containers: dict[str, C] = {}
        self._creating: set[str] = set()
        self._usable = False
        """Nothing about the engine prevents containers from running."""

    # ------------------------------------------------------------------ what an engine adds

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Value of `containers.runtime`."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """Capabilities of this runtime; final after the first `ping`."""

    @abc.abstractmethod
    async def ping(self) -> RuntimeStatus:
        """Check that the engine answers and supports the settings, and set `_usable`."""

    @abc.abstractmethod
    async def image(self, image: str) -> ImageInfo | None:
        """Return the engine's details of an image; None: it is missing."""

    @abc.abstractmethod
    async def _check(self, spec: ContainerSpec) -> None:
        """Check what only the engine knows of a spec, such as its network."""

    @abc.abstractmethod
    def _new(self, spec: ContainerSpec, listed: Listed[S] | None = None) -> C:
        """Return the state of a container that is to be created, or was found in the list."""

    @abc.abstractmethod
    async def _make_folders(self, spec: ContainerSpec) -> None:
        """Create the missing folders of the container on this machine."""

    @abc.abstractmethod
    async def _make(self, container: C) -> None:
        """Create it at the engine."""

    @abc.abstractmethod
    def _created(self, container: C) -> ContainerInfo: ...

    @abc.abstractmethod
    async def _prepare(self, container: C, key: bytes) -> None:
        """Restore missing mount sources before a start: cleaners of /tmp remove them."""

    @abc.abstractmethod
    async def _launch(self, container: C, key: bytes) -> ContainerInfo:
        """Start the guest and wait until it listens."""

    @abc.abstractmethod
    async def _tail_of_log(self, container: C) -> str:
        """Return the end of the output of a guest that did not start, after `: `, or nothing."""

    @abc.abstractmethod
    def _start_hint(self, container: C, error: str, tail: str) -> str | None:
        """The remedy for a failed start, if its output shows the cause."""

    @abc.abstractmethod
    async def _reset(self, container: C) -> None:
        """Undo a failed start: restore the state after `create`."""

    @abc.abstractmethod
    async def _until_ended(self, container: C) -> ContainerInfo:
        """Wait until it does not run."""

    @abc.abstractmethod
    async def _terminate(self, container: C, timeout: float) -> ContainerInfo | None:
        """Send SIGTERM and wait; None: it still runs after `timeout` seconds."""

    @abc.abstractmethod
    async def _kill(self, container: C) -> None:
        """Send SIGKILL."""

    @abc.abstractmethod
    async def _delete(self, container: C) -> None:
        """Remove it at the engine, killed if necessary; no error if it is missing."""

    @abc.abstractmethod
    async def _delete_unreadable(self, engine_id: str) -> None:
        """Remove a container of this instance whose spec another release wrote."""

    @abc.abstractmethod
    async def _look(self, container: C) -> S | None:
        """Query the engine; None: it has no such container."""

    @abc.abstractmethod
    def _info(self, container: C, seen: S) -> ContainerInfo: ...

    @abc.abstractmethod
    async def _list(self, instance: str) -> Iterable[Listed[S]]:
        """The containers with the label of this instance."""

    # ------------------------------------------------------------------ create

    async def _ready(self) -> None:
        """Check the engine once; whether it still answers is shown by the next call."""
        if self._usable:
            return
        status = await self.ping()
        if not status.ok:
            raise RuntimeFailure(f"containers cannot run: {status.reason}", hint=status.remedy)

    async def image_exists(self, image: str) -> bool:
        return await self.image(image) is not None

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Check the spec, create the folders and the container."""
        await self._ready()
        if spec.id in self._containers or spec.id in self._creating:
            raise InvalidParameter(f"id: there is a container {spec.id} already", field="id")
        self._creating.add(spec.id)
        try:
            await asyncio.to_thread(validation.check_spec, spec, self._base)
            if spec.image is None:
                raise InvalidParameter(
                    f"image: {self.name} needs one", field="image", hint="set containers.image"
                )
            container = self._new(spec)
            try:
                await self._check(spec)
                await self._make_folders(spec)
                await self._make(container)
            except BaseException as error:
                with contextlib.suppress(OublietteError):
                    await self._delete(container)
                await asyncio.to_thread(runtime_dirs.clear, spec)
                if isinstance(error, OSError) and not isinstance(error, OublietteError):
                    raise RuntimeFailure(f"the container's folders: {error}") from error
                raise
        finally:
            self._creating.discard(spec.id)
        self._containers[spec.id] = container
        container.last = self._created(container)
        return container.last

    def _owner(self, spec: ContainerSpec) -> int | None:
        """Return the user of this machine that owns the container's folders; None = ours."""
        return self._uid(spec) if self.capabilities.uid_per_container else None

    def _uid(self, spec: ContainerSpec) -> int:
        if not self.capabilities.uid_per_container:
            return os.geteuid() or NOBODY
        return NOBODY if spec.uid is None else spec.uid

    # ------------------------------------------------------------------ start and end

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start the guest and wait until it listens."""
        container = self._get(container_id)
        async with container.lock:
            await self._ready()
            if await self._runs(container):
                raise RuntimeFailure(f"container {container_id} is running already")
            try:
                return await self._start(container, key, timeout)
            except (OSError, OublietteError) as error:
                tail = await self._tail_of_log(container)
                await self._reset(container)
                kind = type(error) if isinstance(error, OublietteError) else RuntimeFailure
                hint = error.hint if isinstance(error, OublietteError) else None
                message = error.message if isinstance(error, OublietteError) else str(error)
                raise kind(
                    f"container {container_id} did not start: {message}{tail}",
                    hint=self._start_hint(container, str(error), tail) or hint,
                ) from error
            except BaseException:
                await self._reset(container)
                raise

    async def _runs(self, container: C) -> bool:
        return (await self._inspect(container)).state == "running"

    async def _start(self, container: C, key: bytes, timeout: float) -> ContainerInfo:
        await self._prepare(container, key)
        try:
            async with asyncio.timeout(timeout):
                return await self._launch(container, key)
        except TimeoutError as error:
            if isinstance(error, OublietteError):
                raise
            raise DeadlineExceeded(f"the guest was not ready in {timeout:g} s") from error

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._until_ended(self._get(container_id))

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: SIGTERM, `timeout` seconds, SIGKILL; all processes in it end too."""
        container = self._get(container_id)
        async with container.lock:
            info = await self._inspect(container)
            if info.state != "running":
                return info
            if timeout > 0:
                ended = await self._terminate(container, timeout)
                if ended is not None:
                    return ended
            await self._kill(container)
            try:
                async with asyncio.timeout(self.KILL_SECONDS):
                    return await self._until_ended(container)
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"container {container_id} does not end", hint=self.HANG_HINT
                ) from error

    async def remove(self, container_id: str) -> None:
        """Kill it, and remove it, its runtime folder and its spool."""
        container = self._containers.get(container_id)
        if container is None:
            return
        async with container.lock:
            container.removed = True
            await self._delete(container)
            await asyncio.to_thread(runtime_dirs.clear, container.spec)
            self._containers.pop(container_id, None)

    # ------------------------------------------------------------------ inspect

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Query the engine.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._inspect(self._get(container_id))

    def _get(self, container_id: str) -> C:
        container = self._containers.get(container_id)
        if container is None:
            raise NotFound(f"there is no container {container_id}")
        return container

    async def _inspect(self, container: C) -> ContainerInfo:
        seen = await self._look(container)
        if seen is None:
            if container.removed and container.last is not None:
                return msgspec.structs.replace(container.last, state="exited", handle={})
            raise ContainerLost(
                f"container {container.spec.id} is gone: somebody else has removed it"
            )
        container.last = self._info(container, seen)
        return container.last

    # ------------------------------------------------------------------ adoption

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Find the instance's containers by label; remove folders without one."""
        await self._ready()
        found: list[tuple[C, S | None]] = []
        for listed in await self._list(instance):
            container = await self._recognise(listed)
            if container is not None:
                found.append((container, listed.seen))
        known = {container.spec.id for container, _ in found} | self._creating
        marked = await asyncio.to_thread(
            lambda: list(runtime_dirs.marked(self._base, self.name, instance))
        )
        for folder, container_id in marked:
            if container_id not in known and container_id not in self._containers:
                spec = ContainerSpec(id=container_id, labels={}, runtime_dir=folder)
                await asyncio.to_thread(runtime_dirs.clear, spec)
        infos: list[ContainerInfo] = []
        for container, seen in found:
            if seen is not None:
                infos.append(self._info(container, seen))
                continue
            with contextlib.suppress(ContainerLost):
                infos.append(await self._inspect(container))
        return infos

    async def _recognise(self, listed: Listed[S]) -> C | None:
        container_id = listed.labels.get(LABEL_CONTAINER)
        if container_id is None or container_id in self._creating:
            return None
        known = self._containers.get(container_id)
        if known is not None:
            return known
        try:
            spec = read_spec(listed.labels)
        except msgspec.MsgspecError:
            # Ours by its instance, but of a release with another format: it cannot be used.
            await self._delete_unreadable(listed.engine_id)
            return None
        known = self._containers[container_id] = self._new(spec, listed)
        return known
