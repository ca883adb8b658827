"""Start of a process: one fork, and in the child the few calls that must come before exec.

`subprocess` imports 4 ms of code, cannot drop groups before Python 3.9's `user=` in the order we
need, and runs limits in a `preexec_fn` whose error it hides. The guest has one thread, so a plain
fork is safe. A failure in the child is written to a pipe as a stage and an errno; the pipe is
close-on-exec, so its end of file is the proof that exec happened.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket

from ...io import linux
from . import secret_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LIMITS: dict[str, int] = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "as_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "core": resource.RLIMIT_CORE,
}
# Signals whose disposition may be set at all. The server may have inherited ignored ones (a shell's
# `&` ignores SIGINT and SIGQUIT), and an ignored signal stays ignored over an exec.
HANDLED = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

TERMINAL_SECONDS = 5.0  # from fork until a child has its terminal

_files_before = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_file_limit() -> None:
    """Raise the guest's own limit of open descriptors to the maximum; children get the old one."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_files_before[1], _files_before[1]))
    except (OSError, ValueError):
        return  # the hard limit may be above what this kernel grants; the soft one stays


new_privileges = False  # may programs gain more rights than the guest? set once, at its start


class Spec:
    """Program to start, and its user. `uid` and `gid` are None to keep the guest's own."""

    __slots__ = ("argv", "cwd", "env", "files", "gid", "limits", "uid")

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        uid: int | None = None,
        gid: int | None = None,
        limits: Mapping[str, int] | None = None,
        files: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.uid = uid
        self.gid = gid
        self.limits = limits or {}
        self.files = files or []


class Terminal:
    """Terminal that a child makes for itself, whose other side it sends over `channel`.

    The program's own user makes it, so that programs can open it by its name; the guest may have
    no right to give away one of its own.
    """

    __slots__ = ("channel", "window")

    def __init__(self, channel: socket.socket, window: tuple[int, int]) -> None:
        self.channel = channel
        self.window = window

    def take(self) -> None:
        """Make it the controlling terminal of this process and its standard streams."""
        master, slave = os.openpty()
        linux.set_window(slave, *self.window)
        linux.take_terminal(slave)
        for target in range(3):
            os.dup2(slave, target, inheritable=True)
        socket.send_fds(self.channel, [b"t"], [master])


def spawn_in_terminal(spec: Spec, window: tuple[int, int]) -> tuple[int, int, int]:
    """Fork and exec with a new terminal of so many rows and columns as standard streams.

    Returns:
        As `spawn`, and the other side of the terminal; -1 if the child had none: see `explain`.

    Raises:
        OSError: As `spawn`.

    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            pid, report = spawn(spec, Terminal(theirs, window))
        ours.settimeout(TERMINAL_SECONDS)
        try:
            sides = socket.recv_fds(ours, 1, 1)[1]
        except OSError:
            sides = []
    for side in sides:
        os.set_inheritable(side, False)
    return pid, report, sides[0] if sides else -1


def spawn(spec: Spec, streams: tuple[int, int, int] | Terminal) -> tuple[int, int]:
    """Fork and exec with `streams` as descriptors 0, 1 and 2.

    Returns:
        The pid, and the descriptor on which `explain` can read why exec failed.

    Raises:
        OSError: The limit of processes or descriptors is reached.

    """
    report_in, report_out = os.pipe()
    parent = os.getpid()
    # A signal between fork and exec would run the guest's handlers in the child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(spec, streams, report_out, parent)
    except OSError:
        os.close(report_in)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(report_out)
    os.set_blocking(report_in, False)
    return pid, report_in


def explain(report: bytes, spec: Spec) -> tuple[str, str] | None:
    """Return the error code and message of the child's report; None if exec happened."""
    if not report:
        return None
    stage, _, number = report.decode(errors="replace").partition(" ")
    code = int(number) if number.isdigit() else 0
    why = os.strerror(code)
    if stage == "exec":
        program = spec.argv[0]
        if code in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return "not_found", f"{program}: no such program (or its interpreter is missing)"
        kind = "limit" if code in (errno.EAGAIN, errno.ENOMEM, errno.E2BIG) else "permission"
        return kind, f"{program}: {why}"
    if stage == "cwd":
        return "bad_cwd", f"{spec.cwd}: {why}"
    if stage == "uid":
        return "permission", f"cannot become uid {spec.uid}, gid {spec.gid}: {why}"
    if stage == "terminal":
        return "limit", f"no terminal: {why}"
    if stage == "secret_files":
        return "limit", f"secret_files: {why}"
    return "limit", f"limit {stage}: {why}"


def _become(spec: Spec, streams: tuple[int, int, int] | Terminal, report: int, parent: int) -> None:
    """Turn the forked child into the program; never returns."""
    stage = "exec"
    try:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if not isinstance(streams, Terminal):
            for target, source in enumerate(streams):
                os.dup2(source, target, inheritable=True)
        os.umask(0o022)
        stage = "nofile"
        resource.setrlimit(resource.RLIMIT_NOFILE, _files_before)
        for stage, value in spec.limits.items():
            if stage != "as_bytes":
                resource.setrlimit(LIMITS[stage], (value, value))
        stage = "uid"
        if spec.gid is not None:
            if os.geteuid() == 0:
                os.setgroups([])
            os.setgid(spec.gid)
        if spec.uid is not None:
            os.setuid(spec.uid)
            # Afterwards, so that it counts for them: an ordinary user has a few hundred keys.
            linux.new_session_keyring()
        if not new_privileges:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        # After the change of user, which would clear it. An agent must not outlive its guest.
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)
        if isinstance(streams, Terminal):
            stage = "terminal"
            streams.take()
        stage = "secret_files"
        secret_files.write(spec.files)
        stage = "cwd"
        os.chdir(spec.cwd)
        if "as_bytes" in spec.limits:  # last, or this very code might run out of memory
            stage = "as_bytes"
            resource.setrlimit(resource.RLIMIT_AS, (spec.limits[stage], spec.limits[stage]))
        stage = "exec"
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _exec(spec)
    except OSError as error:
        os.write(report, f"{stage} {error.errno}".encode())
    except (ValueError, MemoryError):
        os.write(report, f"{stage} {errno.EPERM}".encode())
    finally:
        os._exit(127)


def _exec(spec: Spec) -> None:
    program = spec.argv[0]
    if "/" in program:
        os.execve(program, spec.argv, spec.env)  # noqa: S606
    path = spec.env.get("PATH") or os.environ.get("PATH") or os.defpath
    denied: OSError | None = None
    for folder in path.split(":"):
        try:
            os.execve(os.path.join(folder or ".", program), spec.argv, spec.env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error  # a later folder may hold an executable one, as in execvp
    raise denied or FileNotFoundError(errno.ENOENT, program)
