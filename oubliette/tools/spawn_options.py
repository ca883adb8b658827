"""Consequences of the options of a spawn: caller tools, a tree, a branch, a key for the agent."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

import msgspec

from oubliette.actors.caller.messages import GetCaller
from oubliette.actors.messages import Idempotency, SharedTree
from oubliette.contract import field_types
from oubliette.errors import InvalidParameter, Unauthenticated
from oubliette.records import Limits, made_of
from oubliette.runtime.repositories.workspace_clone import branch_of
from oubliette.tools.auth.running_calls import REFUSED
from oubliette.tools.auth.scopes import minted_scope
from oubliette.tools.spec import CALLERS
from oubliette.tools.tools_offered_by_caller import normalised

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.contract.agent_options import AgentOptions, AgentSettings
    from oubliette.records import CallerTool
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


async def provided_tools(
    services: ToolServices, context: CallContext, params: AgentOptions, project_id: str
) -> tuple[str | None, tuple[CallerTool, ...] | None]:
    """Return the caller's id and the tools that it provides; None: the tools are unchanged.

    A caller that names no tools provides those that it gave with `caller_listen`.

    Raises:
        InvalidParameter: tools without a caller, or invalid tools.
    """
    caller_id, given, where = params.caller_id, params.caller_tools, "caller_tools"
    if params.context is not None:
        if params.context.caller_id is not None:
            caller_id = field_types.CHECKS["caller"](params.context.caller_id, "context.caller_id")
        if params.context.caller_tools is not None:
            given, where = params.context.caller_tools, "context.caller_tools"
    if caller_id is None:
        if given:
            raise InvalidParameter(
                f"caller_id: is required with {where}; the agent's calls are sent to it",
                field="caller_id",
            )
        return None, None
    tools = None if given is None else normalised(given, caller_id, services.config.callers, where)
    if context.transport in CALLERS:
        await services.caller_seen(context.principal, caller_id)
        if tools is None:
            caller = await services.caller_ref(context.principal, caller_id)
            restricted = context.scope.project is not None
            state = await caller.ask(GetCaller(project_id=project_id, restricted=restricted))
            tools = state.tools
    return caller_id, tools


def shared_tree(
    context: CallContext, params: AgentOptions, session_id: str | None
) -> SharedTree | None:
    """The tree that a new session joins, if it is to share one.

    Raises:
        InvalidParameter: the session has its tree already, or gets that of its parent.
    """
    if params.tree is None:
        return None
    if session_id is not None:
        raise InvalidParameter(
            "tree: the session has its tree already; leave it out with session_id", field="tree"
        )
    if context.session_id is not None:
        raise InvalidParameter(
            "tree: a session that you start counts in your own tree; leave it out", field="tree"
        )
    given = params.tree.limits
    limits = Limits() if given is None else made_of(given, Limits)
    return SharedTree(id=params.tree.id, limits=limits)


async def branch_source(
    services: ToolServices,
    context: CallContext,
    params: AgentSettings,
    project_id: str,
    session_id: str | None,
) -> str | None:
    """Return the workspace that a new session gets a copy of; None: it gets none.

    That is the one that is named, for an agent its own, else the default one of the project.

    Raises:
        InvalidParameter: other parameters contradict it.
    """
    if params.workspace != "branch":
        return None
    for field, given in (
        ("session_id", session_id is not None),
        ("create_workspace", params.create_workspace),
        ("external_id", params.external_id is not None),
    ):
        if given:
            raise InvalidParameter(
                f'{field}: leave it out with workspace="branch", which makes a new session and'
                " workspace",
                field=field,
            )
    if params.workspace_id is not None:
        return params.workspace_id
    if context.session_id is not None:
        own = await services.reader.session(context.session_id)
        if own is not None and own.project_id == project_id:
            return own.workspace_id
    project = await services.reader.project(project_id)
    return None if project is None else project.default_workspace_id


async def branch_in(services: ToolServices, project_id: str, workspace_id: str) -> str | None:
    """Return the branch of a workspace that was made as a copy; None: there is no repository."""
    project = await services.reader.project(project_id)
    if project is None or project.repository is None:
        return None
    return branch_of(workspace_id, default=False)


class AgentApiKey:
    """Key for the agent's environment, if any."""

    def __init__(
        self,
        services: ToolServices,
        text: str | None,
        token_id: str | None,
        given_id: str | None = None,
    ) -> None:
        self.text = text
        self.token_id = token_id
        """Of a key that was minted."""
        self.given_id = given_id
        """Token of a key of the caller's own."""
        self._services = services
        self._taken = token_id is None

    async def bind_to(self, session_id: str) -> None:
        """Bind a minted key to its session, if the session uses it (a live one keeps its own)."""
        if self.token_id is None:
            return
        record = await self._services.reader.session(session_id)
        if record is not None and record.minted_token_id == self.token_id:
            await self._services.keys.bind(self.token_id, session_id)
            self._taken = True

    async def aclose(self) -> None:
        if not self._taken and self.token_id is not None:
            await self._services.keys.discard(self.token_id)


@contextlib.asynccontextmanager
async def agent_api_key(
    services: ToolServices, context: CallContext, params: AgentOptions, project_id: str
) -> AsyncGenerator[AgentApiKey]:
    """Mint the key of `api_key_scope`, or pass on `api_key`; revoke a minted, unused one.

    Raises:
        Unauthenticated: the creator's key has ended; a call that starts many agents outlives it.
        Forbidden: it is wider than the creator's own scope.
        InvalidParameter: the parameters contradict each other.
    """
    if services.keys.has_ended(context.token_id):
        raise Unauthenticated(REFUSED)
    if params.api_key_scope is None:
        for field in ("api_key_project", "api_key_ttl_seconds"):
            if getattr(params, field) is not None:
                raise InvalidParameter(f"{field}: needs api_key_scope as well", field=field)
        given_id = None if params.api_key is None else await services.keys.id_of(params.api_key)
        yield AgentApiKey(services, params.api_key, None, given_id)
        return
    if params.api_key is not None:
        raise InvalidParameter(
            "api_key: give either a key of your own or api_key_scope, not both", field="api_key"
        )
    scope = minted_scope(params.api_key_scope, project_id, params.api_key_project, context.scope)
    new = await services.keys.mint(context, scope, params.api_key_ttl_seconds)
    key = AgentApiKey(services, new.key, new.token.id)
    try:
        yield key
    finally:
        await key.aclose()


def claim(tool: str, params: msgspec.Struct) -> Idempotency | None:
    """Return the claim of `params.idempotency_key`; None without one.

    The digest covers every other parameter, with its default if it is absent, so that two forms of
    the same request have the same digest.
    """
    key: str | None = getattr(params, "idempotency_key", None)
    if key is None:
        return None
    rest = msgspec.structs.asdict(params)
    del rest["idempotency_key"]
    text = msgspec.json.encode(rest, order="sorted")
    return Idempotency(key=key, tool=tool, digest=hashlib.sha256(text).digest())
