"""Fork server that starts server processes in milliseconds: the modules are imported once.

Each is an ordinary process with its own session, to be killed and restarted at will. A process
whose link is closed (its test was killed) is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

MAX_REQUEST: Final = 256 * 1024  # bytes
START: Final = "from oubliette.testing.fork_server import run; run()"
PRELOADED: Final = (
    "anyio._backends._asyncio",
    "oubliette.cli.main",
    "oubliette.cli.serve.command",
    "oubliette.cli.terminal.stop_signals",
    "oubliette.cli.terminal.logging_config",
    "oubliette.config.loader",
    "oubliette.server.daemon",
    "oubliette.testing.fault_injection",
    "tomllib",
    "uvicorn.lifespan.off",
)
"""Modules that each server would import; with those of `sdk.PARTS`, seconds of processor time."""


class Zygote:
    """Process that forks servers. Use as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="obz", dir="/tmp")
        self._path = Path(self._folder.name) / "s"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A signal to the suite's group must not end it before it has ended its servers.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the zygote did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the process ends with its stdin
        self._process.wait(10)
        self._process.stdout.close()
        self._folder.cleanup()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> tuple[int, socket.socket]:
        """Start a server; return its pid, and a link that carries its wait status at the end."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(10)
            link.connect(str(self._path))
            request = json.dumps({"argv": list(arguments), "env": dict(environment)}).encode()
            socket.send_fds(link, [request], [stdin, stdout, stderr])
            return int(link.recv(64)), link
        except BaseException:
            link.close()
            raise


def preload() -> None:
    """Import and build once what each server needs: its modules, the schemas of all tools.

    Half of the processor time until a server is ready is spent on that: on imports, and on the
    types of the tools and of the command line's functions.
    """
    import typer.main

    from oubliette.cli.main import app
    from oubliette.mcp_front.sdk import PARTS
    from oubliette.mcp_front.transport.http_protocol import fastest
    from oubliette.tools.registry import prepare_schemas

    parser = f"oubliette.mcp_front.transport.{fastest()}_connection"
    for name in (*PRELOADED, *PARTS, parser):
        importlib.import_module(name)
    asyncio.run(prepare_schemas())
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


def run() -> None:
    """Run the loop of the fork server; ends with its stdin."""
    preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen()
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, _noted)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    selector.register(listener, selectors.EVENT_READ, None)
    selector.register(wake, selectors.EVENT_READ, None)
    held: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                for pid in held:
                    os.kill(pid, signal.SIGKILL)
                return
            if key.fileobj is listener:
                link, _ = listener.accept()
                pid = _fork(link)
                held[pid] = link
                selector.register(link, selectors.EVENT_READ, pid)
                link.sendall(str(pid).encode())
            elif key.fileobj is wake:
                wake.recv(4096)
                _reap(held, selector)
            elif key.data in held:  # its holder has closed the link
                selector.unregister(key.fileobj)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(key.data, signal.SIGKILL)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte in the wake-up descriptor is what counts."""
    del number, frame


def _reap(held: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while held:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        link = held.pop(pid)
        with contextlib.suppress(OSError):
            link.sendall(b"\n%d" % os.waitstatus_to_exitcode(status))
        with contextlib.suppress(KeyError):
            selector.unregister(link)
        link.close()


def _fork(link: socket.socket) -> int:
    data, fds, _, _ = socket.recv_fds(link, MAX_REQUEST, 3)
    pid = os.fork()
    if pid == 0:
        _become_server(json.loads(data), fds)
    for fd in fds:
        os.close(fd)
    return pid


def _become_server(request: dict[str, Any], fds: list[int]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        os.environ.clear()
        os.environ.update(request["env"])
        from oubliette.testing import fault_injection

        fault_injection.main(request["argv"])
    except SystemExit as error:
        sys.stdout.flush()
        os._exit(error.code if isinstance(error.code, int) else bool(error.code))
    except BaseException:
        traceback.print_exc()
    os._exit(70)
