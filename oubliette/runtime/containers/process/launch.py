"""Start of a container's single process, until it reports that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import select
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import DeadlineExceeded, RuntimeFailure
from oubliette.incontainer.io import linux
from oubliette.runtime.containers.bridge_transport import read_until
from oubliette.runtime.containers.process import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path


END_SECONDS: Final = 5.0  # for killed processes to end


class Pipes(msgspec.Struct, frozen=True):
    """Descriptors that the child inherits, by their numbers there."""

    ready: int
    info: int
    status: int


class StartedProcess(msgspec.Struct):
    """A container's process that has just been started."""

    child: subprocess.Popen[bytes]
    """The child: bwrap, or the guest itself."""
    info: dict[str, int]
    """bwrap's output on its info descriptor; empty without bwrap."""
    keeper: subprocess.Popen[bytes] | None = None
    """Process that keeps the sandbox's own network."""


class NoNetwork(RuntimeFailure):
    """The sandbox did not get a network of its own."""


def _unbreakable_pipe() -> tuple[int, int]:
    """A pipe without a broken-pipe error: its writing end can also read.

    bwrap ends if it cannot write its output because its server was killed, and its child would then
    wait for it indefinitely.
    """
    reading, writing = os.pipe()
    try:
        both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading, both


def _closed_with(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


async def launch(
    argv: Callable[[Pipes], Sequence[str]],
    *,
    thread: Executor,
    env: Mapping[str, str],
    log: Path,
    status: Path,
    data: Sequence[int] = (),
    wait_info: bool,
    wait_ready: bool,
    uid: int | None,
    timeout: float,
    keeper: Callable[[int], Sequence[str]] | None = None,
) -> StartedProcess:
    """Fork, exec, and wait for the info and for `ready` within `timeout` seconds.

    `uid` (only as root) is the user of the child; None = ours. `data` are further descriptors to
    inherit; they stay open here. `thread` is the result of `start_thread`. `keeper` returns the
    command line that gives a network to the sandbox with that pid.

    Raises:
        RuntimeFailure: the process could not be started, or ended before it was ready.
        DeadlineExceeded: it was not ready in time. In both cases it was killed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        log_fd = _closed_with(stack, os.open(log, flags | os.O_APPEND, 0o600))
        status_fd = _closed_with(stack, os.open(status, flags | os.O_TRUNC, 0o600))
        ready_read, ready_write = os.pipe()
        _closed_with(stack, ready_read)
        info_read, info_write = _unbreakable_pipe()
        _closed_with(stack, info_read)
        pipes = Pipes(ready_write, info_write, status_fd)
        try:
            child = thread.submit(
                _forked, argv(pipes), pipes, env=env, log_fd=log_fd, data=data, uid=uid
            ).result()
        except OSError as error:
            raise RuntimeFailure(f"the container's process cannot be started: {error}") from error
        finally:
            os.close(ready_write)
            os.close(info_write)
        started = StartedProcess(child, {})
        try:
            await _wait(
                started,
                info=info_read if wait_info else None,
                ready=ready_read if wait_ready else None,
                keep=keeper and functools.partial(_kept, keeper, thread, log_fd),
                timeout=timeout,
            )
        except BaseException:
            kill_now(started)
            raise
        return started


def start_thread() -> ThreadPoolExecutor:
    """The one thread that starts containers, without the keys of who started the server.

    The session keyring is a thread's own, and all that it starts keeps it: over exec, into
    every namespace, as every user. Only this thread leaves it: the server may need its keys.

    Raises:
        RuntimeFailure: the kernel refuses another keyring.
    """
    thread = ThreadPoolExecutor(1, "container start")
    refused = thread.submit(linux.new_session_keyring).result()
    # Not there, or closed by an outer filter of system calls: then agents cannot reach it either.
    if refused and refused not in {errno.ENOSYS, errno.EPERM}:
        thread.shutdown()
        raise RuntimeFailure(
            f"containers cannot be kept from the server's session keyring: {os.strerror(refused)}",
            hint="see /proc/key-users; the sysctl kernel.keys.maxkeys limits the keys of a user",
        )
    return thread


def _forked(
    arguments: Sequence[str],
    pipes: Pipes,
    *,
    env: Mapping[str, str],
    log_fd: int,
    data: Sequence[int],
    uid: int | None,
) -> subprocess.Popen[bytes]:
    """Start the program; a vfork of 1 ms, nothing is waited for."""
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        env=dict(env),
        cwd="/",
        # A session of its own: a terminal's Ctrl-C is for the server only.
        start_new_session=True,
        pass_fds=(pipes.ready, pipes.info, pipes.status, *data),
        user=uid,
        group=uid,
        extra_groups=[] if uid is not None else None,
        umask=0o022,
    )


def _kept(
    keeper: Callable[[int], Sequence[str]], thread: Executor, log_fd: int, pid: int
) -> subprocess.Popen[bytes]:
    """Start the keeper of a network, in the thread; its answer comes on standard output."""
    return thread.submit(
        subprocess.Popen[bytes],
        keeper(pid),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log_fd,
        env={},
        cwd="/",
        start_new_session=True,
    ).result()


async def _wait(
    started: StartedProcess,
    *,
    info: int | None,
    ready: int | None,
    keep: Callable[[int], subprocess.Popen[bytes]] | None,
    timeout: float,
) -> None:
    try:
        async with asyncio.timeout(timeout):
            if info is not None:
                raw = await read_until(info, lambda data: b"}" in data)
                if not raw.strip():
                    raise RuntimeFailure("the sandbox could not be made")
                started.info = json.loads(raw)
            if keep is not None:  # it works while the guest starts
                started.keeper = keep(started.info["child-pid"])
            if ready is not None:
                received = await read_until(ready, lambda data: b"\n" in data)
                if received.strip() != b"ready":
                    raise RuntimeFailure("the guest ended before it was ready")
            if started.keeper is not None and started.keeper.stdout is not None:
                with started.keeper.stdout as answer:
                    text = await read_until(answer.fileno(), lambda data: b"\n" in data)
                if text != b"ready\n":
                    raise NoNetwork(text.decode(errors="replace").strip() or "its keeper ended")
    except TimeoutError as error:
        raise DeadlineExceeded(f"the guest was not ready in {timeout:g} s") from error


def kill_now(started: StartedProcess) -> None:
    """Kill a half-started container, and return when it has ended: a few milliseconds.

    Its pid namespace ends with process 1. The child is stopped first, which takes a moment: a bwrap
    that is killed between its fork and its first output would leave a process that waits for it
    indefinitely.
    """
    child = started.child
    if started.keeper is not None:
        started.keeper.kill()
        started.keeper.wait()
        if started.keeper.stdout is not None:
            started.keeper.stdout.close()
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with contextlib.ExitStack() as stack:
        dying: list[int] = []
        for pid in procfs.children(child.pid):
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)  # a stopped parent reaps no child: it is still this one
                stack.callback(os.close, fd)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                dying.append(fd)
        child.kill()
        child.wait()
        _await_ends(dying)


def _await_ends(pidfds: Sequence[int]) -> None:
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    left, until = set(pidfds), time.monotonic() + END_SECONDS
    while left and (seconds := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(seconds * 1000):
            poll.unregister(fd)
            left.discard(fd)
