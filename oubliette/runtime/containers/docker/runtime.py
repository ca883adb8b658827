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

import msgspec
import structlog
import tenacity

from oubliette.errors import (
    ContainerLost,
    DeadlineExceeded,
    InvalidParameter,
    NotFound,
    OublietteError,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.containers import guest_bundle, image_errors, runtime_dirs, validation
from oubliette.runtime.containers import labels as container_labels
from oubliette.runtime.containers.base import (
    LABEL_CONTAINER,
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
from oubliette.runtime.containers.docker import api, create_body, images, relay_transport
from oubliette.runtime.containers.docker.client import Engine, Facts
from oubliette.runtime.containers.docker.create_body import Hardening, HostPaths
from oubliette.runtime.containers.docker.events import EngineEvents
from oubliette.runtime.containers.errors import EngineMissing, EngineNotFound, EngineRefused
from oubliette.runtime.containers.process import bubblewrap
from oubliette.runtime.containers.process.sandbox_plan import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import Progress
    from oubliette.runtime.containers.docker.address import Flavour
    from oubliette.runtime.containers.docker.relay_transport import Listening, Sockets

LOG_BYTES: Final = 1 << 20

log = structlog.get_logger(__name__)


class _EngineContainer:
    """State of one known container."""

    def __init__(self, spec: ContainerSpec, engine_id: str, *, bridged: bool) -> None:
        self.spec = spec
        self.engine_id = engine_id
        self.bridged = bridged
        """Its `/mcp` is not on this machine."""
        self.lock = asyncio.Lock()
        self.removed = False
        self.fresh = False
        """Just created, so it need not be inspected before it is started."""
        self.last: ContainerInfo | None = None


class DockerRuntime:
    """`ContainerRuntime` on docker, or, with `flavour="podman"`, on podman's socket.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest.
        flavour: the engine, whose peculiarities are handled.
        host: its address (`unix://…`); None = `DOCKER_HOST`, the CLI's context, the usual socket.
        sockets: transport of links to the relay; `auto` depends on where the engine runs.
        hard: hardening of containers.
    """

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
        self._base = base
        self._zipapp = zipapp
        self._flavour: Flavour = flavour
        self._hard = hard or Hardening()
        self._engine = Engine(flavour, host)
        self._events = EngineEvents(self._engine)
        self._sockets: Sockets = sockets
        self._bridged = sockets == "bridge"
        self._root = os.geteuid() == 0
        self._containers: dict[str, _EngineContainer] = {}
        self._creating: set[str] = set()
        self._facts: Facts | None = None
        self._usable = False
        """Nothing about the engine prevents containers from running."""

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

    async def _ready(self) -> Facts:
        """Return the engine's facts; whether it still answers is shown by the next call."""
        if self._usable and self._facts is not None:
            return self._facts
        status = await self.ping()
        if not status.ok or self._facts is None:
            raise RuntimeFailure(f"containers cannot run: {status.reason}", hint=status.remedy)
        return self._facts

    # ------------------------------------------------------------------ images

    async def image_exists(self, image: str) -> bool:
        """Return whether the engine has it."""
        return await self.image(image) is not None

    async def image(self, image: str) -> ImageInfo | None:
        """Return the engine's details of it."""
        return await images.look(self._engine, image)

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        """Pull it from its registry."""
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

    # ------------------------------------------------------------------ create

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Check the spec, create the folders and the container."""
        facts = await self._ready()
        validation.check_oci_runtime(spec, self._flavour, facts.runtimes)
        if spec.id in self._containers or spec.id in self._creating:
            raise InvalidParameter(f"id: there is a container {spec.id} already", field="id")
        await asyncio.to_thread(validation.check_spec, spec, self._base)
        if spec.image is None:
            raise InvalidParameter(
                f"image: {self._flavour} needs one", field="image", hint="set containers.image"
            )
        await self._check_network(spec.network)
        self._creating.add(spec.id)
        try:
            await self._make_folders(spec)
            bridged = self._bridged
            container = _EngineContainer(
                spec, await self._make(spec, bridged=bridged), bridged=bridged
            )
            container.fresh = True
            info = container.last = self._info(container, {"State": {"Status": "created"}})
        except BaseException as error:
            await self._cleanup(spec)
            if isinstance(error, OSError) and not isinstance(error, OublietteError):
                raise RuntimeFailure(f"the container's folders: {error}") from error
            raise
        finally:
            self._creating.discard(spec.id)
        self._containers[spec.id] = container
        return info

    async def _make_folders(self, spec: ContainerSpec) -> None:
        await asyncio.to_thread(
            runtime_dirs.make, spec, engine=self._flavour, uid=self._owner(spec)
        )

    def _host_paths(self, spec: ContainerSpec) -> HostPaths:
        tools = guest_bundle.install(
            self._base, self._zipapp, python="python3", inside=bubblewrap.ZIPAPP
        )
        return HostPaths(
            zipapp=tools.zipapp, wrappers=tools.wrappers, spool=runtime_dirs.spool_of(spec)
        )

    async def _make(self, spec: ContainerSpec, *, bridged: bool) -> str:
        """Create the container at the engine; return its id there."""
        paths = await asyncio.to_thread(self._host_paths, spec)
        body = create_body.request(
            spec,
            paths,
            self._hard,
            user=self._user(spec),
            labels={
                **spec.labels,
                container_labels.LABEL_MADE_OF: container_labels.write_spec(spec),
                **({container_labels.LABEL_BRIDGED: ""} if bridged else {}),
            },
            flavour=self._flavour,
        )
        if self._facts is not None and self._facts.rootless and self._flavour == "podman":
            body["HostConfig"]["UsernsMode"] = "keep-id"
        if bridged:
            relay_transport.shape_bridged(body, self._flavour)
        try:
            made = await self._engine.call(
                "create a container", api.create, body, container_labels.name_of(spec.id)
            )
        except EngineNotFound as error:
            raise images.not_there(self._flavour, spec.image or "") from error
        except EngineRefused as error:
            raise relay_transport.explained(self._engine, error) from error
        return str(made["Id"])

    async def _cleanup(self, spec: ContainerSpec) -> None:
        with contextlib.suppress(OublietteError):
            await self._engine.call(
                "remove a container", api.remove, container_labels.name_of(spec.id)
            )
        await asyncio.to_thread(runtime_dirs.clear, spec)

    def _owner(self, spec: ContainerSpec) -> int | None:
        """Return the user of this machine that owns the container's folders; None = ours."""
        return self._uid(spec) if self.capabilities.uid_per_container else None

    def _uid(self, spec: ContainerSpec) -> int:
        if not self.capabilities.uid_per_container:
            return os.geteuid() or NOBODY
        return NOBODY if spec.uid is None else spec.uid

    def _user(self, spec: ContainerSpec) -> str:
        if self._facts is not None and self._facts.rootless and self._flavour == "docker":
            # Rootless docker maps its root, without any capability, to its own user.
            return "0:0"
        uid = self._uid(spec)
        return f"{uid}:{uid if self._root else os.getegid()}"

    async def _check_network(self, network: str) -> None:
        if network in {"none", "host", "bridge"}:
            return
        try:
            await self._engine.call("look for a network", api.network, network)
        except EngineNotFound as error:
            raise InvalidParameter(
                f"network: {self._flavour} has no network {network}",
                field="network",
                hint=f"{self._flavour} network create {network}",
            ) from error

    # ------------------------------------------------------------------ start

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start the guest and wait until it listens."""
        container = self._get(container_id)
        async with container.lock:
            await self._ready()
            if not container.fresh and (await self._inspect(container)).state == "running":
                raise RuntimeFailure(f"container {container_id} is running already")
            container.fresh = False
            try:
                return await self._start(container, key, timeout)
            except (OSError, OublietteError) as error:
                said = await self._tail_of_log(container)
                await self._reset(container)
                kind = type(error) if isinstance(error, OublietteError) else RuntimeFailure
                hint = error.hint if isinstance(error, OublietteError) else None
                hint = image_errors.python_hint(container.spec.image, f"{error}{said}") or hint
                message = error.message if isinstance(error, OublietteError) else str(error)
                raise kind(
                    f"container {container_id} did not start: {message}{said}", hint=hint
                ) from error
            except BaseException:
                await self._reset(container)
                raise

    async def _start(
        self, container: _EngineContainer, key: bytes, timeout: float
    ) -> ContainerInfo:
        spec = container.spec
        await asyncio.to_thread(self._prepare, spec)
        if container.bridged:
            way = relay_transport.bridged(self._engine, container.engine_id, key)
        else:
            way = relay_transport.mounted(spec, key, self._owner(spec))
        try:
            async with asyncio.timeout(timeout), way as listening:
                self._events.listen()
                await self._engine.call("start the container", api.start, container.engine_id)
                failpoint("container.launched")
                if spec.command is None:
                    return await self._until_listening(container, listening)
                return await self._inspect(container)
        except TimeoutError as error:
            if isinstance(error, OublietteError):
                raise
            raise DeadlineExceeded(
                f"the container's host was not ready in {timeout:g} s"
            ) from error

    def _prepare(self, spec: ContainerSpec) -> None:
        """Restore missing mount sources: cleaners of /tmp remove folders and zipapp."""
        for mount in spec.mounts:
            validation.check_mount(mount)
        runtime_dirs.make(spec, engine=self._flavour, uid=self._owner(spec))
        self._host_paths(spec)

    async def _until_listening(
        self, container: _EngineContainer, listening: Listening
    ) -> ContainerInfo:
        before = container.last
        ready = asyncio.create_task(listening())
        ended = asyncio.create_task(self._until_ended(container))
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                info = ended.result()
                raise RuntimeFailure(
                    f"its host ended before it was ready (exit code {info.exit_code})"
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

    async def _tail_of_log(self, container: _EngineContainer) -> str:
        # Podman's log of a container that has just ended may be complete a moment after its end.
        again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(operator.not_),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(1.0),
            retry_error_callback=lambda _: "",
        )

        async def read() -> str:
            return (await self._logs(container, 5)).text.strip()

        with contextlib.suppress(OublietteError):
            text: str = await again(read)
            return f": {text[-500:]}" if text else ""
        return ""

    async def _reset(self, container: _EngineContainer) -> None:
        """Undo a failed start: restore the state after `create`."""
        spec = container.spec
        with contextlib.suppress(OublietteError):
            await self._engine.call("remove a container", api.remove, container.engine_id)
            container.engine_id = await self._make(spec, bridged=container.bridged)
            container.fresh = True
        runtime_dirs.disarm(spec.runtime_dir, started=False)

    # ------------------------------------------------------------------ exit

    async def _until_ended(self, container: _EngineContainer) -> ContainerInfo:
        """Wait until it does not run, or until its state is known again."""
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

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._until_ended(self._get(container_id))

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: SIGTERM, `timeout` seconds, SIGKILL; the kernel ends all that is in it."""
        container = self._get(container_id)
        async with container.lock:
            info = await self._inspect(container)
            if info.state != "running":
                return info
            if timeout > 0:
                await self._signal(container, "SIGTERM")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        return await self._until_ended(container)
            await self._signal(container, "SIGKILL")
            try:
                async with asyncio.timeout(api.KILL_TIMEOUT):
                    return await self._until_ended(container)
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"container {container_id} does not end",
                    hint="a process in it hangs in the kernel, often on a network file system",
                ) from error

    async def _signal(self, container: _EngineContainer, name: str) -> None:
        try:
            await self._engine.call("end the container", api.kill, container.engine_id, name)
        except EngineNotFound:
            pass  # the next inspection explains it
        except EngineRefused as error:
            # "is not running": it ended in between
            if (await self._inspect(container)).state == "running":
                raise error from None

    async def remove(self, container_id: str) -> None:
        """Kill it, and remove it, its runtime folder and its spool."""
        container = self._containers.get(container_id)
        if container is None:
            return
        async with container.lock:
            container.removed = True
            await self._engine.call("remove a container", api.remove, container.engine_id)
            await asyncio.to_thread(runtime_dirs.clear, container.spec)
            self._containers.pop(container_id, None)

    # ------------------------------------------------------------------ inspect

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Query the engine.

        Raises:
            ContainerLost: another program has removed it.
        """
        return await self._inspect(self._get(container_id))

    def _get(self, container_id: str) -> _EngineContainer:
        container = self._containers.get(container_id)
        if container is None:
            raise NotFound(f"there is no container {container_id}")
        return container

    async def _inspect(self, container: _EngineContainer) -> ContainerInfo:
        try:
            said = await self._engine.call("look at a container", api.inspect, container.engine_id)
        except EngineNotFound as error:
            if container.removed and container.last is not None:
                return msgspec.structs.replace(container.last, state="exited", handle={})
            raise ContainerLost(
                f"container {container.spec.id} is gone: somebody else has removed it"
            ) from error
        container.last = self._info(container, said)
        return container.last

    def _info(self, container: _EngineContainer, said: Mapping[str, Any]) -> ContainerInfo:
        now: dict[str, Any] = said.get("State") or {}
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
            inside=Inside(env=create_body.inside_environment()),
            started_at=container_labels.seconds(now.get("StartedAt"))
            if state != "created"
            else None,
            exit_code=int(now.get("ExitCode") or 0) if state == "exited" else None,
        )

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """Return the end of what the guest wrote to its standard streams."""
        return await self._logs(self._get(container_id), tail)

    async def _logs(self, container: _EngineContainer, tail: int) -> Logs:
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

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Find the instance's containers by label; remove folders without one."""
        await self._ready()
        listed = await self._engine.call(
            "list containers", api.labelled, f"{LABEL_INSTANCE}={instance}"
        )
        found: list[_EngineContainer] = []
        for entry in listed:
            container = await self._recognise(entry)
            if container is not None:
                found.append(container)
        known = {container.spec.id for container in found} | self._creating
        marked = await asyncio.to_thread(
            lambda: list(runtime_dirs.marked(self._base, self._flavour, instance))
        )
        for folder, container_id in marked:
            if container_id not in known and container_id not in self._containers:
                spec = ContainerSpec(id=container_id, labels={}, runtime_dir=folder)
                await asyncio.to_thread(runtime_dirs.clear, spec)
        infos: list[ContainerInfo] = []
        for container in found:
            with contextlib.suppress(ContainerLost):
                infos.append(await self._inspect(container))
        return infos

    async def _recognise(self, entry: Mapping[str, Any]) -> _EngineContainer | None:
        labels = cast("dict[str, str]", entry.get("Labels") or {})
        container_id = labels.get(LABEL_CONTAINER)
        if container_id is None or container_id in self._creating:
            return None
        known = self._containers.get(container_id)
        if known is not None:
            return known
        try:
            spec = container_labels.read_spec(labels)
        except msgspec.MsgspecError:
            # Ours by its instance, but of a release with another format: it cannot be used.
            await self._engine.call("remove a container", api.remove, str(entry["Id"]))
            return None
        bridged = container_labels.LABEL_BRIDGED in labels
        known = _EngineContainer(spec, str(entry["Id"]), bridged=bridged)
        self._containers[container_id] = known
        return known

    async def aclose(self) -> None:
        """Close the connections to the engine; containers go on."""
        self._containers.clear()
        await self._events.aclose()
        await self._engine.aclose()
