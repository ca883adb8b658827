"""The server of a home that answers, which is started if none runs."""

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
from oubliette.cli.terminal.output import note
from oubliette.config.loader import load
from oubliette.errors import DeadlineExceeded, RuntimeFailure, Unavailable
from oubliette.runtime.files.home import prepare

if TYPE_CHECKING:
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

    The server that is started is a process of its own, which goes on after this one.

    Raises:
        RuntimeFailure: it did not start; has the end of its log.
        DeadlineExceeded: it does not answer.
        ConfigError: the configuration cannot be used.
    """
    try:
        return answering(home)
    except Unavailable:
        pass
    prepare(home)
    config = load(home).config
    log = home / LOG
    command = [sys.executable, "-P", "-m", "oubliette", "serve", "--home", str(home), "-o", "json"]
    if config.server.port and not _is_free(config.server.host, config.server.port):
        command += ["--port", "0"]  # another program's port is no reason not to begin
    note(f"No server runs on {home}: starting one …")
    began = time.monotonic()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as output:
        line = output.readline()
    if not line:
        process.wait(START_SECONDS)
        with contextlib.suppress(Unavailable):  # that of another command was faster
            return answering(home)
        text = log.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN:]
        raise RuntimeFailure(f"the server did not start:\n{text}", hint="oubliette doctor")
    ready = json.loads(line)
    note(
        f"It runs (process {ready['pid']}, {time.monotonic() - began:.1f} s, log {log}) and goes on"
        " after this command; oubliette stop ends it."
    )
    return RunningServer(url=ready["url"], pid=ready["pid"])


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
