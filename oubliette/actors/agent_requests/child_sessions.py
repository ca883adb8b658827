"""Children that one session's agent spawns and waits for.

A `session_message` is named by its `call_id`, as a caller tool call is: asked again after a
reconnect or a restart, it joins the turn that it has started, or gets that turn's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oubliette.actors.agent_requests.caller_tools import new_request_id, outcome_error
from oubliette.actors.agent_requests.params import base_params, optional_text, rpc_error
from oubliette.actors.messages import OpenProject, SpawnResult, SpawnSession
from oubliette.actors.session.messages import AgentBlocked, ChildSpawned, ChildTurnEnded
from oubliette.actors.session.waits import Wait
from oubliette.errors import SessionHandover
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.tool_params.agent_tools import AgentSessionMessage

if TYPE_CHECKING:
    from oubliette.actors.agent_requests.caller_tools import PendingRpc
    from oubliette.actors.session.ports import SessionPort

MAX_CALL_ID: Final = 128
RESTART_SECONDS: Final = 10.0  # for the project's actor to be restarted


class RpcReply(Protocol):
    """Function that answers a JSON-RPC request of the agent's client."""

    def __call__(
        self, rpc: PendingRpc, result: Any = None, error: dict[str, Any] | None = None
    ) -> None:
        """Answer with a result or with an error."""
        ...


Receive = Callable[["dict[str, Any] | None", "dict[str, Any] | None"], None]
"""Receiver of the result of a call, or its JSON-RPC error."""


@dataclass
class ChildCall:
    """A `session_message` of the agent that is not answered yet."""

    askers: list[PendingRpc]
    wait: bool
    receive: Receive | None = None
    """Receives the answer besides the askers."""
    session_id: str = ""
    spawned: bool = False
    ended: ChildTurnEnded | None = None
    accepted: bool = False
    since: float = 0.0
    """Wall second at which the agent asked."""


class ChildCalls:
    """Open `session_message` calls by call id; same lifetime as its SessionActor."""

    def __init__(self, session: SessionPort, reply: RpcReply) -> None:
        self._session = session
        self._reply = reply
        self._open: dict[str, ChildCall] = {}

    def cancel_all(self, reason: str) -> None:
        """Answer every waiting call; the children themselves run on."""
        calls, self._open = self._open, {}
        for call in calls.values():
            _tell(self._reply, call, None, outcome_error("cancelled", f"cancelled: {reason}"))

    def waits(self) -> Iterator[Wait]:
        """Return the children whose answers the agent waits for."""
        for call in self._open.values():
            if call.wait:
                known = call.session_id or None
                yield Wait(
                    kind="child",
                    what=f"its child {known}" if known else "a child to be started",
                    since=call.since,
                    session_id=known,
                )

    def cancelled(self, target: PendingRpc) -> None:
        """Forget a call that the agent cancelled; the child runs on."""
        for call_id, call in list(self._open.items()):
            if target in call.askers:
                call.askers.remove(target)
                if not call.askers:
                    del self._open[call_id]
                    self._tell_waiting()

    def asked(self, rpc: PendingRpc, params: dict[str, Any], *, wait: bool = True) -> None:
        """`session_message`: spawn a child, or send one a message.

        `wait`: the default if the parameters do not define whether the turn's end is waited for.
        """
        asked = base_params(AgentSessionMessage, {"wait": wait, **params}, "session_message")
        call_id = optional_text(params, "call_id", MAX_CALL_ID) or new_request_id()
        known = self._open.get(call_id)
        if known is not None:
            known.askers.append(rpc)
            return
        self._begin(call_id, ChildCall([rpc], asked.wait), asked.message, asked.session_id)

    def begin(
        self,
        call_id: str,
        message: str,
        session_id: str | None,
        receive: Receive,
        *,
        own_workspace: bool = False,
    ) -> None:
        """Start a call that no link waits for: its answer goes to `receive` (`session_map`)."""
        call = ChildCall([], wait=True, receive=receive)
        self._begin(call_id, call, message, session_id, own_workspace=own_workspace)

    def drop(self, call_id: str) -> None:
        """Forget a call that is not waited for any more; the child runs on."""
        if self._open.pop(call_id, None) is not None:
            self._tell_waiting()

    def _begin(
        self,
        call_id: str,
        call: ChildCall,
        message: str,
        session_id: str | None,
        *,
        own_workspace: bool = False,
    ) -> None:
        self._open[call_id] = call
        call.since = self._session.clock.time()
        if call.wait:
            self._tell_waiting()

        async def ask() -> ChildSpawned:
            return await self._ask_project(
                call_id, message, session_id, own_workspace=own_workspace
            )

        self._session.pipe_to_self(
            # The call id makes this safe, over a restart of the project too.
            ask_with_retry(ask, (ActorDead, SessionHandover), seconds=RESTART_SECONDS),
            lambda spawned: spawned,
            lambda error: ChildSpawned(call_id=call_id, error=rpc_error(error)),
        )

    async def _ask_project(
        self,
        call_id: str,
        message: str,
        session_id: str | None,
        *,
        own_workspace: bool,
    ) -> ChildSpawned:
        record = self._session.writer.record
        system = self._session.system
        name = await system.ref("projects").ask(OpenProject(project_id=record.project_id))
        spawned: SpawnResult = await system.ref(name).ask(
            SpawnSession(
                principal=record.principal,
                prompt=message,
                session_id=session_id,
                workspace_id=None if own_workspace else record.workspace_id,
                create_workspace=own_workspace,
                new_session=session_id is None,
                caller_id=record.caller_id,
                caller_tools=record.caller_tools,
                parent_session_id=record.id,
                call_id=f"{record.id}/{call_id}",
            )
        )
        turn = await self._session.context.reader.turn(spawned.session_id, spawned.turn)
        return ChildSpawned(
            call_id=call_id,
            session_id=spawned.session_id,
            spawned=spawned.spawned,
            done=turn is not None and turn.state == "done",
            outcome=turn.outcome if turn else None,
            result=turn.result if turn else None,
        )

    def spawned(self, message: ChildSpawned) -> None:
        """Record that the child's turn was accepted or refused; it may even have ended already."""
        call = self._open.get(message.call_id)
        if call is None:
            return
        if message.error is not None:
            self._answer(message.call_id, error=message.error)
            return
        call.session_id = message.session_id
        call.spawned = message.spawned
        call.accepted = True
        failpoint("session.child_spawned")
        if not call.wait:
            self._answer(message.call_id, result=None)
        elif message.done:
            self._end_with(message.call_id, message.outcome or "failed", message.result)
        elif call.ended is not None:
            self._end_with(message.call_id, call.ended.outcome, call.ended.result)

    def turn_ended(self, message: ChildTurnEnded) -> None:
        """Answer a call of our agent whose turn is over."""
        call = self._open.get(message.call_id)
        if call is None:
            return
        if not call.accepted:
            call.ended = message
            return
        self._end_with(message.call_id, message.outcome, message.result)

    def _end_with(self, call_id: str, outcome: str, result: str | None) -> None:
        if outcome == "completed":
            self._answer(call_id, result=result or "")
            return
        session_id = self._open[call_id].session_id
        error = outcome_error(f"child_{outcome}", f"the child's turn {outcome}: {result or ''}")
        error["data"]["session_id"] = session_id
        self._answer(call_id, error=error)

    def _answer(
        self, call_id: str, *, result: str | None = None, error: dict[str, Any] | None = None
    ) -> None:
        call = self._open.pop(call_id)
        if call.wait:
            self._tell_waiting()
        answer = {"session_id": call.session_id, "result": result, "spawned": call.spawned}
        _tell(self._reply, call, None if error else answer, error)

    @property
    def blocked(self) -> bool:
        """Whether the agent waits for a child."""
        return any(call.wait for call in self._open.values())

    def _tell_waiting(self) -> None:
        tree = self._session.system.lookup(
            f"explorations/{self._session.writer.record.exploration_id}"
        )
        if tree is not None and tree.is_alive():
            tree.tell(AgentBlocked(session_id=self._session.writer.record.id, waits=self.blocked))


def _tell(
    reply: RpcReply, call: ChildCall, result: dict[str, Any] | None, error: dict[str, Any] | None
) -> None:
    for rpc in call.askers:
        reply(rpc, result=result, error=error)
    if call.receive is not None:
        call.receive(result, error)
