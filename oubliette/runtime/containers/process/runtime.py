"""Process runtime: containers of bubblewrap, or plain processes.

Without a daemon, this module keeps the state itself: a record beside each runtime folder, matched
with the running process by its label in `/proc` (`adopt`), and one pidfd per container that becomes
readable when it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import InvalidParameter, NotFound, OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
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
    bubblewrap,
    launch,
    procfs,
    sandbox_probe,
    state_file,
    unsandboxed,
)
from oubliette.runtime.containers.process.sandbox_plan import SandboxPlan

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    from oubliette.runtime.containers.base import Progress
    from oubliette.runtime.containers.process.state_file import StoredContainer

KILL_TIMEOUT: Final = 5.0  # seconds from SIGKILL to the end of the last process
MONITOR_TIMEOUT: Final = 2.0  # seconds from the end of process 1 to bwrap's own


class _ProcessContainer:
    """State of one known container."""

    def __init__(self, kept: StoredContainer, plan: SandboxPlan) -> None:
        self.record = kept
        self.plan = plan
        self.lock = asyncio.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        """The child process; None for an adopted one."""
        self.over: asyncio.Task[None] | None = None
        """Task that runs as long as the container; owned by the runtime."""
        self.watch: procfs.Watch | None = None

    @property
    def running(self) -> bool:
        return self.over is not None and not self.over.done()


class ProcessRuntime:
    """`ContainerRuntime` without a daemon.

    Args:
        base: the result of `host_paths.runtime_base`.
        zipapp: the zipapp with the guest (`oubliette.runtime.zipapp.zipapp_path`).
        sandbox: `best-effort` isolates nothing and warns in every `ContainerInfo`.
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
        bwrap: str | None = None,
        home: Path | None = None,
    ) -> None:
        self._base = base
        self._zipapp = zipapp
        self._sandboxed = sandbox == "bubblewrap"
        self._bwrap = bwrap
        self._home = home
        self._root = os.geteuid() == 0
        self._probe: sandbox_probe.Probe | None = None
        self._bundle: guest_bundle.Kit | None = None
        self._containers: dict[str, _ProcessContainer] = {}

    @property
    def name(self) -> str:
        """`process`."""
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
            self._probe = found
        return RuntimeStatus(
            ok=found.ok, version=found.version, reason=found.reason, remedy=found.remedy
        )

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
        container = self._containers[spec.id] = _ProcessContainer(kept, plan)
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

    # ------------------------------------------------------------------ start

    async def start(self, container_id: str, *, key: bytes, timeout: float = 30.0) -> ContainerInfo:
        """Start the guest and wait until it listens."""
        container = self._get(container_id)
        async with container.lock:
            if container.running:
                raise RuntimeFailure(f"container {container_id} is running already")
            found = await self._ready()
            try:
                await self._launch(container, found, key, timeout)
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

    async def _launch(
        self, container: _ProcessContainer, found: sandbox_probe.Probe, key: bytes, timeout: float
    ) -> None:
        plan, spec = container.plan, container.plan.spec
        tools = self._install(found)
        inside = plan.inside(str(found.python), tools)
        (spec.runtime_dir / RELAY_SOCKET).unlink(missing_ok=True)
        host_paths.write_private(spec.runtime_dir / KEY_FILE, key, uid=plan.host_uid)
        plan.log.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            data: dict[str, int] = {}
            sources: dict[str, int] = {}
            if self._sandboxed:
                data = _etc(plan.agent_uid, stack)
                sources = _sources(spec, stack)

            def argv(pipes: launch.Pipes) -> Sequence[str]:
                command = plan.command(inside, pipes.ready)
                if not self._sandboxed:
                    return command
                return bubblewrap.arguments(
                    bubblewrap.Sandbox(
                        bwrap=found.bwrap,
                        root=self._root,
                        python_prefix=found.python_prefix,
                        zipapp=tools.zipapp,
                        wrappers=tools.wrappers,
                        sizes=found.sizes,
                    ),
                    command=command,
                    network=spec.network,
                    runtime_dir=spec.runtime_dir,
                    spool=plan.spool,
                    mounts=spec.mounts,
                    sources=sources if found.bind_fd else None,
                    tmp_bytes=spec.limits.tmp_bytes,
                    data=data,
                    info_fd=pipes.info,
                    status_fd=pipes.status,
                )

            started = await launch.launch(
                argv,
                env={**inside.env, **spec.env},
                log=plan.log,
                status=plan.status,
                data=(*data.values(), *(sources.values() if found.bind_fd else ())),
                wait_info=self._sandboxed,
                wait_ready=spec.command is None,
                uid=plan.host_uid,
                timeout=timeout,
            )
        failpoint("container.launched")
        await self._take_in(container, started)

    async def _take_in(self, container: _ProcessContainer, started: launch.StartedProcess) -> None:
        """Record a container's process that has just been started, and watch for its end."""
        plan, spec = container.plan, container.plan.spec
        monitor = procfs.identify(started.child.pid)
        process = procfs.identify(started.info["child-pid"]) if self._sandboxed else monitor
        if process is None:
            launch.kill_now(started)
            raise RuntimeFailure("the container's process ended at once")
        container.child = started.child
        container.record = msgspec.structs.replace(
            container.record,
            process=process,
            monitor=monitor if self._sandboxed else None,
            started_at=time.time(),
            exit_code=None,
        )
        try:
            self._watch(container, process)
            state_file.save(container.record)
            if self._root and self._sandboxed and spec.command is None:
                # Made by root's guest in a folder that only root can write: no link is planted.
                uid = plan.agent_uid or 0
                os.chown(spec.runtime_dir / RELAY_SOCKET, uid, uid)
        except OSError:
            launch.kill_now(started)
            if container.over is not None:
                await container.over
            raise

    def _after_failure(self, container: _ProcessContainer) -> None:
        runtime_dir = container.record.spec.runtime_dir
        for name in (RELAY_SOCKET, KEY_FILE):
            (runtime_dir / name).unlink(missing_ok=True)

    # ------------------------------------------------------------------ exit

    def _watch(self, container: _ProcessContainer, process: procfs.HostProcess) -> None:
        container.watch = procfs.Watch(process)
        container.over = asyncio.create_task(
            self._until_over(container, container.watch),
            name=f"container {container.record.spec.id}",
        )

    async def _until_over(self, container: _ProcessContainer, watch: procfs.Watch) -> None:
        """Wait for the end, clean up and record how it ended."""
        await watch.over()
        watch.close()
        monitor = container.record.monitor
        if monitor is not None:
            try:
                async with asyncio.timeout(MONITOR_TIMEOUT):
                    await procfs.ended(monitor)
            except OSError:  # too late (TimeoutError), or the limit of descriptors is reached
                procfs.send_signal(monitor, signal.SIGKILL)
        if not self._sandboxed:
            with contextlib.suppress(OSError):  # no descriptor left; `remove` sweeps again
                await asyncio.to_thread(unsandboxed.sweep, container.record.spec.id)
        code = container.child.wait() if container.child is not None else None
        if self._sandboxed:
            code = self._bwrap_exit_code(container)
        elif code is not None and code < 0:
            code = 128 - code
        container.child = None
        container.record = msgspec.structs.replace(
            container.record, process=None, monitor=None, exit_code=code
        )
        with contextlib.suppress(OSError):  # a full disk must not turn an end into a failure
            state_file.save(container.record)

    def _bwrap_exit_code(self, container: _ProcessContainer) -> int | None:
        path = container.plan.status
        text, _ = state_file.tail(path, 1)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(text)["exit-code"])
        return None

    async def stop(self, container_id: str, *, timeout: float = 10.0) -> ContainerInfo:
        """End it: SIGTERM, `timeout` seconds, SIGKILL, for all its processes."""
        container = self._get(container_id)
        async with container.lock:
            await self._end(container, timeout)
            return self._info(container)

    async def _end(self, container: _ProcessContainer, timeout: float) -> None:
        process = container.record.process
        if not container.running or container.over is None or process is None:
            return
        if timeout > 0:
            procfs.send_signal(process, signal.SIGTERM)
            if await _finishes(container.over, timeout):
                return
        procfs.send_signal(process, signal.SIGKILL)
        if not await _finishes(container.over, KILL_TIMEOUT):
            raise RuntimeFailure(
                f"container {container.record.spec.id} (pid {process.pid}) does not end",
                hint="a process in it hangs in the kernel, often on a network file system",
            )

    async def remove(self, container_id: str) -> None:
        """Kill it, and remove its runtime folder, its spool and its record."""
        container = self._containers.get(container_id)
        if container is None:
            return
        async with container.lock:
            await self._end(container, 0)
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
        """Return the end of what bwrap and the guest wrote to their standard streams."""
        path = self._get(container_id).plan.log
        text, truncated = await asyncio.to_thread(state_file.tail, path, tail)
        return Logs(text=text, truncated=truncated)

    async def watch(self, container_id: str) -> ContainerInfo:
        """Wait until it has ended."""
        container = self._get(container_id)
        if container.over is not None:
            await asyncio.wait([container.over])
        return self._info(container)

    def dial(self, info: ContainerInfo) -> Dial:
        """Return its socket, a file on this machine."""
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
            container = self._containers[kept.spec.id] = _ProcessContainer(
                kept, self._plan(kept.spec)
            )
            if kept.process is not None:
                container.plan.open_ways()  # a server closes its home when it starts
                self._watch(container, kept.process)
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
            if container.watch is not None:
                container.watch.close()
            if container.child is not None and container.child.poll() is None:
                # It outlives us on purpose, and Popen must not warn of that when collected.
                container.child.returncode = 0
        self._containers.clear()

    # ------------------------------------------------------------------

    def _get(self, container_id: str) -> _ProcessContainer:
        container = self._containers.get(container_id)
        if container is None:
            raise NotFound(f"there is no container {container_id}")
        return container

    def _info(self, container: _ProcessContainer) -> ContainerInfo:
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
            warnings=() if self._sandboxed else (unsandboxed.WARNING,),
        )


async def _finishes(task: asyncio.Task[None], timeout: float) -> bool:
    done, _ = await asyncio.wait([task], timeout=timeout)
    return bool(done)


def _sources(spec: ContainerSpec, stack: contextlib.ExitStack) -> dict[str, int]:
    """Open descriptors of the mount sources, by target: agents may have planted links since."""
    sources: dict[str, int] = {}
    for mount in spec.mounts:
        fd = host_paths.open_source(mount.source)
        stack.callback(os.close, fd)
        sources[mount.target] = fd
    return sources


def _etc(uid: int | None, stack: contextlib.ExitStack) -> dict[str, int]:
    """Open descriptors of the `/etc` files that are made for the container."""
    who = os.geteuid() if uid is None else uid
    contents = {"/etc/passwd": bubblewrap.passwd(who), "/etc/group": bubblewrap.group(who)}
    data: dict[str, int] = {}
    for target, content in contents.items():
        fd = os.memfd_create(target.rpartition("/")[2])
        stack.callback(os.close, fd)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        data[target] = fd
    return data
