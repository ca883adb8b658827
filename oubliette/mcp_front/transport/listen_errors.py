"""Remedies for addresses that cannot be listened on."""

from __future__ import annotations

import errno
import socket
from typing import Final

_HINTS: Final = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port with --port"
    " (port 0 picks one)",
    errno.EACCES: "ports below 1024 are for root: choose another with --port (port 0 picks one)",
    errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 always exists, `ip address`"
    " lists the others",
    errno.EAFNOSUPPORT: "this machine does not speak IPv6; choose an address of IPv4, such as"
    " 127.0.0.1",
    errno.EINVAL: "an address that holds on one link only needs a name for the link; choose another"
    " address, such as 127.0.0.1",
    errno.EMFILE: "the limit of open files (ulimit -n) is reached",
    errno.ENFILE: "the machine has no more room for open files",
}


def listen_hint(error: OSError) -> str:
    """The remedy for an address whose socket cannot be made or bound."""
    if isinstance(error, socket.gaierror):
        return "give an address of this machine, or a name that leads to one, as server.host"
    number = errno.EACCES if error.errno == errno.EPERM else error.errno
    return _HINTS.get(number or 0, "choose another address with server.host and server.port")
