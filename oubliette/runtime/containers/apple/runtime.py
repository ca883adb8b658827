"""Container runtime on Apple's `container`: each container is a small virtual machine, on macOS.

As with docker, a container's labels hold its spec, and the process in it is our guest. The
connection differs: sockets do not cross a shared folder, so the relay listens in the machine and
`--publish-socket` carries its connections; and there are no events (`apple.exit_watch`).
docs/runtimes.md lists what was read in the sources and not tried on a Mac.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import (
    ContainerLost,
    DeadlineExceeded,
    InvalidParameter,
    NotFound,
    OublietteError,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.containers import guest_bundle, validation
from oubliette.runtime.containers import runtime_dirs as shared_dirs
from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.apple import exec_bridge, runtime_dirs
from oubliette.runtime.containers.apple.cli import AppleCli
from oubliette.runtime.containers.apple.exit_watch import ExitWatch
from oubliette.runtime.containers.apple.output import Seen
from oubliette.runtime.containers.apple.services import AppleServices
from oubliette.runtime.containers.base import (
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    Capabilities,
    ContainerInfo,
    ContainerSpec,
    Dial,
    Hardening,
    ImageInfo,
    Inside,
    Logs,
    Mount,
    RuntimeStatus,
)
from oubliette.runtime.containers.errors import EngineMissing
from oubliette.runtime.containers.labels import LABEL_MADE_OF, read_spec, write_spec
from oubliette.runtime.containers.process import bubblewrap
from oubliette.runtime.containers.process.sandbox_plan import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import ContainerState, Progress

KILL_SECONDS: Final = 15.0  # from SIGKILL to the end of the machine
STOP_SECONDS: Final = 30.0  # for the services, beyond the container's own timeout
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 2.0


class _AppleContainer:
    """State of one known container."""

    def __init__(self, spec: ContainerSpec) -> None:
        self.spec = spec
        self.name = apple_argv.name_of(spec.id)
        self.lock = asyncio.Lock()
        self.exit_watch: ExitWatch | None = None
        self.opening = asyncio.Lock()
        self.removed = False
        self.last: ContainerInfo | None = None


class AppleRuntime:
    """`ContainerRuntime` on Apple's `container`, 1.0 or later.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest.
        path: the program; None = `container` on PATH.
        hard: hardening of containers, as far as supported here.
    """

    def __init__(
        self, base: Path, zipapp: Path, *, path: str | None = None, hard: Hardening | None = None
    ) -> None:
        self._base = base
        self._zipapp = zipapp
        self._hard = hard or Hardening()
        self._cli = AppleCli(path)
        self._services = AppleServices(self._cli)
        self._root = os.geteuid() == 0
        self._containers: dict[str, _AppleContainer] = {}
        self._creating: set[str] = set()
        self._usable = False

    @property
    def name(self) -> str:
        """`apple`."""
        return "apple"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this runtime."""
        return Capabilities(
            survives_server=True,
            sockets_cross=True,
            network_none=True,
            network_host=False,  # a virtual machine has no network of this machine
            images=True,
            uid_per_container=self._root,
            isolation="container",
            exit_codes=False,
        )

    # ------------------------------------------------------------------ the services

    async def ping(self) -> RuntimeStatus:
        """Query the program's version and whether its services run."""
        try:
            status = await self._services.status()
        except OublietteError as error:
            return RuntimeStatus(ok=False, reason=error.message, remedy=error.hint)
        self._usable = status.ok
        return status

    async def _ready(self) -> None:
        if self._usable:
            return
        status = await self.ping()
        if not status.ok:
            raise RuntimeFailure(f"containers cannot run: {status.reason}", hint=status.remedy)

    # ------------------------------------------------------------------ images

    async def image_exists(self, image: str) -> bool:
        """Return whether it is present without a pull."""
        return await self.image(image) is not None

    async def image(self, image: str) -> ImageInfo | None:
        """Return what `container` reports of it."""
        return await self._services.image(image)

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        """Pull it; progress is not reported, because `container` writes it for terminals only."""
        del progress
        await self._services.pull(image, timeout=timeout)

    async def build(
        self,
        image: str,
        folder: Path,
        *,
        timeout: float,
        arguments: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Logs:
        """Build the folder's Dockerfile; `arguments` are its build arguments."""
        del progress
        return await self._services.build(image, folder, timeout=timeout, arguments=arguments or {})

    # ------------------------------------------------------------------ create

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Check the spec, create the folders and the container."""
        await self._ready()
        if spec.id in self._containers or spec.id in self._creating:
            raise InvalidParameter(f"id: there is a container {spec.id} already", field="id")
        await asyncio.to_thread(validation.check_spec, spec, self._base)
        container = _AppleContainer(spec)
        image = spec.image
        if image is None:
            raise InvalidParameter(
                "image: apple needs one", field="image", hint="set containers.image"
            )
        if (spec.hardening or self._hard).oci_runtime is not None:
            raise RuntimeFailure(
                "apple containers are machines of their own and have no OCI runtimes",
                hint="unset oci_runtime where it is set for this container's type or project",
            )
        await self._services.check_network(spec.network)
        self._creating.add(spec.id)
        try:
            await self._services.check_image(image)
            await self._make_folders(spec)
            await self._make(container, image)
        except BaseException as error:
            await self._cleanup(container)
            if isinstance(error, OSError) and not isinstance(error, OublietteError):
                raise RuntimeFailure(f"the container's folders: {error}") from error
            raise
        finally:
            self._creating.discard(spec.id)
        self._containers[spec.id] = container
        container.last = self._info(container, Seen(id=container.name, state="stopped", labels={}))
        return container.last

    async def _make_folders(self, spec: ContainerSpec) -> None:
        await asyncio.to_thread(runtime_dirs.make, spec, uid=self._owner(spec))

    async def _make(self, container: _AppleContainer, image: str) -> None:
        spec = container.spec
        argv = await asyncio.to_thread(self._create_argv, spec, image)
        await self._cli.call("create a container", argv)

    def _bundle_dir(self) -> Path:
        """Return the folder of the zipapp and its wrappers, made if it is missing."""
        tools = guest_bundle.install(
            self._base, self._zipapp, python="python3", inside=apple_argv.ZIPAPP
        )
        return tools.zipapp.parent

    def _create_argv(self, spec: ContainerSpec, image: str) -> list[str]:
        uid = self._uid(spec)
        folders = (
            Mount(self._bundle_dir(), apple_argv.KIT, read_only=True),
            Mount(shared_dirs.spool_of(spec), bubblewrap.SPOOL),
            Mount(runtime_dirs.key_dir(spec), apple_argv.KEY_DIR),
        )
        return apple_argv.create(
            spec,
            self._hard,
            image=image,
            user=(uid, uid if self._root else os.getegid()),
            labels={**spec.labels, LABEL_MADE_OF: write_spec(spec)},
            folders=folders,
        )

    async def _cleanup(self, container: _AppleContainer) -> None:
        with contextlib.suppress(OublietteError):
            await self._services.delete(container.name)
        await asyncio.to_thread(shared_dirs.clear, container.spec)

    def _owner(self, spec: ContainerSpec) -> int | None:
        """Return the user of this machine that owns the shared folders; None = ours."""
        return self._uid(spec) if self._root else None

    def _uid(self, spec: ContainerSpec) -> int:
        if not self._root:
            return os.geteuid()
        return NOBODY if spec.uid is None else spec.uid

    # ------------------------------------------------------------------ start

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start the guest and wait until it listens."""
        container = self._get(container_id)
        async with container.lock:
            await self._ready()
            if (await self._inspect(container)).state == "running":
                raise RuntimeFailure(f"container {container_id} is running already")
            try:
                await self._start(container, key, timeout)
            except (OSError, OublietteError) as error:
                log_tail = await self._tail_of_log(container)
                await self._reset(container)
                kind = type(error) if isinstance(error, OublietteError) else RuntimeFailure
                hint = error.hint if isinstance(error, OublietteError) else None
                if "executable file not found" in str(error) or "python3" in log_tail:
                    hint = f"the image {container.spec.image} needs python3 (3.9 or later)"
                message = error.message if isinstance(error, OublietteError) else str(error)
                raise kind(
                    f"container {container_id} did not start: {message}{log_tail}", hint=hint
                ) from error
            except BaseException:
                await self._reset(container)
                raise
            if container.spec.command is not None:
                return await self._inspect(container)
            # Not inspected: it has just reported that it listens, and waits for its server now.
            now = Seen(id=container.name, state="running", labels={}, started_at=time.time())
            container.last = self._info(container, now)
            return container.last

    async def _start(self, container: _AppleContainer, key: bytes, timeout: float) -> None:
        spec = container.spec
        for mount in spec.mounts:
            await asyncio.to_thread(validation.check_mount, mount)
        await self._make_folders(spec)
        await asyncio.to_thread(self._bundle_dir)  # cleaners of /tmp remove it
        await asyncio.to_thread(runtime_dirs.arm, spec, key, uid=self._owner(spec))
        try:
            async with asyncio.timeout(timeout):
                await self._cli.call("start the container", ["start", container.name])
                failpoint("container.launched")
                if spec.command is None:
                    await self._until_listening(container)
        except TimeoutError as error:
            if isinstance(error, OublietteError):
                raise
            raise DeadlineExceeded(
                f"the container's host was not ready in {timeout:g} s"
            ) from error
        runtime_dirs.disarm(spec, started=True)
        if spec.command is None and not runtime_dirs.published(spec):
            raise RuntimeFailure(
                f"container does not publish {runtime_dirs.socket_of(spec)}",
                hint="container system logs may say why",
            )

    async def _until_listening(self, container: _AppleContainer) -> None:
        exit_watch = await ExitWatch.open(self._cli, container.name, await_ready=True)
        container.exit_watch = exit_watch
        if await exit_watch.ready():
            return
        raise RuntimeFailure("its host ended before it was ready")

    async def _tail_of_log(self, container: _AppleContainer) -> str:
        with contextlib.suppress(OublietteError):
            text = (await self._services.logs(container.name, 5)).text.strip()
            return f": {text[-500:]}" if text else ""
        return ""

    async def _reset(self, container: _AppleContainer) -> None:
        """Undo a failed start: restore the state after `create`."""
        await self._release(container)
        with contextlib.suppress(OublietteError):
            await self._services.delete(container.name)
            runtime_dirs.disarm(container.spec, started=False)
            await self._make(container, container.spec.image or "")
        runtime_dirs.disarm(container.spec, started=False)

    # ------------------------------------------------------------------ exit

    async def _until_ended(self, container: _AppleContainer) -> ContainerInfo:
        """Wait until it does not run, or until its state is known again."""
        pause = _FIRST_RETRY
        while True:
            held = None
            with contextlib.suppress(EngineMissing, DeadlineExceeded):
                info = await self._inspect(container)
                if info.state != "running":
                    # The services remove it too, a moment later: until then connections would not
                    # be accepted. A start in progress has its own.
                    if not container.lock.locked():
                        runtime_dirs.socket_of(container.spec).unlink(missing_ok=True)
                    return info
                held = await self._hold(container)
                began = asyncio.get_running_loop().time()
                await held.ended()
                if asyncio.get_running_loop().time() - began > _LAST_RETRY:
                    pause = _FIRST_RETRY
                    continue
            # The exec ended but not the container, or the services are down: do not retry at once.
            # An agent can end the exec, and must not keep us busy with it.
            if held is None or (await self._still_runs(container)):
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_RETRY)

    async def _still_runs(self, container: _AppleContainer) -> bool:
        with contextlib.suppress(EngineMissing, DeadlineExceeded):
            return (await self._inspect(container)).state == "running"
        return True

    async def _hold(self, container: _AppleContainer) -> ExitWatch:
        """Return the exit watch of a running container, opened if there is none."""
        async with container.opening:
            if container.exit_watch is None or not container.exit_watch.alive:
                container.exit_watch = await ExitWatch.open(self._cli, container.name)
            return container.exit_watch

    async def _release(self, container: _AppleContainer) -> None:
        exit_watch, container.exit_watch = container.exit_watch, None
        if exit_watch is not None:
            await exit_watch.close()

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._until_ended(self._get(container_id))

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: SIGTERM, `timeout` seconds (rounded up), SIGKILL; the machine ends."""
        container = self._get(container_id)
        async with container.lock:
            info = await self._inspect(container)
            if info.state != "running":
                return info
            if timeout > 0:
                seconds = math.ceil(timeout)
                argv = ["stop", "--time", str(seconds), container.name]
                limit = seconds + STOP_SECONDS
                with contextlib.suppress(OublietteError):  # the next inspection explains it
                    await self._cli.call("stop the container", argv, timeout=limit)
                info = await self._inspect(container)
                if info.state != "running":
                    return info
            with contextlib.suppress(OublietteError):
                argv = ["kill", "--signal", "KILL", container.name]
                await self._cli.call("end the container", argv)
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    return await self._until_ended(container)
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"container {container_id} does not end",
                    hint="container system logs may say why",
                ) from error

    async def remove(self, container_id: str) -> None:
        """Kill it, and remove it, its runtime folder and its spool."""
        container = self._containers.get(container_id)
        if container is None:
            return
        async with container.lock:
            container.removed = True
            await self._services.delete(container.name)
            await self._release(container)
            await asyncio.to_thread(shared_dirs.clear, container.spec)
            self._containers.pop(container_id, None)

    # ------------------------------------------------------------------ inspect

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Query the services.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._inspect(self._get(container_id))

    def _get(self, container_id: str) -> _AppleContainer:
        container = self._containers.get(container_id)
        if container is None:
            raise NotFound(f"there is no container {container_id}")
        return container

    async def _inspect(self, container: _AppleContainer) -> ContainerInfo:
        seen = await self._services.look(container.name)
        if seen is None:
            if container.removed and container.last is not None:
                return msgspec.structs.replace(container.last, state="exited", handle={})
            raise ContainerLost(
                f"container {container.spec.id} is gone: somebody else has removed it"
            )
        container.last = self._info(container, seen)
        return container.last

    def _info(self, container: _AppleContainer, seen: Seen) -> ContainerInfo:
        spec = container.spec
        state: ContainerState = "unknown"
        if seen.state in {"running", "stopping"}:
            state = "running"
        elif seen.state == "stopped":
            state = "exited" if runtime_dirs.was_started(spec) else "created"
        handle: dict[str, Any] = {"name": container.name}
        return ContainerInfo(
            id=spec.id,
            state=state,
            labels=spec.labels,
            runtime_dir=spec.runtime_dir,
            handle=handle,
            inside=Inside(zipapp=apple_argv.ZIPAPP, env=apple_argv.inside_environment()),
            started_at=seen.started_at if state == "running" else None,
        )

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """Return the end of what the guest wrote to its standard streams."""
        return await self._services.logs(self._get(container_id).name, tail)

    def dial(self, info: ContainerInfo) -> Dial:
        """Return its published socket; if that has ended, a bridge for each link."""
        return functools.partial(
            exec_bridge.dial,
            self._cli,
            info.runtime_dir / apple_argv.RELAY_SOCKET,
            apple_argv.name_of(info.id),
        )

    # ------------------------------------------------------------------ adoption

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Find the instance's containers by label; remove folders without one."""
        await self._ready()
        found: list[tuple[_AppleContainer, Seen]] = []
        for seen in await self._services.list_all():
            if seen.labels.get(LABEL_INSTANCE) == instance:
                container = await self._recognise(seen)
                if container is not None:
                    found.append((container, seen))
        known = {container.spec.id for container, _ in found} | self._creating
        marked = await asyncio.to_thread(
            lambda: list(shared_dirs.marked(self._base, runtime_dirs.ENGINE, instance))
        )
        for folder, container_id in marked:
            if container_id not in known and container_id not in self._containers:
                spec = ContainerSpec(id=container_id, labels={}, runtime_dir=folder)
                await asyncio.to_thread(shared_dirs.clear, spec)
        return [self._info(container, seen) for container, seen in found]

    async def _recognise(self, seen: Seen) -> _AppleContainer | None:
        container_id = seen.labels.get(LABEL_CONTAINER)
        if container_id is None or container_id in self._creating:
            return None
        known = self._containers.get(container_id)
        if known is not None:
            return known
        try:
            spec = read_spec(seen.labels)
        except msgspec.MsgspecError:
            # Ours by its instance, but of a release with another format: it cannot be used.
            await self._services.delete(seen.id)
            return None
        known = self._containers[container_id] = _AppleContainer(spec)
        return known

    async def aclose(self) -> None:
        """Close the exit watches; containers go on."""
        containers = list(self._containers.values())
        self._containers.clear()
        await asyncio.gather(*(self._release(container) for container in containers))
