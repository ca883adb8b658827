"""Server side of the guest protocol, independent of the container engine."""

from oubliette.runtime.guest.control_link import ControlLink
from oubliette.runtime.guest.errors import (
    CommandFailed,
    GuestAbsent,
    GuestImpostor,
    GuestRefused,
    GuestUnreachable,
    LinkClosed,
    PortRefused,
    VersionMismatch,
)
from oubliette.runtime.guest.messages import (
    Exit,
    GuestEvent,
    Hello,
    ProcessInfo,
    ProcessLimits,
    SessionState,
    StartProcess,
)
from oubliette.runtime.guest.process_stream import (
    STDERR,
    STDOUT,
    Eof,
    Gap,
    Output,
    ProcessStream,
    StdinOk,
    StreamItem,
    pieces,
)

__all__ = (
    "STDERR",
    "STDOUT",
    "CommandFailed",
    "ControlLink",
    "Eof",
    "Exit",
    "Gap",
    "GuestAbsent",
    "GuestEvent",
    "GuestImpostor",
    "GuestRefused",
    "GuestUnreachable",
    "Hello",
    "LinkClosed",
    "Output",
    "PortRefused",
    "ProcessInfo",
    "ProcessLimits",
    "ProcessStream",
    "SessionState",
    "StartProcess",
    "StdinOk",
    "StreamItem",
    "VersionMismatch",
    "pieces",
)
