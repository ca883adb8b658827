"""Options of a new project, parameters of the other tools of projects, and their results.

Times are seconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.agent_options import Autonomy
from oubliette.contract.field_types import Params, Result
from oubliette.contract.limits import Limits, TreeLimits

Answers = Literal["owner", "team"]
_ANSWERS: Final = Meta(
    description="Keys that may answer permission requests of its sessions. owner: those of the"
    " principal of the tree's root, of the operator and of scope admin; team: also every key that"
    " may write in the project. Never that of an agent."
)


class Placement(Params, frozen=True, kw_only=True):
    """Node of a cluster that a project needs."""

    labels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=63)], Annotated[str, Meta(max_length=63)]
        ],
        Meta(description="Labels that the node must have, with these values.", max_length=20),
    ] = {}
    runtime: Annotated[
        field_types.Line | None,
        Meta(description="Container runtime that the node must have; null: any."),
    ] = None


class RepositorySource(Params, frozen=True, kw_only=True):
    """Repository that a project is cloned from: `url` or `path`."""

    url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2048, extra={"check": "without_secrets"})]
        | None,
        Meta(
            description="https, http or ssh URL, as far as the server allows them, without a"
            " password: the server's configuration has those.",
        ),
    ] = None
    path: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Absolute path of a checkout on the server's machine, which is only read."
            " Keys may clone what is in repositories.folders.",
        ),
    ] = None
    branch: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="Branch that workspaces begin at. Unset: its HEAD."),
    ] = None
    depth: Annotated[
        field_types.Count | None,
        Meta(description="Number of commits to fetch. Unset: all."),
    ] = None
    submodules: Annotated[bool, Meta(description="Fetch the submodules into each workspace.")] = (
        False
    )
    lfs: Annotated[
        bool,
        Meta(
            description="Fetch the content of files that Git LFS keeps into each workspace. Unset:"
            " pointers."
        ),
    ] = False
    dirty: Annotated[
        bool,
        Meta(description="With path: bring its uncommitted changes too, as uncommitted ones."),
    ] = False
    push: Annotated[
        bool, Meta(description="Consent to pushes of branches to it, by session_push.")
    ] = False


class ProjectCreate(Params, frozen=True, kw_only=True):
    """Parameters of `project_create`."""

    name: Annotated[field_types.Line, Meta(description="Name, unique among existing projects.")]
    description: Annotated[field_types.Text, Meta(description="Purpose, for people.")] = ""
    remote_url: Annotated[
        field_types.Remote | None,
        Meta(description="URL of its repository, set as git's origin; nothing is fetched."),
    ] = None
    repository: Annotated[
        RepositorySource | None,
        Meta(
            description="Repository to clone. Each workspace is a clone on a branch of its own,"
            " oubliette/<workspace id>, the default one on oubliette/default. Unset: workspaces"
            " begin empty."
        ),
    ] = None
    init_git: Annotated[bool, Meta(description="Make the default workspace a git repository.")] = (
        True
    )
    container_type: Annotated[
        field_types.Line | None, Meta(description="One of project_options.container_types.")
    ] = None
    agent: Annotated[
        field_types.Line | None, Meta(description="One of project_options.agents.")
    ] = None
    model: Annotated[field_types.Line | None, Meta(description="Model of its agents.")] = None
    autonomy: Annotated[
        Autonomy | None,
        Meta(
            description="Actions that agents may take without a permission; off: all, within the"
            " container."
        ),
    ] = None
    workspace_isolation: Annotated[
        bool, Meta(description="Give each workspace a container of its own.")
    ] = False
    accept_bare: Annotated[
        bool | None,
        Meta(
            description="Accept clients without a secret, which can be mistaken for each"
            " other. Unset: as relay.accept_bare; true requires scope admin if that"
            " is false."
        ),
    ] = None
    limits: Annotated[TreeLimits, Meta(description="Limits of each tree of sessions.")] = (
        TreeLimits()
    )
    mcp_servers: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="Further MCP servers for its agents, by name: command, args, env; or"
            " url, type (http, sse), headers. A secret is written"
            " ${credential:NAME}."
        ),
    ] = {}
    answers: Annotated[Answers, _ANSWERS] = "owner"
    placement: Annotated[
        Placement | None, Meta(description="Node of a cluster that it needs; null: any.")
    ] = None
    idempotency_key: Annotated[
        field_types.IdempotencyText | None,
        Meta(
            description="Name of this request: the same key within 24 h returns the same project,"
            " not a second one."
        ),
    ] = None


class ProjectList(Params, frozen=True, kw_only=True):
    """Parameters of `project_list`."""

    name_contains: Annotated[
        Annotated[str, Meta(max_length=200, extra={"check": "storable"})] | None,
        Meta(description="Text that the name contains."),
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 100
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


class ProjectOne(Params, frozen=True, kw_only=True):
    """Parameters of `project_get`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]


class ProjectDelete(Params, frozen=True, kw_only=True):
    """Parameters of `project_delete`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    discard: field_types.Discard = None


class ProjectUpdate(Params, frozen=True, kw_only=True):
    """Parameters of `project_update`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    allow_push: Annotated[
        bool | None,
        Meta(
            description="Consent to pushes to the repository that it was cloned from. Unset: as"
            " before."
        ),
    ] = None
    answers: Annotated[Answers | None, _ANSWERS] = None


class Nothing(Params, frozen=True, kw_only=True):
    """Parameters of tools that have none."""


Problem = Annotated[
    str | None,
    Meta(description="Reason why its folders cannot be used; null: none is known."),
]


class ProjectContainer(Result, frozen=True, kw_only=True):
    """A container of a project."""

    container_id: str
    workspace_id: Annotated[str | None, Meta(description="Set with workspace isolation.")]
    state: str


class RepositoryInfo(Result, frozen=True, kw_only=True):
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
    """Seconds since 1970."""
    default_workspace_id: str
    container_type: str | None
    agent: str | None
    model: str | None
    autonomy: str | None
    workspace_isolation: bool
    accept_bare: Annotated[bool | None, Meta(description="null: as relay.accept_bare.")]
    limits: Limits
    remote_url: str | None
    containers: tuple[ProjectContainer, ...] = ()
    repository: Annotated[
        RepositoryInfo | None, Meta(description="null: it was not cloned, it began empty.")
    ] = None
    answers: Annotated[
        Answers, Meta(description="Keys that may answer permission requests: owner or team.")
    ] = "owner"
    problem: Problem = None


class WorkspaceView(Result, frozen=True, kw_only=True):
    """A workspace."""

    id: str
    created_at: float
    last_session_at: float | None
    external_id: str | None
    source: str | None
    is_default: bool


class BranchInfo(Result, frozen=True, kw_only=True):
    """A branch, as it was fetched last."""

    name: str
    commit: str
    committed_at: float
    """Seconds since 1970."""
    subject: Annotated[str, Meta(description="First line of the commit's message.")]
    default: Annotated[bool, Meta(description="Whether workspaces begin at it.")]


class CommandResult(Result, frozen=True, kw_only=True):
    """Exit code and output of a command."""

    exit_code: int
    """128 + the signal for a killed one."""
    stdout: str
    stderr: str
    truncated: bool
    """Whether the middle was left out; the text contains the number of bytes."""
    timed_out: bool
