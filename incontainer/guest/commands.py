"""Commands of the server on the control link, one function per verb."""

from __future__ import annotations

import os
import signal
import time

from ..io import linux
from ..wire import MAX_COUNT, MAX_WINDOW
from . import request_fields
from .process import secret_files
from .process.spawn import LIMITS, Spec
from .process.spool import FILE_BYTES
from .request_fields import VerbError
from .tickets import PURPOSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .control_link import GuestControlLink
    from .loopback import LoopbackConnections
    from .pairing import Pairing
    from .process.process import Failure, GuestProcess, Window
    from .process.table import ProcessTable
    from .tickets import Tickets

    Request = dict[str, Any]
    Result = dict[str, Any]

    class CommandTarget(Protocol):
        """The guest, as far as its commands know it."""

        born: float
        tickets: Tickets
        pairing: Pairing
        loopback: LoopbackConnections
        table: ProcessTable

        def admit(self, uid: int | None) -> None:
            """Let agents of another user connect."""
            ...

        def listen_again(self) -> int:
            """Make the socket again if it was removed; return its inode."""
            ...

        def drain(self) -> None:
            """Accept nothing more, end all processes, then leave."""
            ...

    Verb = Callable[[CommandTarget, GuestControlLink, Request], "Result | None"]

SPOOL_SMALLEST = 4096  # bytes
LARGEST = (1 << 63) - 1  # what setrlimit and file offsets take


def perform(guest: CommandTarget, link: GuestControlLink, request: Request) -> None:
    """Carry out `request` and answer it, immediately or when it has completed."""
    ident: object = request.get("id")
    try:
        result = _verb(request)(guest, link, request)
    except VerbError as error:
        link.answer_error(ident, error.code, error.message)
        return
    if result is not None:
        link.answer(ident, result)


def _verb(request: Request) -> Verb:
    name = request.get("verb")
    verb = VERBS.get(name) if isinstance(name, str) else None
    if verb is None:
        raise VerbError("unknown_verb", f"unknown verb {str(name)[:64]!r}")
    return verb


def _known(guest: CommandTarget, request: Request) -> GuestProcess:
    proc = request_fields.word(request, "proc")
    process = guest.table.get(proc)
    if process is None:
        raise VerbError("unknown_proc", f"no process {proc}")
    return process


def _optional_id(request: Request, name: str) -> int | None:
    return (
        None
        if request.get(name) is None
        else request_fields.number(request, name, 0, (1 << 32) - 2)
    )


def _start(guest: CommandTarget, link: GuestControlLink, request: Request) -> Result | None:
    until_detached = request_fields.flag(request, "until_detached", default=False)
    return _begin(guest, link, request, None, until_detached=until_detached)


def _pty(guest: CommandTarget, link: GuestControlLink, request: Request) -> Result | None:
    return _begin(guest, link, request, _window(request), until_detached=True)


def _window(request: Request) -> Window:
    rows, columns = (
        request_fields.number(request, name, 1, MAX_WINDOW) for name in ("rows", "cols")
    )
    return rows, columns


def _resize(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    process = _known(guest, request)
    window = _window(request)
    if not process.has_terminal:
        raise request_fields.invalid("proc", "this process has no terminal")
    process.out.resize(*window)
    return {}


def _begin(
    guest: CommandTarget,
    link: GuestControlLink,
    request: Request,
    window: Window | None,
    *,
    until_detached: bool,
) -> Result | None:
    proc = request_fields.word(request, "proc")
    known = guest.table.get(proc)
    if known is not None and known.started:
        return {"pid": known.pid}
    ident: object = request.get("id")

    def answer(process: GuestProcess, failure: Failure | None) -> None:
        if failure is None:
            link.answer(ident, {"pid": process.pid})
        else:
            link.answer_error(ident, *failure)

    if known is not None:  # requested again between fork and exec
        known.waiting.append(answer)
        return None
    spec = _spec(request, proc)
    session = None if request.get("session") is None else request_fields.word(request, "session")
    spool_bytes = FILE_BYTES
    if request.get("spool_bytes") is not None:
        spool_bytes = request_fields.number(request, "spool_bytes", SPOOL_SMALLEST, LARGEST)
    stdin = request_fields.flag(request, "stdin", default=True)
    merge = request_fields.flag(request, "merge_stderr", default=False)
    deadline = request_fields.seconds(request, "deadline_seconds")
    guest.admit(spec.uid)
    process = guest.table.add(proc, spec, session, spool_bytes, until_detached=until_detached)
    failure = process.start(
        stdin=stdin, merge_stderr=merge, deadline_seconds=deadline, window=window
    )
    if failure is not None:
        guest.table.drop(process)
        raise VerbError(*failure)
    guest.table.forked(process)
    process.waiting.append(answer)
    return None


def _spec(request: Request, proc: str) -> Spec:
    argv = request_fields.strings(request, "argv")
    paths, files = secret_files.read(request, proc)
    env = {**request_fields.mapping(request, "env"), **paths, linux.COOKIE: proc}
    cwd = "/" if request.get("cwd") is None else request_fields.text(request, "cwd")
    uid, gid = _optional_id(request, "uid"), _optional_id(request, "gid")
    if uid == os.geteuid() != 0 and gid in (None, os.getegid()):
        uid = gid = None  # already the current user; without root it could not be set anyway
    elif gid is None:
        gid = uid
    given = request_fields.table(request, "limits")
    # Unknown limits are ignored, as all unknown fields are
    known = [name for name in LIMITS if given.get(name) is not None]
    limits = {name: request_fields.number(given, name, 0, LARGEST) for name in known}
    return Spec(argv, env, cwd, uid=uid, gid=gid, limits=limits, files=files)


def _signal(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    process = _known(guest, request)
    given: object = request.get("signal")
    if isinstance(given, str):
        name = given if given.startswith("SIG") else f"SIG{given}"
        number = getattr(signal, name, None)
        if not isinstance(number, signal.Signals):
            raise request_fields.invalid("signal", "unknown signal")
    else:
        number = request_fields.number(request, "signal", 0, 64)
    tree = request_fields.flag(request, "tree", default=True)
    return {"delivered": process.signal(int(number), tree=tree)}


def _expect(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    digest = request_fields.word(request, "digest")
    if len(digest) != 64:
        raise request_fields.invalid("digest", "64 hexadecimal digits are needed")
    depth = (
        0 if request.get("depth") is None else request_fields.number(request, "depth", 0, MAX_COUNT)
    )
    session, project = (
        request_fields.word(request, "session"),
        request_fields.word(request, "project"),
    )
    guest.pairing.expect(session, project, digest.lower(), depth)
    return {}


def _unexpect(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    return {"known": guest.pairing.unexpect(request_fields.word(request, "session"))}


def _ticket(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    purpose = request_fields.word(request, "purpose")
    if purpose not in PURPOSES:
        raise request_fields.invalid("purpose", f"one of {', '.join(PURPOSES)} is needed")
    count = 1 if request.get("count") is None else request_fields.number(request, "count", 1, 256)
    return {"tickets": guest.tickets.issue(purpose, count)}


def _listen(guest: CommandTarget, _link: GuestControlLink, _request: Request) -> Result:
    try:
        return {"inode": guest.listen_again()}
    except OSError as error:
        raise VerbError("no_socket", f"it cannot be made again: {error.strerror}") from error


def _ack(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    process = _known(guest, request)
    streams = [
        stream for stream in (process.out, process.err) if request.get(stream.name) is not None
    ]
    ends = [request_fields.number(request, stream.name, 0, stream.spool.end) for stream in streams]
    for stream, end in zip(streams, ends):  # noqa: B905 -- `strict` came with 3.10
        stream.ack(end)
    process.changed()
    return {}


def _forget(guest: CommandTarget, _link: GuestControlLink, request: Request) -> Result:
    proc = request_fields.word(request, "proc")
    process = guest.table.get(proc)
    if process is not None:
        if process.exit is None:
            raise VerbError("running", f"process {proc} has not ended")
        guest.table.drop(process)
    return {}


def _stats(guest: CommandTarget, _link: GuestControlLink, _request: Request) -> Result:
    processes = guest.table.all()
    streams = [stream.spool for process in processes for stream in (process.out, process.err)]
    return {
        "rss": linux.resident_bytes(),
        "oom_kills": linux.oom_kills(),
        "memory_limit": linux.memory_limit(),
        "procs": len(processes),
        "running": sum(process.exit is None for process in processes),
        "links": guest.pairing.links,
        "connections": guest.loopback.count,
        "attached": sum(process.reader is not None for process in processes),
        "spool_bytes": sum(spool.kept for spool in streams),
        "disk_bytes": sum(spool.on_disk for spool in streams),
        "fds": len(os.listdir("/proc/self/fd")) - 1,
        "uptime_seconds": round(time.monotonic() - guest.born, 3),
    }


def _drain(guest: CommandTarget, _link: GuestControlLink, _request: Request) -> Result:
    guest.drain()
    return {}


VERBS: dict[str, Verb] = {
    "start": _start,
    "pty": _pty,
    "resize": _resize,
    "signal": _signal,
    "expect": _expect,
    "unexpect": _unexpect,
    "ticket": _ticket,
    "listen": _listen,
    "ack": _ack,
    "forget": _forget,
    "stats": _stats,
    "drain": _drain,
}
