"""Container runtime for docker and podman: engines with the Docker API.

The engine holds all state: a container's labels hold its spec, so that a new server finds all of it
again after a kill. The process in a container is our guest; agents and execs run through it, so
that a spawn is a fork and a kill reaches the process. The engine's own exec carries links if
sockets do not (`docker.relay_transport`), and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import tenacity

from oubliette.errors import (
    InvalidParameter,
    OublietteError,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.containers import (
    engine_errors,
    guest_bundle,
    layout,
    runtime_dirs,
    validation,
)
from oubliette.runtime.containers import labels as container_labels
from oubliette.runtime.containers.base import (
    LABEL_INSTANCE,
    Capabilities,
    ContainerInfo,
    ContainerSpec,
    Dial,
    ImageInfo,
    Inside,
    Logs,
    RuntimeStatus,
)
from oubliette.runtime.containers.docker import api, commits, create_body, images, relay_transport
from oubliette.runtime.containers.docker.client import Engine, Facts
from oubliette.runtime.containers.docker.create_body import Hardening, HostPaths
from oubliette.runtime.containers.docker.events import EngineEvents
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound, EngineRefused
from oubliette.runtime.containers.engine_runtime import EngineContainer, EngineRuntime, Listed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import Progress
    from oubliette.runtime.containers.docker.address import Flavour
    from oubliette.runtime.containers.docker.relay_transport import Listening, Sockets

LOG_BYTES: Final = 1 << 20

log = structlog.get_logger(__name__)


_ENDED_MEANWHILE: Final = "no such process"
"""Part of podman's refusal to describe a container whose process ends while it looks."""


class _DockerContainer(EngineContainer):
    def __init__(self, spec: ContainerSpec, engine_id: str, *, bridged: bool) -> None:
        super().__init__(spec)
        self.engine_id = engine_id
        """Its id, or the name that it will have."""
        self.bridged = bridged
        """Its `/mcp` is not on this machine."""
        self.fresh = False
        """Just created, so it need not be inspected before it is started."""


class DockerRuntime(EngineRuntime[_DockerContainer, "Mapping[str, Any]"]):
    """`ContainerRuntime` on docker, or, with `flavour="podman"`, on podman's socket.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest.
        flavour: the engine, whose peculiarities are handled.
        host: its address (`unix://…`); None = `DOCKER_HOST`, the CLI's context, the usual socket.
        sockets: transport of links to the relay; `auto` depends on where the engine runs.
        hard: hardening of containers.
    """

    KILL_SECONDS = api.KILL_TIMEOUT
    HANG_HINT = "a process in it hangs in the kernel, often on a network file system"

    def __init__(
        self,
        base: Path,
        zipapp: Path,
        *,
        flavour: Flavour = "docker",
        host: str | None = None,
        hard: Hardening | None = None,
        sockets: Sockets = "auto",
    ) -> None:
        super().__init__(base, zipapp, hard)
        self._flavour: Flavour = flavour
        self._engine = Engine(flavour, host)
        self._events = EngineEvents(self._engine)
        self._sockets: Sockets = sockets
        self._bridged = sockets == "bridge"
        self._facts: Facts | None = None

    @property
    def name(self) -> str:
        """`docker` or `podman`."""
        return self._flavour

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this runtime; final after the first `ping`."""
        rootless = self._facts is not None and self._facts.rootless
        return Capabilities(
            survives_server=True,
            sockets_cross=not self._bridged,
            network_none=True,
            network_host=True,
            images=True,
            commits=True,
            uid_per_container=self._root and not rootless,
            isolation="container",
        )

    # ------------------------------------------------------------------ the engine

    async def ping(self) -> RuntimeStatus:
        """Query the engine's facts, once, and check that it answers and supports the settings."""
        try:
            known = self._facts is not None
            facts = await self._engine.facts()
            if known:
                await self._engine.call("ask whether it is there", api.ping)
        except OublietteError as error:
            return RuntimeStatus(ok=False, reason=error.message, remedy=error.hint)
        self._facts = facts
        version = f"{facts.version} (API {facts.api_version})"
        refusal = self._refusal(facts)
        self._usable = refusal is None
        if refusal is not None:
            return RuntimeStatus(ok=False, version=version, reason=refusal[0], remedy=refusal[1])
        return RuntimeStatus(ok=True, version=version)

    def _refusal(self, facts: Facts) -> tuple[str, str] | None:
        wanted = self._hard.oci_runtime
        # podman silently accepts an unknown name and runs its default
        if wanted is not None and wanted not in facts.runtimes:
            others = ", ".join(sorted(facts.runtimes)) or "none that it names"
            return (
                f"{self._flavour} has no OCI runtime {wanted!r}; it has {others}",
                f"register it with the engine, or unset {self._flavour}.oci_runtime",
            )
        bridged = relay_transport.choose(self._engine, facts, self._sockets)
        if isinstance(bridged, tuple):
            return bridged
        if bridged and not self._bridged:
            log.info("links are bridged", engine=self._engine.where, system=facts.system)
        self._bridged = bridged
        return None

    # ------------------------------------------------------------------ images

    async def image(self, image: str) -> ImageInfo | None:
        return await images.look(self._engine, image)

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        await images.pull(self._engine, image, timeout=timeout, progress=progress)

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
        before = await self.image(image)
        said = await images.build(
            self._engine,
            image,
            folder,
            timeout=timeout,
            arguments=arguments or {},
            progress=progress,
        )
        after = await self.image(image)
        if before is not None and after is not None and before.id != after.id:
            await images.drop_replaced(self._engine, before.id)
        return said

    async def commit(
        self, container_id: str, image: str, *, labels: Mapping[str, str], timeout: float
    ) -> ImageInfo:
        """Store a container's file system as an image; it is paused meanwhile."""
        engine_id = self._get(container_id).engine_id
        return await commits.commit(self._engine, engine_id, image, labels, timeout=timeout)

    async def drop_images(self, label: str, *, but: str | None = None) -> None:
        """Remove the images with this label that no container uses."""
        await commits.drop_labelled(self._engine, label, but=but)

    # ------------------------------------------------------------------ create

    async def _check(self, spec: ContainerSpec) -> None:
        assert self._facts is not None
        validation.check_oci_runtime(spec, self._flavour, self._facts.runtimes)
        if spec.network in {"none", "host", "bridge"}:
            return
        try:
            await self._engine.call("look for a network", api.network, spec.network)
        except EngineNotFound as error:
            raise InvalidParameter(
                f"network: {self._flavour} has no network {spec.network}",
                field="network",
                hint=f"{self._flavour} network create {spec.network}",
            ) from error

    def _new(
        self, spec: ContainerSpec, listed: Listed[Mapping[str, Any]] | None = None
    ) -> _DockerContainer:
        if listed is None:
            name = container_labels.name_of(spec.id)
            return _DockerContainer(spec, name, bridged=self._bridged)
        bridged = listed.labels.get(container_labels.LABEL_BRIDGED) == ""
        return _DockerContainer(spec, listed.engine_id, bridged=bridged)

    async def _make_folders(self, spec: ContainerSpec) -> None:
        await asyncio.to_thread(
            runtime_dirs.make, spec, engine=self._flavour, uid=self._owner(spec)
        )

    def _host_paths(self, spec: ContainerSpec) -> HostPaths:
        tools = guest_bundle.install(
            self._base, self._zipapp, python="python3", inside=layout.ZIPAPP
        )
        return HostPaths(
            zipapp=tools.zipapp, wrappers=tools.wrappers, spool=runtime_dirs.spool_of(spec)
        )

    async def _make(self, container: _DockerContainer) -> None:
        spec = container.spec
        paths = await asyncio.to_thread(self._host_paths, spec)
        body = create_body.request(
            spec,
            paths,
            self._hard,
            user=self._user(spec),
            labels={
                **spec.labels,
                container_labels.LABEL_MADE_OF: container_labels.write_spec(spec),
                **({container_labels.LABEL_BRIDGED: ""} if container.bridged else {}),
            },
            flavour=self._flavour,
        )
        if self._facts is not None and self._facts.rootless and self._flavour == "podman":
            body["HostConfig"]["UsernsMode"] = "keep-id"
        if container.bridged:
            relay_transport.shape_bridged(body, self._flavour)
        try:
            made = await self._engine.call(
                "create a container", api.create, body, container_labels.name_of(spec.id)
            )
        except EngineNotFound as error:
            raise images.not_there(self._flavour, spec.image or "") from error
        except EngineRefused as error:
            raise relay_transport.explained(self._engine, error) from error
        container.engine_id = str(made["Id"])
        container.fresh = True

    def _created(self, container: _DockerContainer) -> ContainerInfo:
        return self._info(container, {"State": {"Status": "created"}})

    def _user(self, spec: ContainerSpec) -> str:
        if self._facts is not None and self._facts.rootless and self._flavour == "docker":
            # Rootless docker maps its root, without any capability, to its own user.
            return "0:0"
        uid = self._uid(spec)
        return f"{uid}:{uid if self._root else os.getegid()}"

    # ------------------------------------------------------------------ start

    async def _runs(self, container: _DockerContainer) -> bool:
        fresh, container.fresh = container.fresh, False
        return not fresh and await super()._runs(container)

    async def _prepare(self, container: _DockerContainer, key: bytes) -> None:
        del key
        await asyncio.to_thread(self._restore, container.spec)

    async def _launch(self, container: _DockerContainer, key: bytes) -> ContainerInfo:
        spec = container.spec
        if container.bridged:
            transport = relay_transport.bridged(self._engine, container.engine_id, key)
        else:
            transport = relay_transport.mounted(spec, key, self._owner(spec))
        async with transport as listening:
            self._events.listen()
            await self._engine.call("start the container", api.start, container.engine_id)
            failpoint("container.launched")
            if spec.command is None:
                return await self._until_listening(container, listening)
            return await self._inspect(container)

    def _restore(self, spec: ContainerSpec) -> None:
        for mount in spec.mounts:
            validation.check_mount(mount)
        runtime_dirs.make(spec, engine=self._flavour, uid=self._owner(spec))
        self._host_paths(spec)

    async def _until_listening(
        self, container: _DockerContainer, listening: Listening
    ) -> ContainerInfo:
        before = container.last
        ready = asyncio.create_task(listening())
        ended = asyncio.create_task(self._until_ended(container))
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                info = ended.result()
                raise RuntimeFailure(
                    f"its guest ended before it was ready (exit code {info.exit_code})"
                )
        finally:
            for task in (ready, ended):
                task.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)
        # It was usually inspected in between, and a connected guest proves that it runs.
        now = container.last
        if now is not None and now is not before and now.state == "running":
            return now
        return await self._inspect(container)

    async def _tail_of_log(self, container: _DockerContainer) -> str:
        # Podman's log of a container that has just ended may be complete a moment after its end,
        # which is long on a busy machine. One that never ran may have none.
        ran = container.last is not None and container.last.state == "exited"
        again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(operator.not_),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(10.0 if ran else 1.0),
            retry_error_callback=lambda _: "",
        )

        async def read() -> str:
            return (await self._logs(container, 5)).text.strip()

        with contextlib.suppress(OublietteError):
            text: str = await again(read)
            return f": {text[-500:]}" if text else ""
        return ""

    def _start_hint(self, container: _DockerContainer, error: str, tail: str) -> str | None:
        return engine_errors.python_hint(container.spec.image, f"{error}{tail}")

    async def _reset(self, container: _DockerContainer) -> None:
        with contextlib.suppress(OublietteError):
            await self._delete(container)
            await self._make(container)
        runtime_dirs.disarm(container.spec.runtime_dir, started=False)

    # ------------------------------------------------------------------ exit

    async def _until_ended(self, container: _DockerContainer) -> ContainerInfo:
        while True:
            hint = self._events.hint(container.engine_id)
            try:
                with contextlib.suppress(EngineMissing):
                    info = await self._inspect(container)
                    if info.state != "running":
                        return info
                await hint
            finally:
                self._events.drop(container.engine_id, hint)

    async def _terminate(self, container: _DockerContainer, timeout: float) -> ContainerInfo | None:
        await self._signal(container, "SIGTERM")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._until_ended(container)
        return None

    async def _kill(self, container: _DockerContainer) -> None:
        await self._signal(container, "SIGKILL")

    async def _signal(self, container: _DockerContainer, name: str) -> None:
        try:
            await self._engine.call("end the container", api.kill, container.engine_id, name)
        except EngineNotFound:
            pass  # the next inspection explains it
        except EngineRefused as error:
            # "is not running": it ended in between
            if (await self._inspect(container)).state == "running":
                raise error from None

    async def _delete(self, container: _DockerContainer) -> None:
        await self._delete_unreadable(container.engine_id)

    async def _delete_unreadable(self, engine_id: str) -> None:
        await self._engine.call("remove a container", api.remove, engine_id)

    # ------------------------------------------------------------------ inspect

    async def _look(self, container: _DockerContainer) -> Mapping[str, Any] | None:
        step, engine_id = "look at a container", container.engine_id
        try:
            seen = await self._engine.call(step, api.inspect, engine_id)
        except EngineNotFound:
            return None
        except EngineRefused as error:
            if _ENDED_MEANWHILE not in str(error):
                raise
            try:
                seen = await self._engine.call(step, api.inspect, engine_id)
            except EngineNotFound:
                return None
        return cast("Mapping[str, Any]", seen)

    def _info(self, container: _DockerContainer, seen: Mapping[str, Any]) -> ContainerInfo:
        now: dict[str, Any] = seen.get("State") or {}
        state = container_labels.state_of(now)
        handle: dict[str, Any] = {"engine_id": container.engine_id}
        pid = int(now.get("Pid") or 0)
        if state == "running" and pid > 0 and self._facts is not None and self._facts.local:
            handle["pid"] = pid
        if container.bridged or self._bridged:
            handle[relay_transport.HANDLE] = relay_transport.bridge_user(self._user(container.spec))
        return ContainerInfo(
            id=container.spec.id,
            state=state,
            labels=container.spec.labels,
            runtime_dir=container.spec.runtime_dir,
            handle=handle,
            inside=Inside(env=layout.inside_environment()),
            started_at=container_labels.seconds(now.get("StartedAt"))
            if state != "created"
            else None,
            exit_code=int(now.get("ExitCode") or 0) if state == "exited" else None,
        )

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """The end of what the guest wrote to its standard streams."""
        return await self._logs(self._get(container_id), tail)

    async def _logs(self, container: _DockerContainer, tail: int) -> Logs:
        if tail <= 0:
            return Logs(text="")
        raw = await self._engine.call("read the logs", api.read_logs, container.engine_id, tail + 1)
        lines = raw.decode("utf-8", "replace").splitlines(keepends=True)
        text = "".join(lines[-tail:])
        return Logs(text=text[-LOG_BYTES:], truncated=len(lines) > tail or len(text) > LOG_BYTES)

    def dial(self, info: ContainerInfo) -> Dial:
        """Return its socket, or a bridge for each link."""
        return relay_transport.dial(self._engine, info)

    # ------------------------------------------------------------------ adoption

    async def _list(self, instance: str) -> list[Listed[Mapping[str, Any]]]:
        listed = await self._engine.call(
            "list containers", api.labelled, f"{LABEL_INSTANCE}={instance}"
        )
        return [
            Listed(str(entry["Id"]), cast("dict[str, str]", entry.get("Labels") or {}), None)
            for entry in listed
        ]

    async def aclose(self) -> None:
        """Close the connections to the engine; containers go on."""
        self._containers.clear()
        await self._events.aclose()
        await self._engine.aclose()
