"""Messages of the control link, as records. Unknown fields are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resource limits of one process (setrlimit(2)); None = the container's own."""

    nofile: int | None = None
    nproc: int | None = None
    as_bytes: int | None = None
    cpu_seconds: int | None = None
    core: int | None = None


class SecretFile(msgspec.Struct, frozen=True, kw_only=True):
    """In-memory file for one process, removed when the process has ended."""

    variable: str
    """Name of the environment variable that holds its path."""
    name: str
    data: str
    """Content of the file, in base64."""


class StartProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Program to start, and its environment."""

    proc: str
    """Chosen by the server; starting the same id again is the same process."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment; begin with `Inside.env`."""
    cwd: str
    uid: int | None = None
    gid: int | None = None
    session: str | None = None
    stdin: bool = True
    """False: standard input is empty from the start."""
    limits: ProcessLimits = ProcessLimits()
    spool_bytes: int | None = None
    """Size of the buffer for unread output; None = the guest's default (64 MiB)."""
    deadline_seconds: float | None = None
    """The process group is killed after this long."""
    merge_stderr: bool = False
    until_detached: bool = False
    """It ends with its attached link; the guest forgets it without a request."""
    secret_files: tuple[SecretFile, ...] = ()


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """Exit of a process: exactly one of the two is set."""

    code: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int | None:
        """Exit status as in a shell: the code, or 128 + the signal."""
        return 128 + self.signal if self.signal is not None else self.code


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process as the guest reports it."""

    id: str
    pid: int
    session: str | None = None
    state: str = "running"
    """`running` or `exited`."""
    out: tuple[int, int] = (0, 0)
    """Offsets of standard output: acked, end so far."""
    err: tuple[int, int] = (0, 0)
    stdin: int = 0
    """Sequence number of the last accepted frame."""
    exit: Exit | None = None


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """One session that the guest accepts a client for."""

    session: str
    paired: bool = False


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """First message of the guest when a control link opens."""

    versions: tuple[int, int]
    build: str = ""
    boot: str = ""
    """New at each start of the guest."""
    pid: int = 0
    features: tuple[str, ...] = ()
    procs: tuple[ProcessInfo, ...] = ()
    sessions: tuple[SessionState, ...] = ()

    def process(self, proc: str) -> ProcessInfo | None:
        return next((process for process in self.procs if process.id == proc), None)


class GuestEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Event of the guest; `event` is its type, which decides which of the other fields are set.

    `started exited paired refused spool_full spool_resumed evicted draining`, and the types of
    later releases.
    """

    event: str
    proc: str | None = None
    pid: int | None = None
    session: str | None = None
    bare: bool = False
    """For `paired`: the client has no secret."""
    reason: str | None = None
    stream: Any = None
    exit: Exit | None = None
    out: int | None = None
    err: int | None = None


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request."""

    id: int
    ok: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
