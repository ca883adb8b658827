"""Program that gives a sandbox its network, until the sandbox ends: `network_keeper PID PASTA...`.

The sandbox's namespaces of network and users are descriptors 0 and 1 of pasta: newer releases close
all others, and root's may not look into another process. It writes its pid to descriptor 2 when the
network is there; then this program prints `ready`, else why not.

It is run by its path, by the Python of the sandbox (3.9), and needs no server, which may be killed.
The kernel ends pasta with this program.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time

NS_GET_USERNS = 0xB701  # ioctl_ns(2)
PR_SET_PDEATHSIG = 1
STEADY_SECONDS = 5.0  # a pasta that ends sooner is not started again


def main() -> int:
    """Return when the sandbox has ended, or its network is lost."""
    pid, *pasta = sys.argv[1:]
    sandbox = os.pidfd_open(int(pid))
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):  # noqa: PTH116 -- quick to start
        raise ProcessLookupError("the sandbox has ended")  # and its pid is another's
    users = fcntl.ioctl(network, NS_GET_USERNS)
    told = False
    while True:
        began = time.monotonic()
        ready, last_words = _keep(sandbox, (network, users), pasta, told=told)
        if last_words is None:
            return 0
        if not told and not ready:
            lines = [line for line in last_words.splitlines() if "syslog" not in line]
            _answer("; ".join(lines) or "it ended")
        told = True
        if time.monotonic() - began < STEADY_SECONDS:
            return 1


def _keep(
    sandbox: int, namespaces: tuple[int, int], pasta: list[str], *, told: bool
) -> tuple[bool, str | None]:
    """Run pasta; return whether it was ready, and its last words if it has ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _become(pasta, (*namespaces, writing))
    os.close(writing)
    poll = select.poll()
    poll.register(sandbox, select.POLLIN)
    poll.register(reading, select.POLLIN)
    ready, text = False, b""
    try:
        while not any(fd == sandbox for fd, _ in poll.poll()):
            piece = os.read(reading, 4096)
            if not piece:
                return ready, text.decode(errors="replace")
            text = (text + piece)[-4096:]
            if not ready and any(line.isdigit() for line in text.split(b"\n")[:-1]):
                ready = True
                if not told:
                    _answer("ready")
        return ready, None
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _become(pasta: list[str], descriptors: tuple[int, ...]) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # where it is ignored, pasta does not start
        for number, fd in enumerate(descriptors):
            os.dup2(fd, number)
        os.execv(pasta[0], pasta)  # noqa: S606 -- no shell is wanted
    except OSError as error:
        os.write(2, f"{pasta[0]}: {error.strerror}".encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        _answer(str(error))
        sys.exit(1)
