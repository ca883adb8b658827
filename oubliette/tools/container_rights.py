"""Containers that a key may enter: those in which no agent has a key that reaches further.

What runs in a container reads the environment of every process there, and so an agent's key and the
secret of its link. A key that may run a command or an agent beside another one has that one's key
too. Only the container keeps them apart, so the rule looks at all that live in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.project.spawn_target import unnamed_workspace
from oubliette.errors import Forbidden
from oubliette.tools.auth.scopes import Scope, narrower_or_equal

if TYPE_CHECKING:
    import msgspec

    from oubliette.records import Project, Session
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext, Tool


async def check_container(
    services: ToolServices, context: CallContext, tool: Tool, params: msgspec.Struct
) -> None:
    """Refuse to run something beside an agent whose key reaches further than the caller's.

    What starts a moment later is not seen: docs/security.md has what that means.

    Raises:
        Forbidden: such an agent lives in the container.
    """
    if tool.enters is None or context.scope == Scope(level="admin"):
        return
    if getattr(params, "resolve", "") is None:
        return  # a merge, which starts an agent only to resolve conflicts
    entered = await _entered(services, context, tool, params)
    if context.session_id is not None:
        entered.discard(await _of_session(services, context.session_id))  # it is in there already
    for project_id, workspace_id in entered:
        for session in await services.reader.live_sessions(project_id, workspace_id=workspace_id):
            if await _reaches_further(services, session, context):
                raise Forbidden(
                    "an agent in this container has a key that reaches further than yours, and"
                    " what you run there could read it",
                    hint="work in a workspace of your own in a project with workspace_isolation,"
                    " use a key that reaches as far, or wait until that session has ended",
                )


async def _reaches_further(services: ToolServices, session: Session, context: CallContext) -> bool:
    token_id = session.minted_token_id or session.given_token_id
    if token_id is None:
        # A key that was given is none of this server, or its scope is not recorded.
        return session.given_key and session.principal != context.principal
    scope = await services.keys.scope_of(token_id)
    return scope is not None and not narrower_or_equal(scope, context.scope)


_Place = tuple[str, str | None]
"""Project, and with `workspace_isolation` the workspace, of a container."""


async def _of_session(services: ToolServices, session_id: str) -> _Place | None:
    session = await services.reader.session(session_id)
    project = session and await services.reader.project(session.project_id)
    if session is None or project is None:
        return None
    return project.id, session.workspace_id if project.workspace_isolation else None


async def _entered(
    services: ToolServices, context: CallContext, tool: Tool, params: msgspec.Struct
) -> set[_Place]:
    """Return the containers that a call is about; a new one has no agents yet.

    What the key does not reach is left to the tool, for which it does not exist.
    """
    project_id: str | None = getattr(params, "project_id", None)
    session_id: str | None = getattr(params, "session_id", None)
    place = None
    if session_id is not None:
        place = await _of_session(services, session_id)
        project_id = place and place[0]
    if project_id is None or not context.scope.reaches(project_id):
        return set()
    project = await services.reader.project(project_id)
    if project is None:
        return set()
    if not project.workspace_isolation:
        return {(project_id, None)}
    if tool.enters == "new" or getattr(params, "workspace", None) == "branch":
        return set()
    if place is not None:
        return {place}
    return {(project_id, each) for each in await _workspaces(services, project, params)}


async def _workspaces(services: ToolServices, project: Project, params: msgspec.Struct) -> set[str]:
    """Return the workspaces that are named, as the project finds them; not those to be made."""
    parts: tuple[object, ...] = getattr(params, "messages", ()) or (params,)
    all_new: bool = getattr(params, "create_workspace", False)
    shared: str | None = getattr(params, "workspace_id", None)
    named: set[str] = set()
    unnamed = False
    for part in parts:
        new: bool = getattr(part, "create_workspace", False)
        workspace_id: str | None = getattr(part, "workspace_id", None)
        workspace_id = workspace_id or (None if new else shared)
        if workspace_id is not None:
            named.add(workspace_id)
        elif not new and not all_new:
            unnamed = True
    if unnamed:
        user = getattr(params, "external_id", None), getattr(params, "source", None)
        named.add(await unnamed_workspace(services.reader, project, *user))
    return named
