"""Process runtime: containers of bubblewrap, or plain processes.

Without a daemon, this package keeps the state itself: a record beside each runtime folder, matched
with the running process by its label in `/proc` (`adopt`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import msgspec
import structlog

from oubliette.errors import InvalidParameter, NotFound, OublietteError, RuntimeFailure
from oubliette.runtime.containers import guest_bundle, host_paths, layout
from oubliette.runtime.containers.base import (
    KEY_FILE,
    LABEL_INSTANCE,
    RELAY_SOCKET,
    Capabilities,
    ContainerInfo,
    ContainerSpec,
    Dial,
    ImageInfo,
    Inside,
    Logs,
    RuntimeStatus,
)
from oubliette.runtime.containers.process import (
    adoption,
    launch,
    own_network,
    sandbox_probe,
    start,
    state_file,
    unsandboxed,
)
from oubliette.runtime.containers.process.container import ProcessContainer
from oubliette.runtime.containers.process.sandbox_plan import SandboxPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor
    from pathlib import Path
    from typing import Literal

    from oubliette.runtime.containers.base import Progress

log = structlog.get_logger("oubliette.containers")


class ProcessRuntime:
    """`ContainerRuntime` without a daemon.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest (`oubliette.runtime.zipapp.zipapp_path`).
        sandbox: `best-effort` isolates nothing and warns in every `ContainerInfo`.
        network: that of all its containers (`process.network`), which `ping` tries and logs;
            None = only their specs know.
        bwrap: path of bubblewrap; None = from PATH.
        home: the server's own folder. Where root has no sandbox, its agents' user gets access
            (`o+x`, not to list) to the projects in it, since nothing can be mounted for it.
    """

    def __init__(
        self,
        base: Path,
        zipapp: Path,
        *,
        sandbox: Literal["bubblewrap", "best-effort"] = "bubblewrap",
        network: str | None = None,
        bwrap: str | None = None,
        home: Path | None = None,
    ) -> None:
        self._base = base
        self._zipapp = zipapp
        self._sandboxed = sandbox == "bubblewrap"
        self._network = network
        self._bwrap = bwrap
        self._home = home
        self._root = os.geteuid() == 0
        self._probe: sandbox_probe.Probe | None = None
        self._bundle: guest_bundle.Kit | None = None
        self._containers: dict[str, ProcessContainer] = {}
        self._thread: Executor | None = None

    @property
    def name(self) -> str:
        return "process"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of this runtime here; `network_none` is known after the first `ping`."""
        none = self._sandboxed and self._probe is not None and self._probe.network_none
        return Capabilities(
            survives_server=True,
            sockets_cross=True,
            network_none=none,
            network_host=True,
            images=False,
            uid_per_container=self._root,
            isolation="container" if self._sandboxed else "none",
        )

    async def ping(self) -> RuntimeStatus:
        """Run the probe, once if it succeeds."""
        found = self._probe
        if found is None or not found.ok:
            try:
                found = await asyncio.to_thread(self._try)
            except OSError as error:
                found = sandbox_probe.Probe(
                    ok=False, reason=str(error), remedy="check the runtime folder"
                )
            found = self._with_network(found)
            self._probe = found
        return RuntimeStatus(
            ok=found.ok, version=found.version, reason=found.reason, remedy=found.remedy
        )

    def _with_network(self, found: sandbox_probe.Probe) -> sandbox_probe.Probe:
        """Log which network sandboxes have, and why; not `ok` if it cannot be given."""
        if self._network is None or not self._sandboxed or not found.ok:
            return found
        try:
            network, why = start.resolved(self._network, found)
        except RuntimeFailure as error:
            return msgspec.structs.replace(found, ok=False, reason=error.message, remedy=error.hint)
        remedy = own_network.REMEDY if why else None
        log.info("network of sandboxes", network=network, why=why, remedy=remedy)
        return found

    def _try(self) -> sandbox_probe.Probe:
        if not sys.platform.startswith("linux"):
            return sandbox_probe.Probe(
                ok=False,
                reason="the process runtime needs Linux (pid descriptors, /proc)",
                remedy="use docker, podman or, on macOS, apple containers",
            )
        if self._sandboxed:
            return sandbox_probe.probe_bubblewrap(self._base, self._bwrap)
        return sandbox_probe.probe_best_effort(
            unsandboxed.stranger("best-effort"), base=self._base, home=self._home
        )

    async def _ready(self) -> sandbox_probe.Probe:
        status = await self.ping()
        if not status.ok or self._probe is None:
            raise RuntimeFailure(f"containers cannot run: {status.reason}", hint=status.remedy)
        return self._probe

    # There are no images here: containers use the machine's own files.

    async def image_exists(self, image: str) -> bool:
        """Return True: nothing has to be pulled."""
        del image
        return True

    async def image(self, image: str) -> ImageInfo | None:
        """Return None: there are no images."""
        del image
        return None

    async def pull(self, image: str, *, timeout: float, progress: Progress | None = None) -> None:
        """Refuse: there are no images."""
        del timeout, progress
        raise RuntimeFailure(f"the process runtime has no images, {image} cannot be pulled")

    async def build(
        self,
        image: str,
        folder: Path,
        *,
        timeout: float,
        arguments: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Logs:
        """Refuse: there are no images."""
        del folder, timeout, arguments, progress
        raise RuntimeFailure(f"the process runtime has no images, {image} cannot be built")

    # ------------------------------------------------------------------ create

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        """Check the spec, prepare the folders and write the record; nothing runs yet."""
        await self._ready()
        if spec.id in self._containers:
            raise InvalidParameter(f"id: there is a container {spec.id} already", field="id")
        plan = self._plan(spec)
        plan.check(self._base, network_none=self.capabilities.network_none)
        kept = state_file.StoredContainer(spec=spec)
        try:
            state_file.save(kept)
            plan.prepare()
        except BaseException as error:
            self._clear(plan)
            if isinstance(error, OSError) and not isinstance(error, OublietteError):
                raise RuntimeFailure(f"the container's folders: {error}") from error
            raise
        container = self._containers[spec.id] = ProcessContainer(kept, plan)
        return self._info(container)

    def _plan(self, spec: ContainerSpec) -> SandboxPlan:
        return SandboxPlan(spec=spec, sandboxed=self._sandboxed, root=self._root, home=self._home)

    def _install(self, found: sandbox_probe.Probe) -> guest_bundle.Kit:
        """Install the bundle, again if it was removed (cleaners of /tmp do that)."""
        self._bundle = guest_bundle.install(
            self._base,
            self._zipapp,
            python=str(found.python),
            inside=layout.ZIPAPP if self._sandboxed else None,
        )
        return self._bundle

    # ------------------------------------------------------------------ start and end

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start the guest and wait until it listens."""
        container = self._get(container_id)
        async with container.lock:
            if container.running:
                raise RuntimeFailure(f"container {container_id} is running already")
            found = await self._ready()
            try:
                self._thread = self._thread or launch.start_thread()
                tools = self._install(found)
                await start.start(
                    container, found, tools, key, thread=self._thread, timeout=timeout
                )
            except (OSError, OublietteError) as error:
                self._after_failure(container)
                text, _ = state_file.tail(container.plan.log, 5)
                log_tail = f": {text.strip()[-500:]}" if text.strip() else ""
                kind = type(error) if isinstance(error, OublietteError) else RuntimeFailure
                raise kind(f"container {container_id} did not start: {error}{log_tail}") from error
            except BaseException:
                self._after_failure(container)
                raise
            return self._info(container)

    def _after_failure(self, container: ProcessContainer) -> None:
        runtime_dir = container.record.spec.runtime_dir
        for name in (RELAY_SOCKET, KEY_FILE):
            (runtime_dir / name).unlink(missing_ok=True)

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: SIGTERM, `timeout` seconds, SIGKILL, for all its processes."""
        container = self._get(container_id)
        async with container.lock:
            await container.end(timeout)
            return self._info(container)

    async def remove(self, container_id: str) -> None:
        """Kill it, and remove its runtime folder, its spool and its record."""
        container = self._containers.get(container_id)
        if container is None:
            return
        async with container.lock:
            await container.end(0)
            if not self._sandboxed:
                await asyncio.to_thread(unsandboxed.sweep, container_id)
            await asyncio.to_thread(self._clear, container.plan)
            self._containers.pop(container_id, None)

    def _clear(self, plan: SandboxPlan) -> None:
        host_paths.clear_away(plan.spool)
        host_paths.clear_away(plan.spec.runtime_dir)
        host_paths.forget_beside(plan.spec.runtime_dir)

    # ------------------------------------------------------------------ inspect

    async def inspect(self, container_id: str) -> ContainerInfo:
        """Return its state; the end is noticed by descriptor, so this is current."""
        return self._info(self._get(container_id))

    async def logs(self, container_id: str, *, tail: int = 1000) -> Logs:
        """The end of what bwrap and the guest wrote to their standard streams."""
        path = self._get(container_id).plan.log
        text, truncated = await asyncio.to_thread(state_file.tail, path, tail)
        return Logs(text=text, truncated=truncated)

    async def watch(self, container_id: str) -> ContainerInfo:
        container = self._get(container_id)
        if container.over is not None:
            await asyncio.wait([container.over])
        return self._info(container)

    def dial(self, info: ContainerInfo) -> Dial:
        """Its socket, a file on this machine."""
        return info.runtime_dir / RELAY_SOCKET

    async def adopt(self, instance: str) -> list[ContainerInfo]:
        """Read the records and match them with the running processes."""
        await self._ready()
        found = await asyncio.to_thread(
            adoption.find, self._base, instance, sandboxed=self._sandboxed
        )
        for kept in found:
            if kept.spec.id in self._containers:
                continue
            container = self._containers[kept.spec.id] = ProcessContainer(
                kept, self._plan(kept.spec)
            )
            if kept.process is not None:
                container.plan.open_ways()  # a server closes its home when it starts
                container.observe(kept.process)
        return [
            self._info(container)
            for container in self._containers.values()
            if container.record.spec.labels[LABEL_INSTANCE] == instance
        ]

    async def aclose(self) -> None:
        """Stop watching; containers go on."""
        tasks = [c.over for c in self._containers.values() if c.over is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for container in self._containers.values():
            container.release()
        self._containers.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    # ------------------------------------------------------------------

    def _get(self, container_id: str) -> ProcessContainer:
        container = self._containers.get(container_id)
        if container is None:
            raise NotFound(f"there is no container {container_id}")
        return container

    def _info(self, container: ProcessContainer) -> ContainerInfo:
        kept = container.record
        found = self._probe
        inside = Inside()
        if found is not None and found.python is not None:
            inside = container.plan.inside(found.python, self._bundle or self._install(found))
        if container.running:
            state = "running"
        else:
            state = "created" if kept.started_at is None else "exited"
        return ContainerInfo(
            id=kept.spec.id,
            state=state,
            labels=kept.spec.labels,
            runtime_dir=kept.spec.runtime_dir,
            handle={} if kept.process is None else msgspec.to_builtins(kept.process),
            inside=inside,
            started_at=kept.started_at,
            exit_code=kept.exit_code,
            isolation="container" if self._sandboxed else "none",
            warnings=container.warnings if self._sandboxed else (unsandboxed.WARNING,),
        )
