"""Views of records, as clients get them. Times are seconds since 1970-01-01 UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.config.secret_names import remote_to_show
from oubliette.config.sections import configured_model
from oubliette.contract.project import ProjectContainer, ProjectView, RepositoryInfo, WorkspaceView
from oubliette.contract.session import SessionView, Usage
from oubliette.records import made_of
from oubliette.tools.schema import response_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oubliette import records
    from oubliette.config.schema import Config
    from oubliette.records import Session

MAX_EVENT: Final = response_size.MAX_PARTS - 1000
"""Maximum bytes of an event in a message; larger ones are sent as a reference."""


def project_view(
    project: records.Project,
    containers: Iterable[records.Container] = (),
    *,
    short: bool = False,
    progress: str | None = None,
    problem: str | None = None,
) -> ProjectView:
    """Return the view of a project with its own among `containers`; `short` for lists.

    `progress` is that of its clone, `problem` that of its folders.
    """
    description = response_size.cut(
        project.description, response_size.SHORT_TEXT if short else response_size.MAX_TEXT
    )
    return made_of(
        project,
        ProjectView,
        description=description or "",
        # Earlier releases have stored passwords in it.
        remote_url=project.remote_url and remote_to_show(project.remote_url),
        containers=tuple(
            made_of(each, ProjectContainer, container_id=each.id)
            for each in containers
            if each.project_id == project.id
        ),
        repository=_repository_view(project.repository, progress),
        problem=problem,
    )


def _repository_view(
    record: records.ProjectRepository | None, progress: str | None
) -> RepositoryInfo | None:
    if record is None:
        return None
    return made_of(
        record,
        RepositoryInfo,
        lfs_content=record.fetch_lfs,
        state="ready" if record.ready else "cloning",
        progress=None if record.ready else progress,
    )


def workspace_view(workspace: records.Workspace) -> WorkspaceView:
    return made_of(workspace, WorkspaceView)


def session_view(
    session: records.Session, last_index: int, children: Iterable[str], *, short: bool = False
) -> SessionView:
    most = response_size.SHORT_TEXT if short else response_size.MAX_TEXT
    return made_of(
        session,
        SessionView,
        session_id=session.id,
        # Stored as off where none was given.
        autonomy=session.autonomy if session.autonomy_chosen or session.autonomy != "off" else None,
        last_prompt=response_size.cut(session.last_prompt, most),
        final_response=response_size.cut(session.final_response, most),
        last_index=last_index,
        child_session_ids=tuple(children),
        usage=made_of(session, Usage),
    )


def event_view(
    event: records.Event, *, whole: bool = False, most: int = MAX_EVENT, **extra: Any
) -> dict[str, Any]:
    """Return an event as one flat object; the fields of its type cannot mask the common ones.

    A `version` among them is `agent_version`.

    `extra` (`redelivered`) is added. Unless `whole`, an event that takes more than `most` bytes in
    a message is `{type, session_id, index, ts, seq, version, ref, size}`; `event_read` returns it
    in pieces.
    """
    head: dict[str, Any] = {
        **extra,
        "type": event.type,
        "session_id": event.session_id,
        "index": event.index,
        "ts": event.ts,
        "seq": event.seq,
        "version": event.version,
    }
    if not whole and response_size.cost(event.data) > most:
        head["ref"] = {"session_id": event.session_id, "index": event.index}
        head["size"] = response_size.size(event.data)
        return head
    if "version" in event.data:  # of the agent, in `ready`; `version` is that of the event
        head = {"agent_version": event.data["version"], **head}
    return {**event.data, **head}


def event_views(events: Iterable[records.Event], *, names: bool) -> Iterator[dict[str, Any]]:
    """Yield a page's events; without `names` they have none of principals."""
    for each in events:
        yield event_view(each if names else each.unnamed())


def model_of(config: Config, session: Session) -> str | None:
    """The model of a session: its own, else that of its agent's section."""
    return session.model or configured_model(config, session.agent)


def known(config: Config, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models of the sections of `agents`; sessions may name others."""
    found = (configured_model(config, agent) for agent in agents)
    return tuple(dict.fromkeys(model for model in found if model is not None))
