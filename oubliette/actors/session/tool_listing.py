"""Tools that a session's caller provides, and whether the agent has fetched their list.

A new process of the agent is prompted once it has fetched the list of our MCP server (see
`agent_process`). A later turn that came with new tools begins when the agent has fetched its tool
list again, so that it can call them in that very turn. An agent that does not fetch it delays such
a turn by `LISTING_SECONDS` once, and its senders are warned from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.agent_requests.caller_tools import tools_after
from oubliette.actors.session.messages import LinkNotify, ToolsListed
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.actors.session.ports import AgentPort
    from oubliette.records import CallerTool

LISTING_SECONDS: Final = 10.0  # for an agent to fetch a changed tool list
"""Idle agents take milliseconds. Those that run on one busy event loop have been seen to take
several seconds, and starting the turn without its tools costs a whole turn of a model."""


class ListingOverdue(Message):
    """Deadline at which the agent should have fetched its tool list."""

    revision: int


class ProvidedTools:
    """Sender of `caller_tools_config`, which tracks whether the agent has listed its tools."""

    def __init__(self, session: AgentPort) -> None:
        self._session = session
        self._link: str | None = None
        self._bare: str | None = None
        """Link of a client without a secret, which does not report what was listed."""
        self._revision = 0
        self._client_runs = False
        self._ignores_changes = False
        """Whether it has let a deadline pass, and not listed its tools since."""
        self.awaited_since: float | None = None
        """Wall second since which turns wait for the agent's fetch of its tool list, or None."""

    # ------------------------------------------------------------------ the agent's process

    def agent_starting(self) -> None:
        """Record that another process is about to start, which will list its tools on its own."""
        self.awaited_since = None
        self._client_runs = self._ignores_changes = False

    def client_seen(self) -> None:
        """Record that the agent's client is paired with us."""
        self._client_runs = True

    def connected(self, link: str, *, bare: bool = False) -> None:
        """Send the tools over a new connection."""
        if bare:
            self._bare = link
            self._tell(link)
            self._let_prompt()  # such a client does not report when its tools were listed
        else:
            self._link = link
            self.send()

    # ------------------------------------------------------------------ providing tools

    def provide(
        self, caller_id: str | None, tools: tuple[CallerTool, ...] | None
    ) -> tuple[str, ...] | None:
        """Replace the session's tools by those that came with a message.

        Returns:
            None if they are the same as before, else warnings for the sender.
        """
        session = self._session
        record = session.writer.record
        provided = tools_after(record, caller_id, tools)
        if provided == (record.caller_id, record.caller_tools):
            return None
        before = record.caller_tools if provided[0] == record.caller_id else ()
        added = [tool.name for tool in provided[1] if tool not in before]
        session.writer.change(caller_id=provided[0], caller_tools=provided[1])
        warnings: tuple[str, ...] = ()
        if added and session.attached and self._client_runs:
            warnings = self._await(added)
        # otherwise nothing has changed, or the agent has yet to list its tools
        session.writer.then(self.send)
        return warnings

    def _await(self, added: list[str]) -> tuple[str, ...]:
        agent = self._session.writer.record.agent
        runtime = self._session.context.agents.get(agent)
        if self._ignores_changes or not getattr(runtime, "hears_tool_changes", True):
            warning = (
                f"the agent {agent!r} lists its tools only when it starts, and may never see"
                f" {', '.join(added)} in this session: start one with new_session=true"
            )
            return (warning,)
        if self.awaited_since is None:
            self.awaited_since = self._session.clock.time()
        return ()

    def send(self) -> None:
        """Send `caller_tools_config`, from which the agent's client learns which tools to offer."""
        session = self._session
        self._revision += 1
        if self.awaited_since is not None:
            session.after(LISTING_SECONDS, ListingOverdue(revision=self._revision))
        for link in (self._link, self._bare):
            self._tell(link)

    def _tell(self, link: str | None) -> None:
        session = self._session
        ref = session.system.lookup(link) if link else None
        if ref is None or not ref.is_alive():
            return
        record = session.writer.record
        params: dict[str, Any] = {
            "caller_id": record.caller_id or "",
            "tools": [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "inputSchema": tool.input_schema,
                }
                for tool in record.caller_tools
            ],
            "call_timeout_seconds": session.context.config.sessions.caller_tool_timeout_seconds,
            "revision": self._revision,
        }
        ref.tell(LinkNotify(method="caller_tools_config", params=params, legacy_type=True))

    # ------------------------------------------------------------------ listing

    def listed(self, params: dict[str, Any]) -> None:
        """Record that the agent has listed the tools of a revision, as its client reports."""
        if params.get("fetched", True):  # older clients do not report it, and are not waited for
            self._let_prompt()
        if params.get("revision") != self._revision:
            return
        self._ignores_changes = False
        self._go_on()

    def _let_prompt(self) -> None:
        if (agent := self._session.agent) is not None:
            agent.tell(ToolsListed())

    def overdue(self, message: ListingOverdue) -> None:
        """Begin the turn of an agent that has not listed its tools in time, without them."""
        if self.awaited_since is None or message.revision != self._revision:
            return
        self._ignores_changes = True
        self._session.writer.append(
            "system",
            {
                "kind": "tools_not_listed",
                "message": f"the agent did not fetch its changed tool list within"
                f" {LISTING_SECONDS:.0f} s: it may not see the new tools in this turn",
            },
        )
        self._go_on()

    def _go_on(self) -> None:
        if self.awaited_since is not None:
            self.awaited_since = None
            self._session.begin_turn()
