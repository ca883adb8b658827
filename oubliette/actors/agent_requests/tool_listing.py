"""Tools that a session's caller provides, and whether the agent has fetched their list.

A new process of the agent is prompted once it has fetched the list of our MCP server (see
`agent_process`). A later turn that came with new tools begins when the agent has fetched its tool
list again, so that it can call them in that very turn. An agent that does not fetch it delays such
a turn by `LISTING_SECONDS` once, and its senders are warned from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.agent_requests.caller_tools import tools_after
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    BeginTurn,
    ChangeRecord,
    Effects,
    NotifyClient,
    SendTools,
    StartTimer,
    TellAgent,
)
from oubliette.actors.session.messages import ToolsListed
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.records import CallerTool, Session

LISTING_SECONDS: Final = 10.0  # for an agent to fetch a changed tool list
"""Idle agents take milliseconds. Those that run on one busy event loop have been seen to take
several seconds, and starting the turn without its tools costs a whole turn of a model."""


class ListingOverdue(Message):
    """Deadline at which the agent should have fetched its tool list."""

    revision: int


class ProvidedTools:
    """Tools that one session's caller provides, and whether its agent has listed them.

    Without I/O: each input has a method, which returns the effects that the actor applies in order.
    """

    def __init__(self, call_timeout: float, *, lists_changes: bool) -> None:
        """Begin with an agent that has listed nothing.

        Args:
            call_timeout: Seconds that a caller has to answer a call.
            lists_changes: Whether this kind of agent fetches its tool list again when it changes.
        """
        self._call_timeout = call_timeout
        self._lists_changes = lists_changes
        self._link: str | None = None
        self._bare: str | None = None
        """Link of a client without a secret, which does not report what was listed."""
        self._revision = 0
        self._client_runs = False
        self._ignores_changes = False
        """Whether it has let a deadline pass, and not listed its tools since."""
        self.awaited_since: float | None = None
        """Wall second since which turns wait for the agent's fetch of its tool list, or None."""
        self._awaited_revision = 0
        """First revision that has the tools which turns wait for."""

    # ------------------------------------------------------------------ the agent's process

    def agent_starting(self) -> None:
        """Record that another process is about to start, which will list its tools on its own."""
        self.awaited_since = None
        self._awaited_revision = 0
        self._client_runs = self._ignores_changes = False

    def client_seen(self) -> None:
        """Record that the agent's client is paired with us."""
        self._client_runs = True

    def connected(self, link: str, record: Session, *, bare: bool = False) -> Effects:
        if bare:
            self._bare = link
            # Such a client does not report when its tools were listed.
            return (self._config(link, record), TellAgent(ToolsListed()))
        self._link = link
        return self.send(record)

    # ------------------------------------------------------------------ providing tools

    def provide(
        self,
        caller_id: str | None,
        tools: tuple[CallerTool, ...] | None,
        record: Session,
        *,
        attached: bool,
        now: float,
    ) -> tuple[Effects, tuple[str, ...]] | None:
        """Replace the session's tools by those that came with a message.

        Args:
            caller_id: The caller; None: the one before.
            tools: Its tools; None: unchanged.
            record: Of the session.
            attached: Whether the agent runs.
            now: Wall second.

        Returns:
            None if they are the same as before, else the effects, and warnings for the sender.
        """
        provided = tools_after(record, caller_id, tools)
        if provided == (record.caller_id, record.caller_tools):
            return None
        before = record.caller_tools if provided[0] == record.caller_id else ()
        added = [tool.name for tool in provided[1] if tool not in before]
        warnings: tuple[str, ...] = ()
        if added and attached and self._client_runs:
            warnings = self._await(added, record.agent, now)
        # otherwise nothing has changed, or the agent has yet to list its tools
        changed = ChangeRecord({"caller_id": provided[0], "caller_tools": provided[1]})
        return (changed, AfterCommit(SendTools())), warnings

    def _await(self, added: list[str], agent: str, now: float) -> tuple[str, ...]:
        if self._ignores_changes or not self._lists_changes:
            warning = (
                f"the agent {agent!r} lists its tools only when it starts, and may never see"
                f" {', '.join(added)} in this session: start another one (new_session=true, in"
                " Python project.spawn)"
            )
            return (warning,)
        if self.awaited_since is None:
            self.awaited_since = now
        # Sent after the commit: until then, the agent may still report the revision before.
        self._awaited_revision = self._revision + 1
        return ()

    def send(self, record: Session) -> Effects:
        """Send `caller_tools_config`, from which the agent's client learns which tools to offer."""
        self._revision += 1
        effects: Effects = ()
        if self.awaited_since is not None:
            overdue = ListingOverdue(revision=self._revision)
            effects = (StartTimer(LISTING_SECONDS, overdue),)
        links = (link for link in (self._link, self._bare) if link)
        return (*effects, *(self._config(link, record) for link in links))

    def _config(self, link: str, record: Session) -> NotifyClient:
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
            "call_timeout_seconds": self._call_timeout,
            "revision": self._revision,
        }
        return NotifyClient(link, params)

    # ------------------------------------------------------------------ listing

    def listed(self, params: dict[str, Any]) -> Effects:
        """Record that the agent has listed the tools of a revision, as its client reports."""
        effects: Effects = ()
        if params.get("fetched", True):  # older clients do not report it, and are not waited for
            effects = (TellAgent(ToolsListed()),)
        if params.get("revision") != self._revision:
            return effects
        self._ignores_changes = False
        if self._revision < self._awaited_revision:
            return effects
        return effects + self._go_on()

    def overdue(self, message: ListingOverdue) -> Effects:
        """Begin the turn of an agent that has not listed its tools in time, without them."""
        if self.awaited_since is None or message.revision != self._revision:
            return ()
        self._ignores_changes = True
        shown = {
            "kind": "tools_not_listed",
            "message": f"the agent did not fetch its changed tool list within"
            f" {LISTING_SECONDS:.0f} s: it may not see the new tools in this turn",
        }
        return (AppendEvent("system", shown), *self._go_on())

    def never_listed(self, record: Session) -> Effects:
        """Report that a new process is prompted without having listed its caller's tools."""
        if not record.caller_tools:
            return ()
        shown = {
            "kind": "tools_not_listed",
            "message": "the agent did not fetch its tool list before its first prompt: it may not"
            " see the tools in this turn",
        }
        return (AppendEvent("system", shown),)

    def _go_on(self) -> Effects:
        if self.awaited_since is None:
            return ()
        self.awaited_since = None
        return (BeginTurn(),)
