"""Record of a new session: from its request, its parent, and the settings of its project."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oubliette import ids
from oubliette.actors.project.shared_trees import forked_tree
from oubliette.actors.relay.pairing import new_pairing_secret
from oubliette.actors.tree.limits import resolve_limits, tightened
from oubliette.errors import InvalidParameter, NotFound
from oubliette.records import AgentChoice, Event, Session, same_fields, title_of

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SessionFork, SpawnSession
    from oubliette.actors.project.shared_trees import JoinedTree
    from oubliette.config.agent_config import AgentConfig
    from oubliette.records import Limits, Project, Workspace


async def describe(
    context: ActorContext,
    project: Project,
    message: SpawnSession,
    workspace: Workspace,
    now: float,
    *,
    joined: JoinedTree | None = None,
    new: bool = False,
) -> Session:
    """The record of a session that starts at `now`, in seconds since the epoch.

    A child takes its tree, limits, agent, model and autonomy from its parent. A root begins a tree
    of its own, unless it is `joined` to one of several roots. A fork is like its origin.

    Raises:
        NotFound: there is no such parent.
        InvalidParameter: its agent cannot be used here.
    """
    session_id = (message.fork and message.fork.new_session_id) or ids.new_id(ids.SESSION)
    parent = await _known(context, message.parent_session_id)
    forked = await _known(context, message.fork and message.fork.session_id)
    joined = joined or (forked and forked_tree(forked, message.principal))
    like = forked or parent
    settings = await _settings(context, project, None if new else workspace.id)
    return Session(
        id=session_id,
        project_id=project.id,
        workspace_id=workspace.id,
        principal=message.principal,
        status="created",
        created_at=now,
        updated_at=now,
        **_tree(context, project, parent, joined),
        depth=parent.depth + 1 if parent else 0,
        parent_session_id=parent.id if parent else None,
        root_session_id=parent.root_session_id if parent else session_id,
        **_choice(context, message, like, settings),
        isolation=context.runtime.capabilities.isolation,
        caller_id=message.caller_id,
        caller_tools=message.caller_tools or (),
        external_id=message.external_id,
        source=message.source,
        title=message.title or title_of(message.prompt),
        **key_of_agent(message),
        pairing_secret=new_pairing_secret(),
    )


def _tree(
    context: ActorContext, project: Project, parent: Session | None, joined: JoinedTree | None
) -> dict[str, Any]:
    """Return the tree of a session: that of its parent, one that it joins, or one of its own."""
    if parent is not None:
        return {
            "exploration_id": parent.exploration_id,
            "limits": _limits_below(parent, project, context),
            "tree_limits": parent.tree_limits,
            "tree_project_id": parent.tree_project_id,
        }
    if joined is not None:
        return {
            "exploration_id": joined.tree_id,
            "limits": joined.limits,
            "tree_limits": joined.given,
            "tree_project_id": joined.project_id,
        }
    limits = resolve_limits(project.limits, context)
    own = ids.new_id(ids.EXPLORATION)
    return {"exploration_id": own, "limits": limits, "tree_project_id": project.id}


def key_of_agent(message: SpawnSession) -> dict[str, Any]:
    """Return what the record of a session keeps of the key that its agent is given."""
    return {
        "minted_token_id": message.minted_token_id,
        "given_key": message.api_key is not None,
        "given_token_id": message.given_token_id,
    }


def _limits_below(parent: Session, project: Project, context: ActorContext) -> Limits:
    """The limits of a child, which an agent with a key may start in another project."""
    if parent.project_id == project.id:
        return parent.limits
    own = resolve_limits(project.limits, context)
    return tightened(resolve_limits(parent.limits, context), own)


async def _settings(
    context: ActorContext, project: Project, workspace_id: str | None
) -> AgentConfig:
    """Return the settings of a workspace; None: those of one that is still to be made."""
    configs = context.folders.configs
    if workspace_id is None:
        return await asyncio.to_thread(configs.add_project, project)
    return await asyncio.to_thread(configs.add_workspace, project, workspace_id)


def _choice(
    context: ActorContext, message: SpawnSession, like: Session | None, settings: AgentConfig
) -> dict[str, Any]:
    """Return the choice of an agent, and whether its autonomy was chosen."""
    asked = same_fields(message, AgentChoice)
    found = {name: value or getattr(like or settings, name) for name, value in asked.items()}
    below = like.autonomy_chosen if like else settings.autonomy is not None
    return found | {
        "agent": _agent(context, found["agent"]),
        "autonomy": found["autonomy"] or "off",
        "autonomy_chosen": message.autonomy is not None or below,
    }


async def _known(context: ActorContext, session_id: str | None) -> Session | None:
    if session_id is None:
        return None
    session = await context.reader.session(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    return session


def _agent(context: ActorContext, wanted: str | None) -> str:
    agents = context.agents
    name = wanted or context.config.agents.default
    if name == "auto":
        name = next(iter(agents))
    missing = context.missing_agents.get(name)
    if missing is not None:
        raise InvalidParameter(
            f"agent: {name} cannot be used here: {missing.reason}",
            field="agent",
            hint=missing.remedy,
        )
    if name not in agents:
        raise InvalidParameter(
            f"agent: there is no agent {ids.shown(name)} here; known: {', '.join(agents)}",
            field="agent",
        )
    return name


def fork_event(session: Session, fork: SessionFork, index: int, ts: float) -> Event:
    knows = "its agent knows" if session.conversation == "native" else "it has a record of"
    text = (
        f"a fork of session {fork.session_id} at {fork.snapshot or 'an empty workspace'};"
        f" {knows} the conversation up to turn {fork.turn}"
    )
    if fork.missing_count:
        text += f"; {fork.missing_count} files are not as they were, as snapshots lack them"
    return Event(
        session_id=session.id,
        index=index,
        ts=ts,
        type="system",
        data={
            "kind": "session_forked",
            "message": text,
            "forked_from": fork.session_id,
            "snapshot": fork.snapshot,
            "forked_at_turn": fork.turn,
            "conversation": session.conversation,
            "missing_count": fork.missing_count,
            "missing": fork.missing,
        },
        principal=session.principal if session.caller_id else "",
        caller_id=session.caller_id,
    )


def first_event(
    session: Session, parent: Session | None, index: int, ts: float, *, resumed: bool
) -> Event:
    """Return the event with which a session begins, or begins once more.

    A parent in another project is not named: those who read the log may not reach it.
    """
    named = parent is not None and parent.project_id == session.project_id
    return Event(
        session_id=session.id,
        index=index,
        ts=ts,
        type="status",
        data={
            "status": "created",
            "resumed": resumed,
            "parent_session_id": session.parent_session_id if named else None,
            "depth": session.depth,
            "isolation": session.isolation,
        },
        principal=session.principal if session.caller_id else "",
        caller_id=session.caller_id,
    )
