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

from oubliette.errors import (
    DeadlineExceeded,
    OublietteError,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.containers import guest_bundle, layout, validation
from oubliette.runtime.containers import runtime_dirs as shared_dirs
from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.apple import exec_bridge, runtime_dirs
from oubliette.runtime.containers.apple.cli import AppleCli
from oubliette.runtime.containers.apple.exit_watch import ExitWatch
from oubliette.runtime.containers.apple.output import Seen
from oubliette.runtime.containers.apple.services import AppleServices
from oubliette.runtime.containers.base import (
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
from oubliette.runtime.containers.engine_errors import EngineMissing
from oubliette.runtime.containers.engine_runtime import EngineContainer, EngineRuntime, Listed
from oubliette.runtime.containers.labels import LABEL_MADE_OF, write_spec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import ContainerState, Progress

STOP_SECONDS: Final = 30.0  # for the services, beyond the container's own timeout
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 2.0


class _AppleContainer(EngineContainer):
    def __init__(self, spec: ContainerSpec) -> None:
        super().__init__(spec)
        self.name = apple_argv.name_of(spec.id)
        self.exit_watch: ExitWatch | None = None
        self.opening = asyncio.Lock()


class AppleRuntime(EngineRuntime[_AppleContainer, Seen]):
    """`ContainerRuntime` on Apple's `container`, 1.0 or later.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest.
        path: the program; None = `container` on PATH.
        hard: hardening of containers, as far as supported here.
    """

    KILL_SECONDS = 15.0
    HANG_HINT = "container system logs may show the cause"

    def __init__(
        self, base: Path, zipapp: Path, *, path: str | None = None, hard: Hardening | None = None
    ) -> None:
        super().__init__(base, zipapp, hard)
        self._cli = AppleCli(path)
        self._services = AppleServices(self._cli)

    @property
    def name(self) -> str:
        return "apple"

    @property
    def capabilities(self) -> Capabilities:
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

    # ------------------------------------------------------------------ images

    async def image(self, image: str) -> ImageInfo | None:
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

    async def _check(self, spec: ContainerSpec) -> None:
        if (spec.hardening or self._hard).oci_runtime is not None:
            raise RuntimeFailure(
                "apple containers are machines of their own and have no OCI runtimes",
                hint="unset oci_runtime where it is set for this container's type or project",
            )
        await self._services.check_network(spec.network)
        await self._services.check_image(spec.image or "")

    def _new(self, spec: ContainerSpec, listed: Listed[Seen] | None = None) -> _AppleContainer:
        del listed
        return _AppleContainer(spec)

    async def _make_folders(self, spec: ContainerSpec) -> None:
        await asyncio.to_thread(runtime_dirs.make, spec, uid=self._owner(spec))

    async def _make(self, container: _AppleContainer) -> None:
        argv = await asyncio.to_thread(self._create_argv, container.spec)
        await self._cli.call("create a container", argv)

    def _created(self, container: _AppleContainer) -> ContainerInfo:
        return self._info(container, Seen(id=container.name, state="stopped", labels={}))

    def _bundle_dir(self) -> Path:
        """The folder of the zipapp and its wrappers, made if it is missing."""
        tools = guest_bundle.install(
            self._base, self._zipapp, python="python3", inside=apple_argv.ZIPAPP
        )
        return tools.zipapp.parent

    def _create_argv(self, spec: ContainerSpec) -> list[str]:
        uid = self._uid(spec)
        folders = (
            Mount(self._bundle_dir(), apple_argv.KIT, read_only=True),
            Mount(shared_dirs.spool_of(spec), layout.SPOOL),
            Mount(runtime_dirs.key_dir(spec), apple_argv.KEY_DIR),
        )
        return apple_argv.create(
            spec,
            self._hard,
            image=spec.image or "",
            user=(uid, uid if self._root else os.getegid()),
            labels={**spec.labels, LABEL_MADE_OF: write_spec(spec)},
            folders=folders,
        )

    # ------------------------------------------------------------------ start

    async def _prepare(self, container: _AppleContainer, key: bytes) -> None:
        spec = container.spec
        for mount in spec.mounts:
            await asyncio.to_thread(validation.check_mount, mount)
        await self._make_folders(spec)
        await asyncio.to_thread(self._bundle_dir)
        await asyncio.to_thread(runtime_dirs.arm, spec, key, uid=self._owner(spec))

    async def _launch(self, container: _AppleContainer, key: bytes) -> ContainerInfo:
        del key  # in its folder already
        spec = container.spec
        await self._cli.call("start the container", ["start", container.name])
        failpoint("container.launched")
        if spec.command is None:
            await self._until_listening(container)
        runtime_dirs.disarm(spec, started=True)
        if spec.command is not None:
            return await self._inspect(container)
        if not runtime_dirs.published(spec):
            raise RuntimeFailure(
                f"container does not publish {runtime_dirs.socket_of(spec)}",
                hint="container system logs may show the cause",
            )
        # Not inspected: it has just reported that it listens, and waits for its server now.
        now = Seen(id=container.name, state="running", labels={}, started_at=time.time())
        container.last = self._info(container, now)
        return container.last

    async def _until_listening(self, container: _AppleContainer) -> None:
        exit_watch = await ExitWatch.open(self._cli, container.name, await_ready=True)
        container.exit_watch = exit_watch
        if await exit_watch.ready():
            return
        raise RuntimeFailure("its guest ended before it was ready")

    async def _tail_of_log(self, container: _AppleContainer) -> str:
        with contextlib.suppress(OublietteError):
            text = (await self._services.logs(container.name, 5)).text.strip()
            return f": {text[-500:]}" if text else ""
        return ""

    def _start_hint(self, container: _AppleContainer, error: str, tail: str) -> str | None:
        if "executable file not found" in error or "python3" in tail:
            return f"the image {container.spec.image} needs python3 (3.9 or later)"
        return None

    async def _reset(self, container: _AppleContainer) -> None:
        await self._release(container)
        with contextlib.suppress(OublietteError):
            await self._services.delete(container.name)
            runtime_dirs.disarm(container.spec, started=False)
            await self._make(container)
        runtime_dirs.disarm(container.spec, started=False)

    # ------------------------------------------------------------------ exit

    async def _until_ended(self, container: _AppleContainer) -> ContainerInfo:
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
        """The exit watch of a running container, opened if there is none."""
        async with container.opening:
            if container.exit_watch is None or not container.exit_watch.alive:
                container.exit_watch = await ExitWatch.open(self._cli, container.name)
            return container.exit_watch

    async def _release(self, container: _AppleContainer) -> None:
        exit_watch, container.exit_watch = container.exit_watch, None
        if exit_watch is not None:
            await exit_watch.close()

    async def _terminate(self, container: _AppleContainer, timeout: float) -> ContainerInfo | None:
        seconds = math.ceil(timeout)
        argv = ["stop", "--time", str(seconds), container.name]
        with contextlib.suppress(OublietteError):  # the next inspection explains it
            await self._cli.call("stop the container", argv, timeout=seconds + STOP_SECONDS)
        info = await self._inspect(container)
        return None if info.state == "running" else info

    async def _kill(self, container: _AppleContainer) -> None:
        with contextlib.suppress(OublietteError):
            argv = ["kill", "--signal", "KILL", container.name]
            await self._cli.call("end the container", argv)

    async def _delete(self, container: _AppleContainer) -> None:
        await self._services.delete(container.name)
        await self._release(container)

    async def _delete_unreadable(self, engine_id: str) -> None:
        await self._services.delete(engine_id)

    # ------------------------------------------------------------------ inspect

    async def _look(self, container: _AppleContainer) -> Seen | None:
        return await self._services.look(container.name)

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
        """The end of what the guest wrote to its standard streams."""
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

    async def _list(self, instance: str) -> list[Listed[Seen]]:
        return [
            Listed(seen.id, seen.labels, seen)
            for seen in await self._services.list_all()
            if seen.labels.get(LABEL_INSTANCE) == instance
        ]

    async def aclose(self) -> None:
        """Close the exit watches; containers go on."""
        containers = list(self._containers.values())
        self._containers.clear()
        await asyncio.gather(*(self._release(container) for container in containers))
