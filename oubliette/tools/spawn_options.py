"""What a spawn carries besides the prompt: settings, lent tools, a key for the agent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from oubliette.actors.caller.messages import GetCaller
from oubliette.config.agent_config import Autonomy
from oubliette.errors import InvalidParameter
from oubliette.tools.auth.api_keys import minted_scope
from oubliette.tools.caller_tools import LentTool, normalised
from oubliette.tools.schema import field_types
from oubliette.tools.spec import Params

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.records import CallerTool
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


class CallerContext(Params, frozen=True, kw_only=True):
    """Who the caller is and what it lends (Context)."""

    caller_id: Annotated[
        field_types.CallerId | None,
        Meta(description="Names the caller to its agents and listeners."),
    ] = None
    caller_tools: Annotated[
        tuple[LentTool, ...] | None,
        Meta(description="Tools that the agent may call; they replace those lent before."),
    ] = None


class AgentSettings(Params, frozen=True, kw_only=True):
    """Parameters of whatever starts agents."""

    workspace_id: Annotated[
        field_types.Uuid | None, Meta(description="The workspace; else the project's default one.")
    ] = None
    create_workspace: Annotated[
        bool, Meta(description="Create the workspace if it is missing; without an id, a new one.")
    ] = False
    external_id: Annotated[
        field_types.Line | None, Meta(description="Your own id of a workspace that is created.")
    ] = None
    source: Annotated[
        field_types.Line | None, Meta(description="Where a workspace that is created comes from.")
    ] = None
    context: Annotated[CallerContext | None, Meta(description="The caller and its tools.")] = None
    caller_id: Annotated[
        field_types.CallerId | None, Meta(description="As context.caller_id, which wins.")
    ] = None
    caller_tools: Annotated[
        tuple[LentTool, ...] | None, Meta(description="As context.caller_tools, which wins.")
    ] = None
    agent: Annotated[
        field_types.Line | None, Meta(description="One of project_options.agents.")
    ] = None
    model: Annotated[field_types.Line | None, Meta(description="Model of the agent.")] = None
    autonomy: Annotated[
        Autonomy | None,
        Meta(description="What the agent may do unasked; off: everything."),
    ] = None
    api_key_scope: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(
            description="Make a key of this scope for the agent, no wider than your own: it can"
            " then call Oubliette's tools. read and write are bound to the project."
        ),
    ] = None
    api_key_project: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="Bind that key to another project, or * to none."),
    ] = None
    api_key_ttl_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=1e7)] | None,
        Meta(description="How long that key lives; it ends with the session in any case."),
    ] = None
    api_key: Annotated[
        field_types.Secret | None,
        Meta(description="A key of your own for the agent, instead of api_key_scope."),
    ] = None
    idempotency_key: Annotated[
        field_types.IdempotencyText | None,
        Meta(description="The same key within 24 h gives the same answer, not a second agent."),
    ] = None


class SpawnSettings(AgentSettings, frozen=True, kw_only=True):
    """Parameters that `session_spawn` and `session_message` share."""

    new_session: Annotated[bool, Meta(description="Never resume; start a new session.")] = False


async def lent(
    services: ToolServices, context: CallContext, params: AgentSettings
) -> tuple[str | None, tuple[CallerTool, ...] | None]:
    """The caller's id and the tools it lends; None = as they were.

    A caller that names no tools lends those that it gave with `caller_listen`.

    Raises:
        InvalidParameter: tools without a caller, or tools that cannot be lent.
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
    if context.door == "http":
        await services.caller_seen(context.principal, caller_id)
        if tools is None:
            caller = await services.caller_ref(context.principal, caller_id)
            tools = (await caller.ask(GetCaller())).tools
    return caller_id, tools


class SessionKey:
    """The key that goes into the agent's environment, if any."""

    def __init__(self, services: ToolServices, text: str | None, token_id: str | None) -> None:
        self.text = text
        self.token_id = token_id
        self._services = services
        self._taken = token_id is None

    async def taken_by(self, session_id: str) -> None:
        """Bind a minted key to its session, if the session took it (a live one keeps its own)."""
        if self.token_id is None:
            return
        record = await self._services.reader.session(session_id)
        if record is not None and record.minted_token_id == self.token_id:
            await self._services.keys.bind(self.token_id, session_id)
            self._taken = True

    async def aclose(self) -> None:
        """Revoke a minted key that no session took."""
        if not self._taken and self.token_id is not None:
            await self._services.keys.discard(self.token_id)


@contextlib.asynccontextmanager
async def session_key(
    services: ToolServices, context: CallContext, params: AgentSettings, project_id: str
) -> AsyncGenerator[SessionKey]:
    """Mint what `api_key_scope` asks for, or pass on `api_key`; revoke it if it is not used.

    Raises:
        Forbidden: wider than the creator's own right.
        InvalidParameter: the parameters contradict each other.
    """
    if params.api_key_scope is None:
        for field in ("api_key_project", "api_key_ttl_seconds"):
            if getattr(params, field) is not None:
                raise InvalidParameter(f"{field}: needs api_key_scope as well", field=field)
        yield SessionKey(services, params.api_key, None)
        return
    if params.api_key is not None:
        raise InvalidParameter(
            "api_key: give either a key of your own or api_key_scope, not both", field="api_key"
        )
    scope = minted_scope(params.api_key_scope, project_id, params.api_key_project, context.scope)
    new = await services.keys.mint(context, scope, params.api_key_ttl_seconds)
    key = SessionKey(services, new.key, new.token.id)
    try:
        yield key
    finally:
        await key.aclose()
