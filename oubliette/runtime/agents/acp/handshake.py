"""Opening of an ACP session: resumed or new, then its model and mode."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final

from oubliette.runtime.agents.acp.choices import Choice, NotOffered, choice
from oubliette.runtime.agents.handshake_adapter import (
    FRAMES,
    Event,
    HandshakeAdapter,
    Json,
    line_of,
    object_of,
)
from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.handshake_adapter import Opening

PROTOCOL: Final = 1
_INITIALIZE: Final = "initialize"
_SESSION: Final = "session"
_LOAD: Final = "session-load"
_ANEW: Final = "session-anew"
_FORK: Final = "session-fork"
_CHOOSE: Final = "choose-"


class AcpHandshake(HandshakeAdapter, abc.ABC):
    """Part of an ACP adapter that ends when the agent is ready."""

    def __init__(self, opening: Opening, state: Mapping[str, Any] | None = None) -> None:
        self._agent: Json = {}
        self._tried = ""
        """Method by which the conversation is to be resumed."""
        self._choosing: dict[str, str] = {}
        """Request without an answer yet → its purpose."""
        self._told_ready: Json = {}
        self._forked: bool | None = None
        """Whether it began as a fork; None: it was not asked to."""
        self.resuming = False
        """Whether the agent currently replays its past conversation."""
        super().__init__(opening, state)

    def _greeting(self) -> bytes:
        return request(_INITIALIZE, "initialize", _capabilities())

    def _opened_by(self, answered: str, fields: Json, result: Json) -> list[Event] | None:
        """Process the answer to one of our requests; None if it belongs to none of these."""
        if answered == _INITIALIZE:
            if "error" in fields:
                self.failed = f"the agent refused to begin: {reason_of(fields['error'])}"
            else:
                self._agent = result
                self._open_session()
            return []
        if answered == _FORK:
            return self._fork_answered(fields, result)
        if answered in {_SESSION, _LOAD, _ANEW}:
            if "error" in fields:
                return self._refused(answered, reason_of(fields["error"]))
            return self._session_opened(answered, result)
        if answered in self._choosing:
            return self._chosen(answered, fields)
        return None

    # ------------------------------------------------------------------ the session

    def _open_session(self) -> None:
        can = object_of(self._agent.get("agentCapabilities"))
        method, forked = "session/new", self._opening.fork_of
        if self._opening.agent_session_id is None and forked is not None:
            self._open_by(_FORK, "session/fork", forked.agent_session_id)
            return
        if self._opening.agent_session_id is not None:
            if "resume" in object_of(can.get("sessionCapabilities")):
                method = "session/resume"
            elif can.get("loadSession") is True:
                method = "session/load"
        self._tried = method
        self._open_by(_SESSION, method)

    def _fork_answered(self, fields: Json, result: Json) -> list[Event]:
        self._forked = "error" not in fields and isinstance(result.get("sessionId"), str)
        if self._forked:
            return self._session_opened(_ANEW, result)
        reason = reason_of(fields["error"]) if "error" in fields else "it has no name"
        self._open_by(_ANEW, "session/new")
        return [("system", {"kind": "not_forked", "reason": f"session/fork: {reason}"})]

    @property
    def _can_fork(self) -> bool:
        can = object_of(object_of(self._agent.get("agentCapabilities")).get("sessionCapabilities"))
        return self._opening.forks and isinstance(can.get("fork"), dict)

    def _open_by(self, name: str, method: str, known: str | None = None) -> None:
        """Request the session: resumed, forked or new."""
        self.resuming = method != "session/new"
        params: Json = {"cwd": self._opening.cwd, "mcpServers": list(self._opening.mcp_servers)}
        if self._opening.meta:
            params["_meta"] = self._opening.meta
        if self.resuming:
            params["sessionId"] = known or self._opening.agent_session_id
        self._open(request(name, method, params))

    def _refused(self, answered: str, reason: str) -> list[Event]:
        """Try the next way to continue, if any; some agents refuse methods that they advertise."""
        if answered == _ANEW or not self.resuming:
            self.failed = f"the agent opened no session: {reason}"
            return []
        can = object_of(self._agent.get("agentCapabilities"))
        if self._tried == "session/resume" and can.get("loadSession") is True:
            self._tried = "session/load"
            self._open_by(_LOAD, self._tried)
            return [("system", {"kind": "resume_refused", "reason": reason, "next": self._tried})]
        self._open_by(_ANEW, "session/new")
        return [("system", {"kind": "not_resumed", "reason": f"{self._tried}: {reason}"})]

    def _session_opened(self, answered: str, result: Json) -> list[Event]:
        lost: list[Event] = []
        named = result.get("sessionId")
        resumed = self.resuming and answered != _ANEW
        if isinstance(named, str):
            self._session = named
        elif not resumed:
            self.failed = "the agent opened a session without a name"
            return []
        if self._opening.agent_session_id is not None and not resumed and answered == _SESSION:
            lost = [("system", {"kind": "not_resumed", "reason": "the agent cannot do that"})]
        self.resuming = False
        about = object_of(self._agent.get("agentInfo"))
        self._told_ready = {
            "turn": 0,
            "agent": str(about.get("title") or about.get("name") or "acp"),
            "version": str(about.get("version") or ""),
            "agent_session_id": self._session,
            "resumed": resumed,
        }
        if self._can_fork:
            self._told_ready["forks"] = "end"
        if self._forked is not None:
            self._told_ready["forked"] = self._forked
        self._choose(result)
        return [*lost, *self._ready_at_last()]

    # ------------------------------------------------------------------ its model and mode

    def _choose(self, opened: Json) -> None:
        if self.handshake < FRAMES:
            return  # started by an earlier release: it has its model
        try:
            if self._opening.model is not None:
                self._ask_for("model", choice("model", self._opening.model, opened))
            if self._opening.mode is not None:
                self._ask_for("mode", choice("mode", self._opening.mode, opened))
        except NotOffered as error:
            self.failed = str(error)

    def _ask_for(self, kind: str, chosen: Choice | None) -> None:
        if chosen is not None:
            name = f"{_CHOOSE}{kind}"
            self._choosing[name] = kind
            params = {"sessionId": self._session, **chosen.params}
            self._open(request(name, chosen.method, params))

    def _chosen(self, answered: str, fields: Json) -> list[Event]:
        kind = self._choosing.pop(answered)
        if "error" in fields:
            wanted = self._opening.model if kind == "model" else self._opening.mode
            self.failed = f"the agent refused the {kind} {wanted}: {reason_of(fields['error'])}"
        return self._ready_at_last()

    def _ready_at_last(self) -> list[Event]:
        if self._choosing or self.failed is not None:
            return []
        self._open_rest()
        return [*self._warned(), ("ready", self._told_ready)]


def request(name: str, method: str, params: Json) -> bytes:
    """A request whose id shows its purpose."""
    return line_of({"jsonrpc": "2.0", "id": name, "method": method, "params": params})


def reason_of(error: object) -> str:
    """Return the text of a JSON-RPC error; agents also put the reason itself into `data`."""
    fields = object_of(error)
    said = str(fields.get("message") or error)
    more = object_of(fields.get("data")).get("details")
    return f"{said}: {more}" if isinstance(more, str) and more else said


def _capabilities() -> Json:
    return {
        "protocolVersion": PROTOCOL,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
        },
        "clientInfo": {"name": "oubliette", "version": __version__},
    }
