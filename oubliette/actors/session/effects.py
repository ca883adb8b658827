"""Effects that a session's state decides on, which its actor applies in order.

`AppendEvent`, `ChangeRecord`, `StoreTurn`, `CountUsage` and `Store` go into the next transaction.
The others reach other actors, or parts of this one: at once, or in `AfterCommit`, when that
transaction is in the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.actors.agent_requests.caller_tools import PendingRpc
from oubliette.actors.session.messages import (
    AgentBlocked,
    AgentBusy,
    AgentCost,
    ChildTurnEnded,
    LogGrown,
    RootCaller,
    StdinFrame,
    ToolsListed,
)
from oubliette.kit import Message
from oubliette.records import CallerRequest, PermissionRequest, Turn, Used
from oubliette.runtime.store.operations import Op


class AppendEvent(msgspec.Struct, frozen=True):
    """Append an event to the log."""

    type: str
    data: dict[str, Any]
    source: str | None = None
    caller_id: str | None = None
    """The caller that receives it; None: the one that provides tools now."""
    principal: str | None = None
    """Of that caller; None: of the session."""


class ChangeRecord(msgspec.Struct, frozen=True):
    """Change these fields of the session's record."""

    fields: dict[str, Any]


class StoreTurn(msgspec.Struct, frozen=True):
    """Store a turn as it is now."""

    turn: Turn


class CountUsage(msgspec.Struct, frozen=True):
    """Add to the sums of what the session has used."""

    used: Used


class Store(msgspec.Struct, frozen=True):
    """Perform an operation of the store in the same transaction."""

    operation: Op


class WriteFrame(msgspec.Struct, frozen=True):
    """Write a frame to the agent."""

    frame: StdinFrame


class SendPrompt(msgspec.Struct, frozen=True):
    """Write the prompt of the running turn to the agent."""

    turn: Turn


class NotifyTree(msgspec.Struct, frozen=True):
    """Send a message to the actor of the session's tree."""

    message: AgentBusy | AgentBlocked | AgentCost | LogGrown | RootCaller


class NotifyParent(msgspec.Struct, frozen=True):
    """Send the end of a turn to the session whose agent waits for it."""

    session_id: str
    message: ChildTurnEnded


class WatchTurn(msgspec.Struct, frozen=True):
    """Start the deadlines of a turn."""

    turn: int


class EndTurnWatch(msgspec.Struct, frozen=True):
    """Cancel the deadlines and the open permission requests of the turn that has ended."""


class InterruptTurn(msgspec.Struct, frozen=True):
    """Have the agent end the running turn."""

    turn: int


class AskPermission(msgspec.Struct, frozen=True):
    """Send a permission request of the agent to the caller that decides."""

    data: dict[str, Any]
    source: str


class HearSystem(msgspec.Struct, frozen=True):
    """Note an item of type `system` of the agent's output, which is on its way to the log."""

    data: dict[str, Any]


class SendDecision(msgspec.Struct, frozen=True):
    """Write the decision on a permission request to the agent."""

    request: PermissionRequest


class DecisionStored(msgspec.Struct, frozen=True):
    """Continue with a decision on a permission request, which is in the log."""

    request: PermissionRequest
    turn: int | None
    """The turn that ran when it was decided."""


class WithdrawTurn(msgspec.Struct, frozen=True):
    """Take the prompt of a turn back from the agent; `PromptWithdrawn` has the outcome."""

    turn: int


class InterruptAgent(msgspec.Struct, frozen=True):
    """Write an interrupt of a turn to the agent."""

    turn: int


class EndAgentProcess(msgspec.Struct, frozen=True):
    """Ask the agent to end."""


class GiveUpAgent(msgspec.Struct, frozen=True):
    """Fail for an unusable agent; the end of its standard error is added to the reason."""

    reason: str
    start_failed: bool = False


class EndRunningTurn(msgspec.Struct, frozen=True):
    """Have the watchdog end a turn, if it still runs."""

    turn: int


class EndUndeliveredTurn(msgspec.Struct, frozen=True):
    """End the running turn, whose prompt the agent never got."""


class TellAgent(msgspec.Struct, frozen=True):
    """Send a message to the actor of the agent's process, if there is one."""

    message: ToolsListed


class BeginTurn(msgspec.Struct, frozen=True):
    """Begin the next turn, if there is one and nothing is in its way."""


class ReplyToClient(msgspec.Struct, frozen=True):
    """Answer a request of the agent's client, with a result or with a JSON-RPC error."""

    rpc: PendingRpc
    result: Any = None
    error: dict[str, Any] | None = None


class EndRequest(msgspec.Struct, frozen=True):
    """Let the link of a request have another: this one gets no answer."""

    rpc: PendingRpc


class NotifyClient(msgspec.Struct, frozen=True):
    """Send `caller_tools_config` over a link of the agent's client, if it is open."""

    link: str
    params: dict[str, Any]


class ReportProgress(msgspec.Struct, frozen=True):
    """Send the agent's client the progress of a request that it waits for."""

    rpc: PendingRpc
    message: str


class SendTools(msgspec.Struct, frozen=True):
    """Send the session's tools, as they are by then, to the agent's client."""


class NotifyRootCaller(msgspec.Struct, frozen=True):
    """Send the tree the caller that the session, its root, has by then."""


class ServeRequest(msgspec.Struct, frozen=True):
    """Work on a request that needs the store or other actors; `LinkAnswered` has the answer."""

    rpc: PendingRpc
    method: str
    params: dict[str, Any]
    bare: bool = False
    """The client uses the protocol's first form."""


class ReadOutcome(msgspec.Struct, frozen=True):
    """Read the stored outcome of a settled call; `LinkAnswered` has it."""

    rpc: PendingRpc
    request_id: str


class WatchCall(msgspec.Struct, frozen=True):
    """Start the deadline of a caller's tool call, and watch the caller."""

    request: CallerRequest
    adopted: bool
    """Whether the call was made under an earlier actor."""


class EndCallWatch(msgspec.Struct, frozen=True):
    """End the watch over a call, which is settled."""

    request_id: str


class ReserveOpenCall(msgspec.Struct, frozen=True):
    """Ask the owner of the principal's limit for one more call; `CallCounted` has the answer."""

    request_id: str
    again: bool = False
    """Whether the owner was being restarted when it was asked before."""


class ReleaseOpenCall(msgspec.Struct, frozen=True):
    """Send the owner of the principal's limit that a call is settled, or withdrawn."""

    request_id: str


class ReportOpenCalls(msgspec.Struct, frozen=True):
    """Send the owner of the principal's limit all calls that are open here, or wait for it."""

    request_ids: tuple[str, ...]
    reserving: tuple[str, ...] = ()


class AskMapSlots(msgspec.Struct, frozen=True):
    """Ask how many more agents the container has memory for; `MapSlots` has the answer."""

    call_id: str


class OutcomeStored(msgspec.Struct, frozen=True):
    """Continue with a settled call, whose outcome is in the log."""

    request_id: str
    outcome: str
    result: Any
    error: str | None


class ProgressStored(msgspec.Struct, frozen=True):
    """Continue with the progress of a call, which is in the log."""

    request_id: str
    message: str


class AnswerAsk(msgspec.Struct, frozen=True):
    """Answer an ask that was deferred."""

    answer: Any
    """Its `Deferred`."""
    value: bool


class SendToSelf(msgspec.Struct, frozen=True):
    """Send a message to the session itself, handled after those that wait already."""

    message: Message


class SpawnChild(msgspec.Struct, frozen=True):
    """Send a message to a child, or start one with it; `ChildSpawned` has the outcome."""

    call_id: str
    message: str
    session_id: str | None
    own_workspace: bool
    branch: bool = False
    """Whether it gets a copy of this session's workspace."""


class EndChild(msgspec.Struct, frozen=True):
    """End a child that has done its part of a `session_map`."""

    session_id: str


class StartTimer(msgspec.Struct, frozen=True):
    """Send the session a message after some seconds."""

    seconds: float
    message: Message


class PassFailpoint(msgspec.Struct, frozen=True):
    """Pass a place at which a test can make the process fail."""

    name: str


FollowUp = (
    BeginTurn
    | WatchTurn
    | EndTurnWatch
    | InterruptTurn
    | EndRunningTurn
    | EndUndeliveredTurn
    | AskPermission
    | HearSystem
    | DecisionStored
    | OutcomeStored
    | ProgressStored
    | SendTools
    | NotifyRootCaller
)
"""Effects by which a part of the session decides again, on its state at that moment."""


class AfterCommit(msgspec.Struct, frozen=True):
    """An effect that waits until everything before it is in the store."""

    effect: SendPrompt | NotifyParent | FollowUp


Action = (
    WriteFrame
    | SendPrompt
    | SendDecision
    | TellAgent
    | WithdrawTurn
    | InterruptAgent
    | EndAgentProcess
    | GiveUpAgent
    | NotifyTree
    | NotifyParent
    | ReplyToClient
    | NotifyClient
    | ReportProgress
    | ServeRequest
    | ReadOutcome
    | WatchCall
    | EndCallWatch
    | ReserveOpenCall
    | ReleaseOpenCall
    | ReportOpenCalls
    | AskMapSlots
    | AnswerAsk
    | SendToSelf
    | SpawnChild
    | EndRequest
    | EndChild
    | StartTimer
    | PassFailpoint
    | FollowUp
)
"""Effects that are applied at once."""
Effect = AppendEvent | ChangeRecord | StoreTurn | CountUsage | Store | AfterCommit | Action
Effects = tuple[Effect, ...]
