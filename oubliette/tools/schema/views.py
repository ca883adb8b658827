"""Views of records, as clients get them. Times are seconds since 1970-01-01 UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette.config.secret_names import remote_to_show
from oubliette.contract.limits import Limits
from oubliette.records import made_of
from oubliette.tools.schema import response_size
from oubliette.tools.spec import Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette import records

MAX_EVENT: Final = response_size.MAX_PARTS - 1000
"""Maximum bytes of an event in a message; larger ones are sent as a reference."""


Problem = Annotated[
    str | None,
    Meta(description="Reason why its folders cannot be used; null: none is known."),
]


class ContainerView(Result, frozen=True, kw_only=True):
    """A container of a project."""

    container_id: str
    workspace_id: Annotated[str | None, Meta(description="Set with workspace isolation.")]
    state: str


class RepositoryView(Result, frozen=True, kw_only=True):
    """Repository that a project was cloned from."""

    url: str | None
    path: Annotated[str | None, Meta(description="Folder on the server's machine.")]
    branch: Annotated[
        str | None,
        Meta(description="Branch that workspaces begin at; null: HEAD is none there."),
    ]
    depth: int | None
    submodules: bool
    dirty: bool
    lfs: Annotated[bool, Meta(description="Whether Git LFS keeps some of its files.")]
    lfs_content: Annotated[
        bool, Meta(description="Whether workspaces have their content; otherwise pointers.")
    ]
    push: Annotated[bool, Meta(description="Whether branches may be pushed to it.")]
    state: Annotated[str, Meta(description="cloning or ready.")]
    progress: Annotated[
        str | None, Meta(description="How far the clone is; null: not under way, or unknown here.")
    ] = None


class ProjectView(Result, frozen=True, kw_only=True):
    """A project."""

    id: str
    name: str
    description: str
    created_at: float
    default_workspace_id: str
    container_type: str | None
    agent: str | None
    model: str | None
    autonomy: str | None
    workspace_isolation: bool
    accept_bare: Annotated[bool | None, Meta(description="null: as relay.accept_bare.")]
    limits: Limits
    remote_url: str | None
    containers: tuple[ContainerView, ...] = ()
    repository: Annotated[
        RepositoryView | None, Meta(description="null: it was not cloned, it began empty.")
    ] = None
    problem: Problem = None


class WorkspaceView(Result, frozen=True, kw_only=True):
    """A workspace."""

    id: str
    created_at: float
    last_session_at: float | None
    external_id: str | None
    source: str | None
    is_default: bool


class Usage(Result, frozen=True, kw_only=True):
    """Usage of a model, as reported by the agent."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class SessionView(Result, frozen=True, kw_only=True):
    """A session."""

    session_id: str
    project_id: str
    workspace_id: str
    agent: str
    model: str | None
    status: str
    status_reason: str | None
    isolation: str
    created_at: float
    updated_at: float
    ended_at: float | None
    turn_count: int
    last_prompt: str | None
    final_response: str | None
    last_index: Annotated[int, Meta(description="Index of its last event, -1 if none.")]
    parent_session_id: str | None
    child_session_ids: Annotated[
        tuple[str, ...], Meta(description="Oldest first; of more than 1000, the newest 1000.")
    ]
    exploration_id: str
    depth: int
    caller_id: str | None
    usage: Usage
    forked_from: Annotated[str | None, Meta(description="Session that it is a fork of.")] = None
    forked_at: Annotated[
        str | None, Meta(description="Snapshot of that session with whose files it began.")
    ] = None
    forked_at_turn: Annotated[
        int | None, Meta(description="Last turn of that session whose conversation it knows.")
    ] = None
    conversation: Annotated[
        str | None,
        Meta(
            description="Of a fork, native: its agent itself knows the conversation; transcript:"
            " it got a record of it before the first prompt."
        ),
    ] = None


class WaitView(Result, frozen=True, kw_only=True):
    """One thing that a session waits for."""

    kind: Annotated[
        str,
        Meta(
            description="message, model, tool, caller_tool, child, permission, place, container,"
            " agent, interrupt, end, storage, server or ended."
        ),
    ]
    what: Annotated[str, Meta(description="Completes the sentence: it waits for …")]
    since: float | None = None
    until: Annotated[
        float | None, Meta(description="Deadline of the wait; null: none, or unknown.")
    ] = None
    detail: str | None = None
    session_id: Annotated[str | None, Meta(description="Child that the session waits for.")] = None
    caller_id: Annotated[str | None, Meta(description="Caller that has to answer.")] = None
    caller_present: Annotated[
        bool | None, Meta(description="Whether that caller is connected.")
    ] = None
    last_event_at: Annotated[float | None, Meta(description="Time of the agent's last output.")] = (
        None
    )


class SessionDetail(SessionView, frozen=True, kw_only=True):
    """A session, and what it waits for."""

    waiting: Annotated[
        tuple[WaitView, ...],
        Meta(description="What the session waits for now; at least one entry."),
    ]
    problem: Problem = None


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
            made_of(each, ContainerView, container_id=each.id)
            for each in containers
            if each.project_id == project.id
        ),
        repository=_repository_view(project.repository, progress),
        problem=problem,
    )


def _repository_view(
    record: records.ProjectRepository | None, progress: str | None
) -> RepositoryView | None:
    if record is None:
        return None
    return made_of(
        record,
        RepositoryView,
        lfs_content=record.fetch_lfs,
        state="ready" if record.ready else "cloning",
        progress=None if record.ready else progress,
    )


def workspace_view(workspace: records.Workspace) -> WorkspaceView:
    """Return the view of a workspace."""
    return made_of(workspace, WorkspaceView)


def session_view(
    session: records.Session, last_index: int, children: Iterable[str], *, short: bool = False
) -> SessionView:
    """Return the view of a session. Long texts are truncated, to 2,000 bytes if `short`."""
    most = response_size.SHORT_TEXT if short else response_size.MAX_TEXT
    return made_of(
        session,
        SessionView,
        session_id=session.id,
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
