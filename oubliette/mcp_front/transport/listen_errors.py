"""Remedies for addresses that cannot be listened on."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
from typing import Final

ASK_SECONDS: Final = 1.0
_REALM: Final = 'realm="oubliette"'
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


def taken_hint(error: OSError, host: str, port: int) -> str:
    """The remedy as of `listen_hint`, with what listens there; it blocks for a second at most."""
    hint = listen_hint(error)
    if error.errno != errno.EADDRINUSE or not _is_oubliette(host, port):
        return hint
    return hint.replace("another program listens", "a server of Oubliette listens", 1)


def _is_oubliette(host: str, port: int) -> bool:
    asked = http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)
    with contextlib.closing(asked), contextlib.suppress(OSError, http.client.HTTPException):
        asked.request("GET", "/mcp")
        return _REALM in (asked.getresponse().getheader("www-authenticate") or "")
    return False
