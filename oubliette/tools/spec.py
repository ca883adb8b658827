"""Specification of a tool: name, parameters, result, required scope, transports and handler."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import msgspec

from oubliette.contract.field_types import Result
from oubliette.tools.auth.scopes import Level, Scope

Transport = Literal["http", "socket", "control", "program"]
"""Transport of a call: HTTP, an agent's session link, the command line's control socket, or none,
from the program that embeds the server."""

EVERYWHERE: Final[frozenset[Transport]] = frozenset({"http", "socket", "control", "program"})
CALLERS: Final[frozenset[Transport]] = frozenset({"http", "program"})
"""Transports of those that provide tools and listen to events."""
PERSONS: Final[frozenset[Transport]] = frozenset({"http", "program", "control"})
"""All but those of agents."""


RunsOn = Literal["local", "live", "needed", "new"]
"""Machine of a cluster on which a tool does its work.

`local`: any, as it only reads or writes what all machines share. `live`: the home of its session or
project, if that has one. `needed`: the same, and a project without a home gets one. `new`: the home
of the project that it creates.
"""


Enters = Literal["named", "new"]
"""Container of the workspace that a call names, or of a workspace that it makes."""


class CallerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Principal, rights and transport of a call, as they cross to another machine."""

    principal: str
    token_id: str
    scope: Scope
    transport: Transport
    session_id: str | None = None
    """Session on whose link the call came (transport `socket`)."""
    minted: bool = False
    """Whether the key was minted for a session's agent."""
    expires_at: float | None = None
    """Expiry of the key, wall seconds; a key that it mints expires no later."""
    users: tuple[str, ...] = ()
    """Users for whom the key may act, of those that credentials are restricted to. Empty: all for
    a key without a project, none for one that is bound to a project or was minted."""

    @property
    def is_agent(self) -> bool:
        """Whether an agent calls: with a key that was minted for it, or on its session's link."""
        return self.minted or self.session_id is not None

    @property
    def sees_principals(self) -> bool:
        """Whether it is shown names of other principals.

        An agent is not, nor is a key that may only read. Scope `admin` manages the keys of all.
        """
        level = self.scope.level
        return level == "admin" or (level == "write" and not self.is_agent)


class CallContext(CallerIdentity, frozen=True, kw_only=True):
    """Identity of a call's caller, and the receiver of the call's progress."""

    progress: Callable[[str], object] | None = None
    """Receives progress messages of long calls, from tools that have any; None: they are
    dropped."""


OPERATOR: Final = CallContext(
    principal="operator",
    token_id="control.sock",  # noqa: S106 - not a secret; what the audit log shows
    scope=Scope(level="admin"),
    transport="control",
)
"""Context of calls through `control.sock`: the home's owner, with all rights and no sessions."""

P = TypeVar("P", bound=msgspec.Struct)
Handler = Callable[[Any, CallContext, Any], Awaitable[msgspec.Struct]]
"""Handler with ToolServices (which are above this module), context and parameters."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the table of tools."""

    name: str
    description: str
    params: type[msgspec.Struct]
    result: type[Result]
    scope: Level
    handler: Handler
    unbound: bool = False
    """Not restricted to one project, so unavailable to keys that are bound to one."""
    transports: frozenset[Transport] = EVERYWHERE
    streamed: bool = False
    """The front may answer it as a stream; the handler answers as a long poll."""
    idempotent: bool = False
    """Has an `idempotency_key`."""
    read_only: bool = False
    """Changes nothing (the MCP annotation `readOnlyHint`)."""
    destructive: bool = False
    """Deletes or ends something (`destructiveHint`)."""
    runs_on: RunsOn = "local"
    """Machine that has to carry it out."""
    enters: Enters | None = None
    """Container in which it runs or reaches something of the caller's; see
    `tools/container_rights.py`."""

    def allowed(self, scope: Scope, transport: Transport) -> bool:
        """Whether a key of this scope may call it on this transport."""
        return transport in self.transports and scope.covers(self.scope, unbound=self.unbound)


def tool(
    params: type[P],
    result: type[Result],
    *,
    scope: Level,
    unbound: bool = False,
    transports: frozenset[Transport] = EVERYWHERE,
    streamed: bool = False,
    read_only: bool = False,
    destructive: bool = False,
    runs_on: RunsOn = "local",
    enters: Enters | None = None,
) -> Callable[[Callable[[Any, CallContext, P], Awaitable[msgspec.Struct]]], Tool]:
    """Make the decorated handler a tool: its name is the tool's, its docstring the description."""

    def make(handler: Callable[[Any, CallContext, P], Awaitable[msgspec.Struct]]) -> Tool:
        return Tool(
            name=handler.__name__,
            description=" ".join(inspect.cleandoc(handler.__doc__ or "").split()),
            params=params,
            result=result,
            scope=scope,
            unbound=unbound,
            transports=transports,
            streamed=streamed,
            handler=handler,
            idempotent="idempotency_key" in params.__struct_fields__,
            read_only=read_only,
            destructive=destructive,
            runs_on=runs_on,
            enters=enters,
        )

    return make
