"""The actor kit: asyncio actors on Pykka, with supervision (docs/actors.md).

Subclass `Actor`, mark its handlers with `@handles(Kind)`, where `Kind` is a `Message`, and start it
with `System.spawn` or below a `Supervisor`. A `Ref` is the address of an actor: `tell`, `ask`,
`send`. The kit knows nothing of projects and agents. The names exported here are its public
interface.
"""

from oubliette.kit.actor import Actor
from oubliette.kit.errors import (
    ActorDead,
    ActorError,
    AskTimeout,
    DeadlockError,
    MailboxFull,
    RestartIntensity,
    UnhandledMessage,
    WouldBlockError,
)
from oubliette.kit.mailbox import Envelope
from oubliette.kit.messages import (
    DeadLetter,
    Down,
    LocalMessage,
    Message,
    Perishable,
    Reason,
    Reply,
    handles,
)
from oubliette.kit.ref import Ref
from oubliette.kit.replies import Deferred
from oubliette.kit.supervisor import (
    ChildSpec,
    DynamicSupervisor,
    StartChild,
    StopChild,
    Supervisor,
    WhichChildren,
)
from oubliette.kit.system import System
from oubliette.kit.timers import ActorTimer, PipedTask
from oubliette.kit.trace_context import tracing

__all__ = (
    "Actor",
    "ActorDead",
    "ActorError",
    "ActorTimer",
    "AskTimeout",
    "ChildSpec",
    "DeadLetter",
    "DeadlockError",
    "Deferred",
    "Down",
    "DynamicSupervisor",
    "Envelope",
    "LocalMessage",
    "MailboxFull",
    "Message",
    "Perishable",
    "PipedTask",
    "Reason",
    "Ref",
    "Reply",
    "RestartIntensity",
    "StartChild",
    "StopChild",
    "Supervisor",
    "System",
    "UnhandledMessage",
    "WhichChildren",
    "WouldBlockError",
    "handles",
    "tracing",
)
