"""Users for whom a key may act: those that the server's credentials are restricted to.

A credential with `users` is given to agents in the workspaces of these users. So work in such a
workspace is for keys that were made for its user: an `external_id` alone proves nothing, since
every key may choose it. Nor may an agent take the name of a project that is to get something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.errors import Forbidden
from oubliette.ids import shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import msgspec

    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool


async def check_users(
    services: ToolServices, context: CallContext, tool: Tool, params: msgspec.Struct
) -> None:
    """Refuse work in a workspace of a user for whom the key may not act.

    Raises:
        Forbidden: the key was not made for that user.
    """
    named = {user for each in services.config.credentials.values() for user in each.users}
    if not named or tool.read_only or _acts_for_all(context):
        return
    allowed: set[str | None] = set(context.users)
    if context.session_id is not None:
        own = await _of_session(services, context.session_id, context)
        allowed |= {own} - {None}  # its agent has that user's secrets already
    async for field, user in _users(services, context, params):
        if user in named and user not in allowed:
            raise Forbidden(
                f"{field}: this key may not act for the user {shown(user)}, to whom credentials of"
                " the server are restricted",
                hint=f"an operator makes one that may: token_create with users=[{user!r}]",
            )


def check_project_name(services: ToolServices, context: CallContext, name: str) -> None:
    """Refuse an agent's key a name for which the configuration has settings or credentials.

    Raises:
        Forbidden: a project of this name would get them.
    """
    config = services.config
    named = {each for item in config.credentials.values() for each in item.projects}
    if context.minted and name in named | set(config.project_containers):
        raise Forbidden(
            f"name: {shown(name)} is named in the server's configuration, which gives a project of"
            " that name credentials or settings of containers",
            hint="choose another name; a key that is no session's may use this one",
        )


def _acts_for_all(context: CallContext) -> bool:
    """Whether it is the operator's: for all projects, not an agent's, not made for some users."""
    return context.scope.project is None and not context.minted and not context.users


async def _users(
    services: ToolServices, context: CallContext, params: msgspec.Struct
) -> AsyncGenerator[tuple[str, str | None]]:
    """Yield the users whose workspaces a call is about, each with the parameter that names it.

    What the key does not reach is left to the tool, for which it does not exist.
    """
    yield "external_id", getattr(params, "external_id", None)
    session_id: str | None = getattr(params, "session_id", None)
    if session_id is not None:
        yield "session_id", await _of_session(services, session_id, context)
    parts: tuple[object, ...] = getattr(params, "messages", ())
    for each in (params, *parts):
        workspace_id: str | None = getattr(each, "workspace_id", None)
        if workspace_id is not None:
            yield "workspace_id", await _of_workspace(services, workspace_id, context)


async def _of_session(services: ToolServices, session_id: str, context: CallContext) -> str | None:
    session = await services.reader.session(session_id)
    return session and await _of_workspace(services, session.workspace_id, context)


async def _of_workspace(
    services: ToolServices, workspace_id: str, context: CallContext
) -> str | None:
    workspace = await services.reader.workspace(workspace_id)
    if workspace is None or not context.scope.reaches(workspace.project_id):
        return None
    return workspace.external_id
