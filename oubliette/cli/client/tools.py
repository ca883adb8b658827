"""HomeServer, which routes a command's tool call: to the server of the home, or to its database.

Reading never waits: if no server answers at once, the database is read directly. Writing waits for
a server that starts or stops, and prints that.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.control import CALL_SECONDS, ControlClient, given
from oubliette.cli.client.lock_wait import LockWait
from oubliette.cli.terminal.output import is_json, note
from oubliette.errors import (
    DeadlineExceeded,
    Forbidden,
    HomeInUse,
    OublietteError,
    Unavailable,
)
from oubliette.runtime.files.home import DATABASE, LOCK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.api.control import ProgressCallback

READS: Final = frozenset(
    {
        "config_limits",
        "event_list",
        "event_read",
        "permission_list",
        "project_get",
        "project_list",
        "session_events",
        "session_get",
        "session_list",
        "token_list",
        "tree_get",
        "tree_list",
        "usage_report",
        "workspace_list",
    }
)
"""Tools that need neither an actor nor the right to write."""
WRITES: Final = frozenset({"token_create", "token_revoke"})
"""Tools that need no actor, and the home's lock where no server runs."""

PROMPT_SECONDS: Final = 1.0
"""Timeout for the first answer of a running server."""
WAIT_SECONDS: Final = 60.0
"""Timeout for a server to start or stop."""
TRIES: Final = 3
"""Connections that may be closed before an answer; a start that fails closes one."""


class HomeServer:
    """The server of a home, a `ToolServer`; where none runs, the home's database if possible.

    Args:
        home: folder of the home.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        timeout: float = CALL_SECONDS,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> dict[str, Any]:
        """Call a tool. See `ToolServer.call`.

        A read that waits for news (`wait_seconds`) needs a server, as writing does.

        Raises:
            Unavailable: no server runs, and the tool needs one.
            DeadlineExceeded: a server starts or stops and was not done within `WAIT_SECONDS`, or
                did not answer within `timeout` seconds.
            Forbidden: the home is another user's.
            OublietteError: the tool failed.
        """
        home, told = self._home, given(arguments)
        try:
            if tool in READS and not told.get("wait_seconds"):
                return _read(home, tool, told, timeout)
            return _when_it_runs(
                home, tool, told, timeout, without=tool in WRITES, on_progress=on_progress
            )
        except PermissionError as error:
            if isinstance(error, OublietteError):
                raise
            raise Forbidden(
                f"{error.filename or home}: {error.strerror}",
                hint="run this as the user that the server runs as",
            ) from error


def _read(home: Path, tool: str, told: dict[str, Any], timeout: float) -> dict[str, Any]:
    try:
        with ControlClient(home) as client:
            if client.answers(PROMPT_SECONDS):
                return client.call(tool, told, timeout)
    except Unavailable:
        pass
    if (home / DATABASE).exists():
        _quiet()
        from oubliette.cli.client.offline import OutOfDate, read_offline

        try:
            return read_offline(home, tool, told)
        except OutOfDate:
            pass
    # Nothing to read yet: only the lock's holder makes the database.
    return _when_it_runs(home, tool, told, timeout, without=True)


def _when_it_runs(
    home: Path,
    tool: str,
    told: dict[str, Any],
    timeout: float,
    *,
    without: bool,
    on_progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Call it once a server answers; or once the lock is free, if it can do `without` one."""
    wait = _Wait(home)
    closed = 0
    with contextlib.ExitStack() as stack:
        lock: LockWait | None = None  # one for all of the wait: each has a thread
        while True:
            try:
                client = ControlClient(home)
            except Unavailable as error:
                gone = error
            else:
                with client:
                    if _comes(client, wait):
                        return client.call(tool, told, timeout, on_progress=on_progress)
                closed += 1
                if closed == TRIES:
                    raise Unavailable("the server closed the link", hint="try again in a moment")
                continue
            if lock is None and not (home / LOCK).exists():  # the first writer creates it
                if not without:
                    raise gone
                with contextlib.suppress(HomeInUse):  # another process was first
                    return _alone(home, tool, told)
            lock = lock or stack.enter_context(LockWait(home))
            if lock.within(PROMPT_SECONDS):
                if without:
                    return _locked(home, tool, told)
                raise gone
            wait.goes_on()


def _comes(client: ControlClient, wait: _Wait) -> bool:
    """Return whether the server that accepted us starts to answer; False if it ended instead."""
    try:
        while not client.answers(PROMPT_SECONDS):
            wait.goes_on()
    except Unavailable:
        return False
    return True


class _Wait:
    """Progress message of a wait, printed once, and the deadline of the wait."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._until = time.monotonic() + WAIT_SECONDS
        self._said = False

    def goes_on(self) -> None:
        """Check the deadline; to be called after each second of waiting.

        Raises:
            DeadlineExceeded: the deadline has passed.
        """
        who = _owner(self._home)
        if time.monotonic() >= self._until:
            raise DeadlineExceeded(
                f"the server of {self._home} ({who}) did not answer within {WAIT_SECONDS:g} s",
                hint="read its log, or run oubliette doctor",
            )
        if not self._said and not is_json():
            note(f"waiting for the server of {self._home} ({who}), which is starting or stopping …")
        self._said = True


def _owner(home: Path) -> str:
    try:
        return f"process {(home / LOCK).read_text(encoding='ascii', errors='replace').strip()[:20]}"
    except OSError:
        return "unknown"


def _alone(home: Path, tool: str, told: dict[str, Any]) -> dict[str, Any]:
    _quiet()
    from oubliette.cli.client.offline import call_offline

    return call_offline(home, tool, told)


def _locked(home: Path, tool: str, told: dict[str, Any]) -> dict[str, Any]:
    _quiet()
    from oubliette.cli.client.offline import call_locked

    return call_locked(home, tool, told)


def _quiet() -> None:
    """Log warnings alone; to be called before modules that log are imported."""
    from oubliette.cli.terminal.lean_structlog import import_structlog

    import_structlog()
    from oubliette.cli.terminal import logging_config

    logging_config.configure("warning", as_json=False)
