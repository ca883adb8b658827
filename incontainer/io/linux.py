"""Linux calls that the standard library lacks: prctl, peers, /proc."""

from __future__ import annotations

import errno
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

COOKIE = "OUBLIETTE_PROC"  # environment variable: id of the process that a process descends from
GENERATIONS = 64  # parents of a peer that are searched
ENVIRON_LIMIT = 1 << 20  # bytes of /proc/<pid>/environ searched


def _load(name: str) -> Callable[..., int]:
    """Return a function of the C library: its result, or minus the error's number."""
    try:
        import ctypes

        call = getattr(ctypes.CDLL(None, use_errno=True), name)
        of_thread = ctypes.get_errno
    except (ImportError, OSError, AttributeError):
        return lambda *_arguments: -errno.ENOSYS

    def called(*arguments: object) -> int:
        result = int(call(*arguments))
        return result if result >= 0 else -of_thread()

    return called


_prctl = _load("prctl")


def prctl(option: int, value: int) -> int:
    """Call it; negative where it was refused or is not there."""
    return _prctl(option, value, 0, 0, 0)


KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number as a system call
_KEYCTL_JOIN_SESSION_KEYRING = 1


def new_session_keyring() -> int:
    """Leave the session keyring that this thread has inherited, for a new one; 0, or the error.

    Over fork and exec a process keeps it and may read the keys in it, as another user too: those
    of Kerberos, AFS or an encrypted home of whom started the server.
    """
    number = KEYCTL.get(os.uname().machine)
    if number is None or struct.calcsize("P") != 8:
        return errno.ENOSYS
    return max(0, -_load("syscall")(number, _KEYCTL_JOIN_SESSION_KEYRING, None))


_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # on every architecture
_LANDLOCK_VERSION = 1
SCOPES = 6  # version of Landlock that has scopes, of Linux 6.12
_SCOPE_ABSTRACT_UNIX_SOCKET = 1


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; negative where there is none."""
    return _load("syscall")(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)


def leave_abstract_sockets() -> bool:
    """Connect to no abstract Unix socket of others, for ourselves and all that we start.

    These belong to the network, not to a folder: in that of the host they are its X server, its
    D-Bus. Needs `no_new_privs`; False where the kernel cannot do it.
    """
    if landlock_version() < SCOPES:
        return False
    call = _load("syscall")
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET)
    ruleset = call(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        return call(_LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


_CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP = 5, 6, 7, 8
_OF_SANDBOX = 1 << _CAP_KILL | 1 << _CAP_SETGID | 1 << _CAP_SETUID | 1 << _CAP_SETPCAP
_CAP_VERSION = 0x20080522
_CAPABILITIES = 64  # that there can be


def drop_spare_capabilities() -> None:
    """Let nothing that is started gain a capability: empty the bounding and inheritable sets.

    Root's guest in a sandbox has the right for that, and gives it up with it. In an engine's
    container these sets are those of its configuration, and are left alone.
    """
    try:
        import ctypes
    except ImportError:
        return  # a Python that was built without it has none of the calls either
    head = struct.pack("=Ii", _CAP_VERSION, 0)
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable: twice 32 bits
    if _load("capget")(head, sets):
        return
    low = list(struct.unpack("=6I", sets.raw))
    if low[1] != _OF_SANDBOX or low[4]:
        return
    for number in range(_CAPABILITIES):
        prctl(PR_CAPBSET_DROP, number)
    low[0] &= ~(1 << _CAP_SETPCAP)
    low[1] &= ~(1 << _CAP_SETPCAP)
    low[2] = low[5] = 0
    _load("capset")(head, struct.pack("=6I", *low))


_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_DOMAIN = 0xFF  # of a personality; above are flags, such as that addresses are not random


def forget_priority() -> None:
    """Give up what the server has before other programs: it is for the server, not for agents.

    A service may be protected from the kernel's killer for lack of memory, or be real-time; its
    agents would be too, and the machine would kill others for their memory.
    """
    if _read("/proc/self/oom_score_adj", 32).startswith(b"-"):
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("0")
        except OSError:
            pass  # a read-only /proc; an engine has set what holds here
    try:
        if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    except OSError:
        pass  # an outer filter of system calls, of an engine that sets them itself
    ioprio_set = _IOPRIO_SET.get(os.uname().machine)
    if ioprio_set is not None and struct.calcsize("P") == 8:
        _load("syscall")(ioprio_set, 1, 0, 0)  # of this process; its nice value decides
    personality = _load("personality")
    now = personality(0xFFFFFFFF)  # asks
    if now > 0:
        personality(now & _DOMAIN)


def hide_from_tracers() -> bool:
    """Refuse ptrace and /proc/<pid>/mem to processes of our own user; True if it worked."""
    return prctl(PR_SET_DUMPABLE, 0) == 0


def adopt_orphans() -> bool:
    """Make orphaned descendants our children, so that they can be found, ended and reaped."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def peer_pid(sock: socket.socket) -> int:
    """Return the pid that connected; 0 if it is outside our pid namespace."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


def peer_is_outside(sock: socket.socket) -> bool:
    """Whether the peer is outside our pid namespace, where no agent can be."""
    return peer_pid(sock) == 0


def ancestors(pid: int) -> list[int]:
    """Return `pid`, its parent, and so on up to our own child; empty if it is no descendant."""
    own = os.getpid()
    way: list[int] = []
    while pid > 0 and len(way) < GENERATIONS:
        if pid == own:
            return way
        way.append(pid)
        fields = _stat_fields(pid)
        pid = int(fields[1]) if len(fields) > 3 else 0
    return []


def keep_from_children() -> None:
    """Mark inherited descriptors above 2 close-on-exec; open /dev/null where 0, 1, 2 are shut."""
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        null = os.dup(null)
    os.close(null)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            continue  # the listing's own descriptor, closed by now


def set_window(fd: int, rows: int, columns: int) -> None:
    """Set the size of the terminal `fd`; its foreground programs get SIGWINCH."""
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def take_terminal(fd: int) -> None:
    """Make the terminal `fd` the controlling one of this process, the leader of a new session."""
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


class Task:
    """One line of /proc: a process, its parent, its group and its session."""

    __slots__ = ("group", "parent", "pid", "session")

    def __init__(self, pid: int, parent: int, group: int, session: int) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session


def tasks() -> list[Task]:
    """Return all live processes in /proc; zombies are left out."""
    found: list[Task] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = _stat_fields(int(name))
        if len(fields) > 3 and fields[0] not in (b"Z", b"X"):
            found.append(Task(int(name), int(fields[1]), int(fields[2]), int(fields[3])))
    return found


def descendants(pid: int) -> list[int]:
    """All live processes below this one, none of them before its parent."""
    return trees([pid], tasks())[1:]


def trees(roots: list[int], tasks: list[Task]) -> list[int]:
    """Return `roots` and all processes in `tasks` below them, none of them before its parent.

    In this order a signal for a whole tree reaches a shell before the child it waits for: one
    that sees its child end first may leave without running its trap.
    """
    children: dict[int, list[int]] = {}
    for task in tasks:
        children.setdefault(task.parent, []).append(task.pid)
    below: set[int] = set()
    unvisited = list(roots)
    while unvisited:
        fresh = [pid for pid in children.get(unvisited.pop(), ()) if pid not in below]
        below.update(fresh)
        unvisited.extend(fresh)
    ordered = [pid for pid in roots if pid not in below]
    for pid in ordered:
        ordered.extend(children.get(pid, ()))
    return ordered


def _stat_fields(pid: int) -> list[bytes]:
    """Return state, parent, group, session and so on of a process."""
    stat = _read(f"/proc/{pid}/stat", 4096)
    # "pid (command) state ppid pgrp session ...": a command may hold blanks and brackets
    return stat[stat.rfind(b")") + 1 :].split()


def carries_cookie(pid: int, proc: str) -> bool:
    """Whether the process was started with our cookie for `proc` in its environment."""
    cookie = f"{COOKIE}={proc}".encode()
    return cookie in _read(f"/proc/{pid}/environ", ENVIRON_LIMIT).split(b"\0")


def resident_bytes() -> int:
    pages = _read("/proc/self/statm", 256).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


_CGROUP = "/sys/fs/cgroup"


def oom_kills(root: str = _CGROUP) -> int | None:
    """Return how many of the container's processes the kernel killed for lack of memory, or None.

    Engines show a container its own control group, of version 2 or of version 1.
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        for line in _read(f"{root}/{name}", 4096).splitlines():
            key, _, value = line.partition(b" ")
            if key == b"oom_kill" and value.isdigit():
                return int(value)
    return None


def memory_limit(root: str = _CGROUP) -> int | None:
    """Return the memory limit of this container in bytes; None: unknown, or no limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        value = _read(f"{root}/{name}", 64).strip()
        if value.isdigit() and int(value) < 1 << 60:
            return int(value)
    return None


def _read(path: str, limit: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        pieces: list[bytes] = []
        while limit > 0:
            piece = os.read(fd, min(limit, 1 << 16))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(fd)
