"""What can go wrong between the server and a host."""

from __future__ import annotations

from oubliette.errors import ProtocolViolation, RuntimeFailure, Unavailable


class GuestUnreachable(Unavailable):
    """Nothing listens at the relay socket, or it does not answer in time."""

    code = "host_unreachable"


class GuestAbsent(GuestUnreachable):
    """Nothing listens at the relay socket: a host that lives does."""

    code = "host_absent"


class GuestRefused(RuntimeFailure):
    """The host refused; `reason` is its own word (`stale epoch`, `already connected`, …)."""

    code = "host_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the container's host refused: {reason}")
        self.reason = reason


class VersionMismatch(GuestRefused):
    """Host and server have no version of the protocol in common."""

    code = "host_version"


class GuestImpostor(ProtocolViolation):
    """Whoever listens at the relay socket does not hold the container's key."""

    code = "host_impostor"


class LinkClosed(Unavailable):
    """The link to the host has ended; connect again and look at `hello`."""

    code = "link_closed"


class CommandFailed(RuntimeFailure):
    """The host could not do what a request asked for; `kind` is its code for why.

    `not_found bad_cwd permission invalid limit unknown_verb`, and what later hosts add.
    """

    code = "host_verb_failed"

    def __init__(self, verb: str, kind: str, message: str) -> None:
        super().__init__(f"{verb}: {message}")
        self.verb = verb
        self.kind = kind
