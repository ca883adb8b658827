"""Start of a container of the process runtime: from its plan to a guest that listens.

The sources of its mounts are opened before it runs: agents may have planted links since `create`.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from oubliette.errors import RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import KEY_FILE, RELAY_SOCKET
from oubliette.runtime.containers.process import (
    bubblewrap,
    launch,
    own_network,
    procfs,
    state_file,
    syscall_filter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from oubliette.runtime.containers import guest_bundle
    from oubliette.runtime.containers.base import ContainerSpec
    from oubliette.runtime.containers.process import sandbox_probe
    from oubliette.runtime.containers.process.container import ProcessContainer
    from oubliette.runtime.containers.process.sandbox_plan import SandboxPlan

log = structlog.get_logger("oubliette.containers")


async def start(
    container: ProcessContainer,
    found: sandbox_probe.Probe,
    tools: guest_bundle.Kit,
    key: bytes,
    *,
    thread: Executor,
    timeout: float,
) -> None:
    """Start the guest, wait `timeout` seconds until it listens, and watch for its end.

    Raises:
        OSError: a file of the start cannot be made.
        OublietteError: the guest has ended, or does not listen in time.
    """
    plan = container.plan
    network, why = resolved(plan.spec.network, found)
    container.warnings = ()
    try:
        started = await _launched(
            plan, found, tools, key, network=network, thread=thread, timeout=timeout
        )
    except launch.NoNetwork as error:
        why = f"pasta: {error.message}"
        if plan.spec.network != "auto":
            raise RuntimeFailure(
                f"it has no network of its own: {why}", hint='or set process.network = "host"'
            ) from error
        log.warning("sandbox has the network of the host", container=plan.spec.id, why=why)
        container.warnings = (f"the sandbox has the network of the host: {why}",)
        started = await _launched(
            plan, found, tools, key, network="host", thread=thread, timeout=timeout
        )
    failpoint("container.launched")
    await _take_in(container, started)


def resolved(network: str, found: sandbox_probe.Probe) -> tuple[str, str | None]:
    """Return the network that a sandbox gets for the one that was asked for, and why not its own.

    Raises:
        RuntimeFailure: it is to have its own, and cannot.
    """
    if network not in {"auto", "own"}:
        return network, None
    why = own_network.why_not() if found.network_none else "bubblewrap cannot make one here"
    if why is None:
        return "own", None
    if network == "own":
        raise RuntimeFailure(
            f"sandboxes cannot have a network of their own: {why}",
            hint=f'{own_network.REMEDY}, or set process.network = "auto"',
        )
    return "host", why


async def _launched(
    plan: SandboxPlan,
    found: sandbox_probe.Probe,
    tools: guest_bundle.Kit,
    key: bytes,
    *,
    network: str,
    thread: Executor,
    timeout: float,
) -> launch.StartedProcess:
    spec = plan.spec
    inside = plan.inside(str(found.python), tools)
    (spec.runtime_dir / RELAY_SOCKET).unlink(missing_ok=True)
    host_paths.write_private(spec.runtime_dir / KEY_FILE, key, uid=plan.host_uid)
    plan.log.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        data: dict[str, int] = {}
        sources: dict[str, int] = {}
        filters = _filter(stack) if plan.sandboxed and found.filtered else ()
        if plan.sandboxed:
            data = _etc(plan.agent_uid, network, stack)
            sources = _sources(spec, stack)

        def argv(pipes: launch.Pipes) -> Sequence[str]:
            command = plan.command(inside, pipes.ready)
            if not plan.sandboxed:
                return command
            filter_fd = filters[0] if filters else None
            return _in_sandbox(
                plan,
                found,
                tools,
                command,
                pipes,
                network=network,
                data=data,
                sources=sources,
                filter_fd=filter_fd,
            )

        def keeper(pid: int) -> Sequence[str]:
            return own_network.keeper(inside.python, pid, spec.loopback_ports, root=plan.root)

        return await launch.launch(
            argv,
            thread=thread,
            env={**inside.env, **spec.env},
            log=plan.log,
            status=plan.status,
            data=(*filters, *data.values(), *(sources.values() if found.bind_fd else ())),
            wait_info=plan.sandboxed,
            wait_ready=spec.command is None,
            uid=plan.host_uid,
            timeout=timeout,
            keeper=keeper if network == "own" else None,
        )


def _in_sandbox(
    plan: SandboxPlan,
    found: sandbox_probe.Probe,
    tools: guest_bundle.Kit,
    command: Sequence[str],
    pipes: launch.Pipes,
    *,
    network: str,
    data: Mapping[str, int],
    sources: Mapping[str, int],
    filter_fd: int | None,
) -> Sequence[str]:
    """The command line of bubblewrap that runs `command`."""
    spec = plan.spec
    return bubblewrap.arguments(
        bubblewrap.Sandbox(
            bwrap=found.bwrap,
            root=plan.root,
            python_prefix=found.python_prefix,
            zipapp=tools.zipapp,
            wrappers=tools.wrappers,
            sizes=found.sizes,
        ),
        command=command,
        network=network,
        runtime_dir=spec.runtime_dir,
        spool=plan.spool,
        mounts=spec.mounts,
        sources=sources if found.bind_fd else None,
        tmp_bytes=spec.limits.tmp_bytes,
        data=data,
        filter_fd=filter_fd,
        info_fd=pipes.info,
        status_fd=pipes.status,
    )


async def _take_in(container: ProcessContainer, started: launch.StartedProcess) -> None:
    """Record a container's process that has just been started, and watch for its end."""
    plan, spec = container.plan, container.plan.spec
    monitor = procfs.identify(started.child.pid)
    process = procfs.identify(started.info["child-pid"]) if plan.sandboxed else monitor
    keeper = None if started.keeper is None else procfs.identify(started.keeper.pid)
    if process is None:
        launch.kill_now(started)
        raise RuntimeFailure("the container's process ended at once")
    container.child, container.keeper = started.child, started.keeper
    container.record = msgspec.structs.replace(
        container.record,
        process=process,
        monitor=monitor if plan.sandboxed else None,
        keeper=keeper,
        started_at=time.time(),
        exit_code=None,
    )
    try:
        container.observe(process)
        state_file.save(container.record)
        if plan.root and plan.sandboxed and spec.command is None:
            # Made by root's guest in a folder that only root can write: no link is planted.
            uid = plan.agent_uid or 0
            os.chown(spec.runtime_dir / RELAY_SOCKET, uid, uid)
    except OSError:
        launch.kill_now(started)
        if container.over is not None:
            await container.over
        raise


def _sources(spec: ContainerSpec, stack: contextlib.ExitStack) -> dict[str, int]:
    """Open descriptors of the mount sources, by target: agents may have planted links since."""
    sources: dict[str, int] = {}
    for mount in spec.mounts:
        fd = host_paths.open_source(mount.source)
        stack.callback(os.close, fd)
        sources[mount.target] = fd
    return sources


def _etc(uid: int | None, network: str, stack: contextlib.ExitStack) -> dict[str, int]:
    """Open descriptors of the `/etc` files that are made for the container."""
    who = os.geteuid() if uid is None else uid
    contents = {"/etc/passwd": bubblewrap.passwd(who), "/etc/group": bubblewrap.group(who)}
    names = own_network.names() if network == "own" else None
    if names is not None:
        contents["/etc/resolv.conf"] = names
    data: dict[str, int] = {}
    for target, content in contents.items():
        data[target] = _in_memory(target.rpartition("/")[2], content, stack)
    return data


def _filter(stack: contextlib.ExitStack) -> tuple[int, ...]:
    """Open a descriptor of the filter of system calls."""
    program = syscall_filter.program()
    return () if program is None else (_in_memory("filter", program, stack),)


def _in_memory(name: str, content: bytes, stack: contextlib.ExitStack) -> int:
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
