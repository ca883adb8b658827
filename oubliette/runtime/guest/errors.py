"""Errors of the connection between the server and a guest."""

from __future__ import annotations

from oubliette.errors import ProtocolViolation, RuntimeFailure, Unavailable


class GuestUnreachable(Unavailable):
    """Nothing listens at the relay socket, or it does not answer in time."""

    code = "host_unreachable"


class GuestAbsent(GuestUnreachable):
    """Nothing listens at the relay socket: the guest has ended."""

    code = "host_absent"


class SocketFolderGone(GuestAbsent):
    """The folder of the relay socket was removed: no guest is reached there ever again."""


class GuestRefused(RuntimeFailure):
    """The guest refused; `reason` is its error text (`stale epoch`, `already connected`, …)."""

    code = "host_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the container's guest refused: {reason}")
        self.reason = reason


class VersionMismatch(GuestRefused):
    """Guest and server have no version of the protocol in common."""

    code = "host_version"


class GuestImpostor(ProtocolViolation):
    """The process that listens at the relay socket does not hold the container's key."""

    code = "host_impostor"


class LinkClosed(Unavailable):
    """The link to the guest has ended; reconnect and compare with `hello`."""

    code = "link_closed"


class CommandFailed(RuntimeFailure):
    """The guest could not carry out a request; `kind` is its error code.

    `not_found bad_cwd permission invalid limit unknown_verb`, and the codes of later releases.
    """

    code = "host_verb_failed"

    def __init__(self, verb: str, kind: str, message: str) -> None:
        super().__init__(f"{verb}: {message}")
        self.verb = verb
        self.kind = kind


class PortRefused(Unavailable):
    """Nothing accepts connections on this port of the container."""

    code = "port_refused"
