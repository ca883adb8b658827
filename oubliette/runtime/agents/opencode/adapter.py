"""Adapter of `opencode serve`, v1, through the bridge in its container.

The bridge (`incontainer/bridges/opencode/bridge.py`) makes requests that are lines here, and passes
on the server's events as lines. They are interpreted only here.

A turn's prompt has a message id of ours with its number. Its messages name it as their parent, so
an adapter that did not begin the turn recognises its end, and does not mistake for it the second
`session.idle` that an aborted turn leaves behind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from oubliette.config.secret_names import bare_url
from oubliette.runtime.agents.checked import turn_number
from oubliette.runtime.agents.handshake_adapter import Event, Json, object_of, system
from oubliette.runtime.agents.line_framing import OutputGap
from oubliette.runtime.agents.opencode.parts import PartsAdapter, stamp_of, turn_of
from oubliette.runtime.agents.opencode.requests import (
    PREFIX,
    ForkRequests,
    NotForked,
    is_good,
    list_of,
    reason_of,
    request_line,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.handshake_adapter import Opening
    from oubliette.runtime.agents.line_framing import Line

MCP_SERVER: Final = "oubliette"
_SESSION: Final = "session"
_ANEW: Final = "session-anew"
_MCP: Final = "mcp"
_PROVIDERS: Final = "providers"
"""Requested so that they are there before the first turn. An abort while OpenCode 1.18 sets them up
is kept as their state, and every later turn fails with `All fibers interrupted without error`."""
_NOT_FOUND: Final = 404
_READ_AGAIN: Final = 100  # messages, after the stream of events had broken

_CHATTER: Final = frozenset(
    {
        "catalog.updated",
        "file.edited",
        "file.watcher.updated",
        "integration.updated",
        "lsp.updated",
        "mcp.tools.changed",
        "message.part.removed",
        "message.removed",
        "models-dev.refreshed",
        "permission.replied",
        "plugin.added",
        "project.directories.updated",
        "project.updated",
        "question.rejected",
        "question.replied",
        "reference.updated",
        "server.connected",
        "server.heartbeat",
        "session.created",
        "session.diff",
        "session.updated",
    }
)
"""Events without content for a turn, or with content of other events."""


_UNREACHABLE: Final = re.compile(
    r"(?i)cannot connect to api|unable to connect|connection ?refused|econnrefused|enotfound"
)
"""Reasons of OpenCode for a model that cannot be reached."""


class OpencodeAdapter(PartsAdapter):
    """`AgentAdapter` of `opencode serve` behind its bridge."""

    def __init__(
        self,
        opening: Opening,
        state: Mapping[str, Any] | None = None,
        *,
        model_url: str | None = None,
    ) -> None:
        self._model_url = None if model_url is None else bare_url(model_url)
        """URL of its model, for errors."""
        self._version = ""
        self._resumed = False
        self._fork = ForkRequests(opening)
        self._forked: bool | None = None
        """Whether it began as a fork; None: it was not asked to."""
        super().__init__(opening, state)

    def _begin_turn(self) -> None:
        super()._begin_turn()
        self._unheard: str | None = None
        self._stopped = False
        self._busy = False

    def _greeting(self) -> bytes:
        known = self._opening.agent_session_id
        if known is not None:
            return request_line(_SESSION, "GET", f"/session/{known}")
        return self._fork.first() or self._new_session(_SESSION)

    def _new_session(self, name: str) -> bytes:
        # A title of ours: otherwise a model is called to invent one.
        return request_line(name, "POST", "/session", {"title": "Oubliette"})

    # ------------------------------------------------------------------ output

    def _read(self, line: Line | OutputGap) -> list[Event]:
        events = super()._read(line)
        if isinstance(line, OutputGap):
            events += self._read_again("output was not kept")
        return events

    def _understand(self, message: Json) -> list[Event] | None:
        event = message.get("event")
        if isinstance(event, dict):
            return self._heard(cast("Json", event))
        answered = message.get("id")
        if isinstance(answered, str) and ("status" in message or "error" in message):
            return self._answered(answered, message)
        match message.get("bridge"):
            case "serving":
                return []
            case "again":
                return self._read_again("the stream of events had broken")
            case "rules":
                return [
                    system("rules", {"reason": "; ".join(map(str, list_of(message.get("notes"))))})
                ]
            case "failed":
                self.failed = str(message.get("reason"))
                return [system("bridge", message)]
            case _:
                pass
        if isinstance(message.get("oversize"), int):
            return [system("oversize", message), *self._read_again("an event was too long")]
        return None

    def _heard(self, event: Json) -> list[Event] | None:
        kind, properties = event.get("type"), object_of(event.get("properties"))
        found: list[Event] | None
        match kind:
            case "message.updated":
                return self._message_updated(object_of(properties.get("info")))
            case "message.part.updated":
                found = self._part_updated(object_of(properties.get("part")))
            case "message.part.delta":
                found = self._delta(properties)
            case "session.status":
                return self._status_heard(properties)
            case "session.idle":
                return self._idle(properties)
            case "session.error":
                return self._error_heard(properties)
            case "permission.asked":
                return self._asked(properties)
            case "question.asked":
                # No person is connected to answer, and the agent would wait indefinitely.
                self._say(
                    request_line("question", "POST", f"/question/{properties.get('id')}/reject")
                )
                found = None
            case str():
                found = [] if kind in _CHATTER else None
            case _:
                return None
        return [system(kind, properties)] if found is None else found

    # ------------------------------------------------------------------ answers

    def _answered(self, answered: str, message: Json) -> list[Event] | None:
        name, _, number = answered.rpartition("-")
        turn = turn_number(number) or 0
        if answered in {_SESSION, _ANEW}:
            return self._session_answered(answered, message)
        if answered.startswith(PREFIX):
            return self._fork_answered(answered, message)
        if answered == _MCP:
            return self._servers_answered(message)
        if answered == _PROVIDERS:
            return [] if is_good(message) else [system(_PROVIDERS, {"reason": reason_of(message)})]
        match name:
            case "prompt":
                return self._prompt_answered(turn, message)
            case "abort":
                self._stopped = self._stopped or turn == self._turn
                return []
            case "messages":
                return self._messages_answered(message)
            case "status":
                return self._status_answered(turn, message)
            case _:
                pass
        if answered in {"permission", "question"}:
            settled = is_good(message) or message.get("status") == _NOT_FOUND
            return [] if settled else [system(answered, message)]
        return None

    def _session_answered(self, answered: str, message: Json) -> list[Event]:
        body = object_of(message.get("body"))
        known = self._opening.agent_session_id
        if answered == _SESSION and known is not None and message.get("status") == _NOT_FOUND:
            self._open(self._new_session(_ANEW))
            reason = f"OpenCode has no conversation {known} in this session's HOME"
            return [("system", {"kind": "not_resumed", "reason": reason})]
        named = body.get("id")
        if not is_good(message) or not isinstance(named, str):
            self.failed = f"OpenCode opened no session: {reason_of(message)}"
            return []
        self._session = named
        self._version = str(body.get("version") or "")
        self._resumed = answered == _SESSION and known is not None
        providers = request_line(_PROVIDERS, "GET", "/config/providers")
        self._open(providers + request_line(_MCP, "GET", "/mcp"))
        return []

    def _fork_answered(self, answered: str, message: Json) -> list[Event]:
        try:
            following = self._fork.after(answered, message)
        except NotForked as error:
            self._forked = False
            self._open(self._new_session(_SESSION))
            reason = f"OpenCode did not fork the conversation: {error}"
            return [("system", {"kind": "not_forked", "reason": reason})]
        if isinstance(following, bytes):
            self._open(following)
            return []
        self._forked = True
        return self._session_answered(answered, {"status": 200, "body": following})

    def _servers_answered(self, message: Json) -> list[Event]:
        """Check our MCP server: without its tools the session would be of no use."""
        if not is_good(message):
            self.failed = f"OpenCode does not say which MCP servers it has: {reason_of(message)}"
            return []
        servers = {name: object_of(each) for name, each in object_of(message.get("body")).items()}
        ours = servers.pop(MCP_SERVER, {})
        if ours.get("status") != "connected":
            status = ours.get("error") or ours.get("status") or "it does not know of it"
            self.failed = f"OpenCode did not connect to the MCP server of Oubliette: {status}"
            return []
        events: list[Event] = [
            ("system", {**each, "kind": "mcp_server", "server": name})
            for name, each in sorted(servers.items())
            if each.get("status") != "connected"
        ]
        self._open_rest()
        payload = {
            "turn": 0,
            "agent": "OpenCode",
            "version": self._version,
            "agent_session_id": self._session,
            "resumed": self._resumed,
            "forks": "turn",
        }
        if self._forked is not None:
            payload["forked"] = self._forked
        return [*events, *self._warned(), ("ready", payload)]

    def _prompt_answered(self, turn: int, message: Json) -> list[Event]:
        if is_good(message):
            return []
        self._prompted = turn
        if "status" in message:
            self._error = f"OpenCode did not take the prompt: {reason_of(message)}"
            return self._ended(turn)
        self._unheard = reason_of(message)  # it may have accepted it
        return self._read_again(self._unheard)

    # ------------------------------------------------------------------ reading again

    def _read_again(self, reason: str) -> list[Event]:
        """Request the messages sent while the stream was broken, and the session's status."""
        if self._session is None or not self.ready:
            return []
        turn = self._turn
        path = f"/session/{self._session}/message?limit={_READ_AGAIN}"
        self._say(request_line(f"messages-{turn}", "GET", path))
        self._ask_status(turn)
        return [("system", {"kind": "read_again", "reason": reason})]

    def _ask_status(self, turn: int) -> None:
        self._say(request_line(f"status-{turn}", "GET", "/session/status"))

    def _messages_answered(self, message: Json) -> list[Event]:
        body = message.get("body")
        if not is_good(message):
            return [system("messages", {"reason": reason_of(message)})]
        events: list[Event] = []
        for each in self._of_turn([object_of(each) for each in list_of(body)]):
            events += self._message_updated(object_of(each.get("info")))
            for part in map(object_of, list_of(each.get("parts"))):
                events += self._part_updated(part) or []
        return events

    def _of_turn(self, messages: list[Json]) -> list[Json]:
        """Return the messages from its prompt on; an earlier process may have used its number."""
        infos = [object_of(message.get("info")) for message in messages]
        prompts = [at for at, info in enumerate(infos) if turn_of(info.get("id")) == self._turn]
        if prompts:
            return messages[prompts[-1] :]
        parents = [turn_of(info.get("parentID")) for info in infos]
        return [each for each, turn in zip(messages, parents, strict=True) if turn == self._turn]

    def _status_answered(self, turn: int, message: Json) -> list[Event]:
        if turn != self._turn or not is_good(message):
            return []
        status = object_of(object_of(message.get("body")).get(self._session or ""))
        if status.get("type", "idle") != "idle":
            return []
        if self._begun and self._worked:
            return self._ended(turn)
        if self._unheard is not None and not self._begun:
            self._error = f"OpenCode did not take the prompt: {self._unheard}"
            return self._ended(turn)
        return []

    # ------------------------------------------------------------------ a turn

    def _status_heard(self, properties: Json) -> list[Event]:
        status = object_of(properties.get("status"))
        if status.get("type") == "retry":
            # The log shows it, and the session ends the turn after the configured number.
            data = {**status, "turn": self._turn}
            if _UNREACHABLE.search(str(status.get("message"))):
                data |= {"message": self._located(str(status["message"])), "unreachable": True}
            return [system("retry", data)]
        ours = properties.get("sessionID") == self._session
        if status.get("type") == "busy" and ours and self._begun:
            self._busy = True
            self._goes_on()
        return []

    def _note_error(self, error: object) -> None:
        super()._note_error(error)
        if self._error is not None and _UNREACHABLE.search(self._error):
            self._error = self._located(self._error)

    def _located(self, reason: str) -> str:
        """Return why the model cannot be reached, with its URL."""
        return reason if self._model_url is None else f"{reason} ({self._model_url})"

    def _goes_on(self) -> None:
        """Repeat an abort that came before there was anything to abort."""
        if self._stopped:
            self._stopped = False
            self._say(self._abort(self._turn))

    def _idle(self, properties: Json) -> list[Event]:
        if properties.get("sessionID") != self._session or not self._begun:
            return []  # a subagent's, or the second one of a finished turn
        if self._settled:
            return self._ended(self._turn)
        if self._worked or self._interrupted == self._turn:
            self._ask_status(self._turn)
        return []

    @property
    def _worked(self) -> bool:
        """Note that the turn was accepted or stopped: it is over once the session is idle."""
        return self._busy or self._stopped or bool(self._current) or self._error is not None

    def _error_heard(self, properties: Json) -> list[Event]:
        if properties.get("sessionID", self._session) != self._session or not self._begun:
            return [system("session.error", properties)]
        self._note_error(properties.get("error"))
        if not self._current:
            self._ask_status(self._turn)  # it never became busy, or idle
        return []

    def _asked(self, properties: Json) -> list[Event]:
        """Return the request of the agent, or of a subagent of its."""
        request_id = str(properties.get("id"))
        patterns = properties.get("patterns")
        about = ", ".join(
            map(str, cast("list[Any]", patterns) if isinstance(patterns, list) else [])
        )
        permission = str(properties.get("permission") or "a tool")
        payload: Json = {
            "turn": self._turn,
            "request_id": request_id,
            "text": f"{permission}: {about}" if about else permission,
            "asks_for": f"{permission}: {', '.join(map(str, list_of(properties.get('always'))))}",
            "tool_call": properties,
        }
        if self._opening.autonomy == "off":
            self._say(self.permission(request_id, "allow"))
            return [*self._started(), ("system", {**payload, "kind": "permission", "given": True})]
        return [*self._started(), ("permission_request", payload)]

    # ------------------------------------------------------------------ input

    def prompt(self, turn: int, text: str) -> bytes:
        self._prompted = turn
        return request_line(
            f"prompt-{turn}",
            "POST",
            f"/session/{self._session}/prompt_async",
            {"parts": [{"type": "text", "text": text}]},
            stamp=stamp_of(turn),
        )

    def interrupt(self, turn: int) -> bytes | None:
        """Abort the turn; that denies its open requests."""
        self._interrupted = turn
        return self._abort(turn)

    def _abort(self, turn: int) -> bytes:
        # An abort ends any running turn: a late one must not end the turn that follows.
        path = f"/session/{self._session}/abort"
        return request_line(f"abort-{turn}", "POST", path, newest=stamp_of(turn))

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Answer for this once only. With a reason, the agent continues with it."""
        reply: Json = {"reply": "once" if decision == "allow" else "reject"}
        if decision == "deny" and reason:
            reply["message"] = reason
        return request_line("permission", "POST", f"/permission/{request_id}/reply", reply)
