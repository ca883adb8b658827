"""Network of a sandbox's own, by pasta(1): the machine's loopback interface is out of reach.

pasta is kept by a `network_keeper`, which ends with the sandbox and not with the server.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.process import network_keeper

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES: Final = "169.254.1.1"
"""Name server inside: pasta asks the machine's, which may listen on its loopback interface."""
REMEDY: Final = "install passt (apt install passt, dnf install passt), which needs /dev/net/tun"
_TUN: Final = "/dev/net/tun"


def why_not() -> str | None:
    """Return why sandboxes cannot have a network of their own here, as far as files show it."""
    if shutil.which("pasta") is None:
        return "pasta is not installed"
    try:
        os.close(os.open(_TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{_TUN}: {error.strerror}"
    return None


def keeper(python: str, pid: int, ports: Sequence[int], *, root: bool) -> list[str]:
    """The command line that gives the sandbox with process `pid` a network.

    `ports` of the machine's loopback interface are reached at the same ports of the sandbox's.
    """
    pasta = [shutil.which("pasta") or "pasta", "--foreground", "--quiet", "--config-net"]
    pasta += ["--pid", "/proc/self/fd/2", "--netns", "/proc/self/fd/0"]
    pasta += ["--netns-only", "--runas", "0"] if root else ["--userns", "/proc/self/fd/1"]
    # Not the machine's own address: what listens there would be out of reach.
    pasta += ["--address", "10.0.2.100", "--netmask", "24", "--gateway", "10.0.2.2", "--no-map-gw"]
    pasta += ["--tcp-ports", "none", "--udp-ports", "none", "--udp-ns", "none"]
    pasta += ["--tcp-ns", ",".join(map(str, ports)) or "none"]
    if names() is not None:
        pasta += ["--dns-forward", NAMES]
    return [python, "-I", "-S", network_keeper.__file__, str(pid), *pasta]


def names() -> bytes | None:
    """Return the resolv.conf inside; None: the machine's, since pasta asks none but by IPv4."""
    try:
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    others = [line for line in lines if line.split()[:1] != ["nameserver"]]
    if not any(re.match(r"\s*nameserver\s+\d+\.", line) for line in lines):
        return None
    return "\n".join([f"nameserver {NAMES}", *others, ""]).encode()
