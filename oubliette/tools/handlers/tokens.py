"""Tools of API keys: `token_*`, for admin keys only."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import Forbidden
from oubliette.records import made_of
from oubliette.tools.auth import scopes
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.records import Token
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


class TokenCreate(Params, frozen=True, kw_only=True):
    """Parameters of `token_create`."""

    name: Annotated[field_types.Line, Meta(description="Purpose, for people.")]
    scope: Annotated[
        str,
        Meta(min_length=1, max_length=200, description=f"One of: {', '.join(scopes.NAMES)}."),
    ]
    principal: Annotated[
        field_types.PrincipalId | None,
        Meta(description="Owner of the key, to replace an older key. Unset: a new principal."),
    ] = None
    expires_in_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=1e10)] | None,
        Meta(description="Seconds until the key expires. Unset: never."),
    ] = None
    users: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...],
        Meta(
            max_length=100,
            description="Users for whom it may act, by external_id: of those that credentials are"
            " restricted to. Empty: all, and none if the scope is bound to a project.",
        ),
    ] = ()


class TokenCreated(Result, frozen=True, kw_only=True):
    """Result of `token_create`."""

    token: Annotated[str, Meta(description="The key, which is not shown again.")]
    token_id: str
    name: str
    scope: str
    principal: str
    expires_at: float | None
    users: tuple[str, ...]


class TokenView(Result, frozen=True, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    scope: str
    principal: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    session_id: Annotated[str | None, Meta(description="Session of a minted key.")]
    users: tuple[str, ...]


class TokenList(Params, frozen=True, kw_only=True):
    """Parameters of `token_list`."""

    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 1000
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


class Tokens(Result, frozen=True, kw_only=True):
    """Result of `token_list`."""

    tokens: tuple[TokenView, ...]
    next_cursor: str | None


class TokenRevoke(Params, frozen=True, kw_only=True):
    """Parameters of `token_revoke`."""

    token_id: Annotated[field_types.TokenId, Meta(description="Id of the token, not its text.")]


class TokenRevoked(Result, frozen=True, kw_only=True):
    """Result of `token_revoke`."""

    token_id: str
    revoked: Annotated[bool, Meta(description="False if it had been revoked before.")]


@tool(TokenCreate, TokenCreated, scope="admin", unbound=True)
async def token_create(
    services: ToolServices, context: CallContext, params: TokenCreate
) -> TokenCreated:
    """Create an API key. Its text is in this result only, and cannot be shown again."""
    if context.minted:
        raise Forbidden(
            "a session's key cannot create tokens: they would outlive the session",
            hint="spawn a child with api_key_scope instead",
        )
    scope = scopes.parse(params.scope)
    if scope.project is not None:
        await visible_project(services, context, scope.project)
    made = await services.keys.create(
        name=params.name,
        scope=scope,
        principal=params.principal,
        expires_in=params.expires_in_seconds,
        users=params.users,
    )
    return TokenCreated(
        token=made.key,
        token_id=made.token.id,
        name=made.token.name,
        scope=made.token.scope,
        principal=made.token.principal,
        expires_at=made.token.expires_at,
        users=made.token.users,
    )


@tool(TokenList, Tokens, scope="admin", unbound=True, read_only=True)
async def token_list(services: ToolServices, context: CallContext, params: TokenList) -> Tokens:
    """List API keys, oldest first, without their secrets; keys of ended sessions are omitted."""
    del context
    live: set[str] | None = None
    if services.nodes is not None:  # others may just have made or revoked some, or ended a session
        await services.keys.refresh()
        live = await services.reader.live_session_ids()
    shown = (
        _view(each)
        for each in services.keys.listed_after(params.cursor)
        if live is None or each.session_id is None or each.session_id in live
    )
    views, _, cut = fitting(itertools.islice(shown, params.limit))
    more = cut or next(shown, None) is not None
    return Tokens(tokens=tuple(views), next_cursor=views[-1].token_id if more else None)


@tool(TokenRevoke, TokenRevoked, scope="admin", unbound=True, destructive=True)
async def token_revoke(
    services: ToolServices, context: CallContext, params: TokenRevoke
) -> TokenRevoked:
    """Revoke an API key, which is refused from then on."""
    del context
    revoked = await services.keys.revoke(params.token_id)
    return TokenRevoked(token_id=params.token_id, revoked=revoked)


def _view(token: Token) -> TokenView:
    return made_of(token, TokenView, token_id=token.id)
