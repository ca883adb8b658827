"""Client of a running server's `<home>/control.sock`; see `oubliette.server.control_socket`."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from oubliette.api.errors import from_wire
from oubliette.errors import DeadlineExceeded, Unavailable
from oubliette.runtime.files.home import CONTROL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    ProgressCallback = Callable[[str], object]
    """Callback for the progress of a call, one line at a time."""

CALL_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 1.0
MAX_SOCKET_PATH: Final = 103  # bytes


class NoServer(Unavailable):
    """No server runs on the home."""

    exit_code = 8


class ControlClient:
    """Connection to the server of a home. Use as a context manager."""

    def __init__(self, home: Path) -> None:
        self._link = _connect(home)
        self._lines = self._link.makefile("rb")
        self._last = 0
        self._greeted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._link.close()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        timeout: float = CALL_SECONDS,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> dict[str, Any]:
        """Call a tool of the server, with all rights, and return its result as JSON values.

        Args:
            tool: Its name.
            arguments: JSON values; those that are None count as absent.
            timeout: Seconds for the answer, or for the next progress.
            on_progress: Called with the progress of tools that report any.

        Raises:
            OublietteError: the tool failed; of the class that belongs to the error's code.
            DeadlineExceeded: there was no answer in time.
            Unavailable: the server closed the connection.
        """
        request = {"verb": "call", "tool": tool, "arguments": given(arguments)}
        if on_progress is None:
            return self._request(request, timeout)
        self._send({**request, "progress": True}, timeout)
        while True:
            answer = self._line(timeout)
            if "progress" not in answer:
                return answer["ok"]
            on_progress(str(answer["progress"]))

    def attach(
        self, arguments: Mapping[str, Any], timeout: float = CALL_SECONDS
    ) -> tuple[socket.socket, bytes]:
        """Run a command in a container, with the streams of this process.

        Args:
            arguments: as `oubliette.tools.attached_commands.Exec` describes them.
            timeout: seconds for the command to run.

        Returns:
            The link, which carries frames from now on and is closed with this client, and the
            first bytes of them.

        Raises:
            OublietteError: it cannot be run.
        """
        self._request({"verb": "exec", "arguments": given(arguments)}, timeout)
        self._link.setblocking(False)
        first = self._lines.peek()
        self._link.setblocking(True)
        return self._link, first

    def status(self) -> dict[str, Any]:
        """The server's process id, address, version, runtime, and since when it serves."""
        return self._request({"verb": "status"}, CONNECT_SECONDS)

    def decide_for_agents(self, agents: str) -> None:
        """Replace `server.on_stop` (keep, end) for the end of this server.

        Raises:
            NotFound: the server is of a release that cannot.
        """
        self._request({"verb": "on_stop", "agents": agents}, CONNECT_SECONDS)

    def answers(self, seconds: float) -> bool:
        """Whether the server answers within `seconds`. Call again to wait longer.

        A starting server accepts connections, and answers when it runs.

        Raises:
            Unavailable: the server closed the connection.
        """
        if not self._greeted:
            self._send({"verb": "status"}, CONNECT_SECONDS)
            self._greeted = True
        readable, _, _ = select.select([self._link], [], [], seconds)
        if readable:
            self._greeted = False
            self._answer(CONNECT_SECONDS)
        return bool(readable)

    def _request(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        self._send(request, timeout)
        return self._answer(timeout)

    def _send(self, request: dict[str, Any], timeout: float) -> None:
        self._last += 1
        self._link.settimeout(timeout)
        try:
            self._link.sendall(json.dumps({"id": self._last, **request}).encode() + b"\n")
        except TimeoutError as error:
            raise DeadlineExceeded(f"the server took nothing for {timeout:g} s") from error
        except OSError as error:
            self._line(CONNECT_SECONDS)  # why the server has closed the link
            raise Unavailable(f"the link to the server broke: {error.strerror}") from error

    def _answer(self, timeout: float) -> dict[str, Any]:
        return self._line(timeout)["ok"]

    def _line(self, timeout: float) -> dict[str, Any]:
        self._link.settimeout(timeout)
        try:
            line = self._lines.readline()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the server did not answer within {timeout:g} s") from error
        except OSError as error:
            raise Unavailable(f"the link to the server broke: {error.strerror}") from error
        if not line.endswith(b"\n"):
            raise Unavailable("the server closed the link", hint="it may be stopping; try again")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise from_wire(answer["error"])
        return answer


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not absent."""
    return {name: value for name, value in arguments.items() if value is not None}


def status_of(home: Path) -> dict[str, Any] | None:
    """Return the status of the server of a home; None if none answers within a second."""
    try:
        with ControlClient(home) as client:
            return client.status() if client.answers(ANSWER_SECONDS) else None
    except Unavailable:
        return None


def _connect(home: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(CONNECT_SECONDS)
    try:
        with _short_path(home) as path:
            link.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        link.close()
        raise NoServer(
            f"no server runs on {home}", hint=f"oubliette serve --home {home}"
        ) from error
    except OSError as error:
        link.close()
        raise Unavailable(
            f"{home / CONTROL_SOCKET}: {error.strerror or error}",
            hint="run this as the user who started the server",
        ) from error
    return link


@contextmanager
def _short_path(home: Path) -> Generator[str]:
    path = home / CONTROL_SOCKET
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{CONTROL_SOCKET}"
    finally:
        os.close(folder)
