"""Servers in the background: that of a home, which is started if none runs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.api.control import ControlClient
from oubliette.api.errors import from_wire
from oubliette.cli.terminal.output import note
from oubliette.config.loader import load
from oubliette.errors import DeadlineExceeded, OublietteError, RuntimeFailure, Unavailable
from oubliette.runtime.files.home import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOG: Final = "server.log"
START_SECONDS: Final = 60.0
_LOG_SHOWN: Final = 2000
"""Characters of the end of a log, in an error."""


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answers."""

    url: str
    pid: int


def found_or_started(home: Path) -> RunningServer:
    """Return the server of a home; start one, with a note, if none runs.

    Raises:
        OublietteError: as `started`.
        DeadlineExceeded: it does not answer.
        ConfigError: the configuration cannot be used.
    """
    try:
        return answering(home)
    except Unavailable:
        pass
    prepare(home)
    config = load(home).config
    # Another program's port is no reason not to begin.
    taken = config.server.port and not _is_free(config.server.host, config.server.port)
    note(f"No server runs on {home}: starting one …")
    try:
        return started(home, ["--port", "0"] if taken else [])
    except OublietteError:
        with contextlib.suppress(Unavailable):  # that of another command was faster
            return answering(home)
        raise


def started(home: Path, options: Sequence[str]) -> RunningServer:
    """Start a server in a process of its own, which goes on after this one; wait until it serves.

    The stages of a start have their own deadlines.

    Args:
        home: its folder, which exists.
        options: of `oubliette serve`.

    Raises:
        OublietteError: why it did not start, of the class of the server's error.
        RuntimeFailure: it ended without one; has the end of its log.
    """
    log = home / LOG
    command = [sys.executable, "-P", "-m", "oubliette", "serve", "--home", str(home), "-o", "json"]
    began = time.monotonic()
    fd = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "ab") as errors:
        before = os.fstat(fd).st_size
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        with process.stdout as output:
            line = output.readline()
    except KeyboardInterrupt:
        process.terminate()
        raise
    if not line:
        process.wait(START_SECONDS)
        raise _failure(log, before)
    ready = json.loads(line)
    note(
        f"It runs (process {ready['pid']}, {time.monotonic() - began:.1f} s, log {log}) and goes on"
        f" after this command; oubliette stop --home {home} ends it."
    )
    return RunningServer(url=ready["url"], pid=ready["pid"])


def _failure(log: Path, before: int) -> OublietteError:
    """Return what a server that has ended has written last, the log being `before` bytes then."""
    with log.open("rb") as written:
        written.seek(before)
        text = written.read().decode(errors="replace").strip()
    error = _error_in(text)
    if error is None:  # it was killed, or could not even begin
        tail = text[-_LOG_SHOWN:]
        error = RuntimeFailure(f"the server did not start:\n{tail}", hint="oubliette doctor")
    error.hint = f"{error.hint}; its log is {log}" if error.hint else f"its log is {log}"
    return error


def _error_in(text: str) -> OublietteError | None:
    """Return the last error in a log; lines behind it are of the server that runs already."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            match json.loads(line):
                case {"error": {"code": str(), "message": str()} as error}:
                    return from_wire(error)
                case _:
                    pass
    return None


def answering(home: Path) -> RunningServer:
    """Return the server of a home.

    Raises:
        Unavailable: none runs.
        DeadlineExceeded: it does not answer.
    """
    with ControlClient(home) as client:
        if not client.answers(START_SECONDS):
            raise DeadlineExceeded(
                f"the server of {home} did not answer within {START_SECONDS:g} s",
                hint="read its log, or run oubliette doctor",
            )
        return msgspec.convert(client.status(), RunningServer)


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
