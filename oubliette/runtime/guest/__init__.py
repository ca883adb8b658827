"""The server's side of the host protocol: what runs in a container, whatever the engine."""

from oubliette.runtime.guest.control_link import HostLink
from oubliette.runtime.guest.errors import (
    HostAbsent,
    HostImpostor,
    HostRefused,
    HostUnreachable,
    LinkClosed,
    VerbFailed,
    VersionMismatch,
)
from oubliette.runtime.guest.messages import (
    Exit,
    Hello,
    HostEvent,
    Process,
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
    "Eof",
    "Exit",
    "Gap",
    "Hello",
    "HostAbsent",
    "HostEvent",
    "HostImpostor",
    "HostLink",
    "HostRefused",
    "HostUnreachable",
    "LinkClosed",
    "Output",
    "Process",
    "ProcessLimits",
    "ProcessStream",
    "SessionState",
    "StartProcess",
    "StdinOk",
    "StreamItem",
    "VerbFailed",
    "VersionMismatch",
    "pieces",
)
