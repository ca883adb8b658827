"""Child process `opencode serve`: its start, its port, its password, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess

from ...io import linux
from ...io.event_loop import READ
from ...io.stdio import log
from .guard import Guarded
from .http import USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...io.event_loop import Loop, LoopTimer

START_SECONDS = 120.0  # until it listens; its first start in a HOME creates a database
TERM_SECONDS = 2.0  # between SIGTERM and SIGKILL
USERNAME = "OPENCODE_SERVER_USERNAME"
PASSWORD = "OPENCODE_SERVER_PASSWORD"  # noqa: S105 -- the variable's name
LISTENING = re.compile(rb"listening on http://127\.0\.0\.1:(\d{1,5})")
UNGUARDED = (
    "this OpenCode did not run the guard that keeps it from executing a repository's code: use a"
    " release that docs/agents.md names, or set trust_repository in [opencode] if every repository"
    " here is trusted"
)
LINE_LIMIT = 64 * 1024  # bytes of its standard output without a newline


def _tie() -> None:
    """Set the parent-death signal, so that the child ends with the bridge."""
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)


class OpencodeServer:
    """The child process.

    Its password is generated here and passed by the guard, as its settings are: not on the command
    line, which any process of the machine may read, and not in its environment, which processes of
    the same user in the same container may.
    """

    def __init__(
        self,
        loop: Loop,
        program: str,
        *,
        on_listening: Callable[[int], None],
        on_ended: Callable[[int], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Start the program.

        Raises:
            OSError: The program cannot be started.

        """
        self._loop = loop
        self._on_listening = on_listening
        self._on_ended = on_ended
        self._on_failed = on_failed
        self._line = b""
        self._kill: LoopTimer | None = None
        self._ended = False
        self.password = os.urandom(32).hex()
        loop.on_signal(signal.SIGCHLD, self._reap)
        self._guarded = Guarded(os.environ, {PASSWORD: self.password})
        self.notes = self._guarded.notes
        self._child = subprocess.Popen(
            [program, "serve", "--hostname", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**self._guarded.environ, USERNAME: USER},
            pass_fds=self._guarded.inherited,
            preexec_fn=_tie,  # noqa: PLW1509 -- there is one thread
        )
        assert self._child.stdout is not None
        self._out = self._child.stdout.fileno()
        os.set_blocking(self._out, False)
        self._starting: LoopTimer | None = loop.call_later(START_SECONDS, self._overdue)
        loop.watch(self._out, READ, self._said)

    def answers(self) -> None:
        """Note that it has answered a request: the file with the password can be emptied."""
        if not self._ended:
            self._guarded.hide(self._child.pid)

    def end(self) -> None:
        """End it with SIGTERM, then SIGKILL; `on_ended` follows."""
        if not self._ended and self._kill is None:
            self._child.send_signal(signal.SIGTERM)
            self._kill = self._loop.call_later(TERM_SECONDS, self._child.kill)

    def _overdue(self) -> None:
        self._on_failed(f"opencode serve did not listen within {START_SECONDS:g} s")

    def _said(self, _events: int) -> None:
        try:
            data = os.read(self._out, 65536)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._loop.unwatch(self._out)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-LINE_LIMIT:]
        for line in lines:
            found = LISTENING.search(line)
            if found and self._starting is not None:
                self._starting.cancel()
                self._starting = None
                if self._guarded.taken:
                    self._on_listening(int(found.group(1)))
                else:
                    self._on_failed(UNGUARDED)
            elif line.strip():
                log(f"opencode: {line.decode(errors='replace')}")

    def _reap(self) -> None:
        code = self._child.poll()
        if code is None or self._ended:
            return
        self._ended = True
        for timer in (self._starting, self._kill):
            if timer is not None:
                timer.cancel()
        self._loop.unwatch(self._out)
        self._on_ended(code)
