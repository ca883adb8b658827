"""Options of a new session besides its prompt, and the many sessions of a `session_map`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from oubliette.contract import field_types, session_tools
from oubliette.contract.field_types import Params, Result
from oubliette.contract.limits import SharedTreeParam

Autonomy = Literal["off", "low", "medium", "high", "ask"]


CreateWorkspace = Annotated[
    bool,
    Meta(
        description="Create the workspace if it is missing; without workspace_id, create a new one."
    ),
]


class ToolDefinition(Params, frozen=True, kw_only=True):
    """One tool that the caller runs when an agent calls it."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            description="Characters A-Z a-z 0-9 _ . - only; agents see it as <caller_id>_<name>.",
        ),
    ]
    description: Annotated[field_types.Text, Meta(description="Description for the agent.")] = ""
    input_schema: Annotated[
        dict[str, Any], Meta(description="JSON Schema of its arguments, of type object.")
    ] = field(name="inputSchema", default_factory=lambda: {"type": "object"})
    durable: Annotated[
        bool,
        Meta(description="Calls wait for an absent caller, until their deadline."),
    ] = False


class CallerContext(Params, frozen=True, kw_only=True):
    """The caller's id and the tools that it provides (Context)."""

    caller_id: Annotated[
        field_types.CallerId | None,
        Meta(description="Id of the caller, for its agents and listeners."),
    ] = None
    caller_tools: Annotated[
        tuple[ToolDefinition, ...] | None,
        Meta(description="Tools that the agent may call; they replace the tools provided before."),
    ] = None


class AgentOptions(Params, frozen=True, kw_only=True):
    """Parameters of all tools that start agents."""

    context: Annotated[CallerContext | None, Meta(description="The caller and its tools.")] = None
    caller_id: Annotated[
        field_types.CallerId | None,
        Meta(description="As context.caller_id, which takes precedence."),
    ] = None
    caller_tools: Annotated[
        tuple[ToolDefinition, ...] | None,
        Meta(description="As context.caller_tools, which takes precedence."),
    ] = None
    agent: Annotated[
        field_types.Line | None, Meta(description="One of project_options.agents.")
    ] = None
    model: Annotated[field_types.Line | None, Meta(description="Model of the agent.")] = None
    autonomy: Annotated[
        Autonomy | None,
        Meta(description="Actions that the agent may take without a permission; off: all."),
    ] = None
    api_key_scope: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(
            description="Scope of a key that is made for the agent, no wider than your own,"
            " with which it can call Oubliette's tools. read and write are bound to"
            " the project."
        ),
    ] = None
    api_key_project: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="Another project to bind that key to; * binds it to none."),
    ] = None
    api_key_ttl_seconds: Annotated[
        field_types.ParamSeconds | None,
        Meta(description="Time until that key expires; it ends with the session in any case."),
    ] = None
    api_key: Annotated[
        field_types.Secret | None,
        Meta(description="A key of your own for the agent, instead of api_key_scope."),
    ] = None
    idempotency_key: Annotated[
        field_types.IdempotencyText | None,
        Meta(
            description="Name of this request: the same key within 24 h returns the same answer"
            " and starts no second agent."
        ),
    ] = None
    tree: SharedTreeParam = None


class AgentSettings(AgentOptions, frozen=True, kw_only=True):
    """Parameters of tools that start agents in a workspace."""

    workspace_id: Annotated[
        field_types.Uuid | None, Meta(description="Workspace. Unset: the project's default one.")
    ] = None
    create_workspace: CreateWorkspace = False
    workspace: session_tools.NewWorkspace = "shared"
    external_id: Annotated[
        field_types.Line | None, Meta(description="Your own id for a workspace that is created.")
    ] = None
    source: Annotated[
        field_types.Line | None,
        Meta(description="Origin of a workspace that is created, for people."),
    ] = None


class SpawnSettings(AgentSettings, frozen=True, kw_only=True):
    """Parameters that `session_spawn` and `session_message` share."""

    new_session: Annotated[
        bool, Meta(description="Start a new session instead of resuming one.")
    ] = False


class SessionSpawn(SpawnSettings, frozen=True, kw_only=True):
    """Parameters of `session_spawn`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Project of the session.")]
    prompt: Annotated[field_types.Prompt, Meta(description="The first message to the agent.")]
    title: Annotated[
        field_types.Line | None,
        Meta(description="Title of a new session. Unset: the first line of the prompt."),
    ] = None


class MapMessage(Params, frozen=True, kw_only=True):
    """One prompt of `session_map` with options of its own."""

    message: session_tools.Message
    workspace_id: Annotated[
        field_types.Uuid | None, Meta(description="Workspace. Unset: that of the whole call.")
    ] = None
    create_workspace: CreateWorkspace = False


class SessionMap(AgentSettings, frozen=True, kw_only=True):
    """Parameters of `session_map`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Project of the new sessions.")]
    messages: Annotated[tuple[field_types.Prompt | MapMessage, ...], session_tools.PARTS]
    max_parallel: session_tools.Parallel = 4


class MapResult(Result, frozen=True, kw_only=True):
    """Outcome of one message."""

    session_id: str | None
    status: Annotated[
        str,
        Meta(description="completed, failed, interrupted, timed_out, or refused (not started)."),
    ]
    result: Annotated[str | None, Meta(description="The agent's final answer.")]
    error: str | None
    workspace_id: str | None = None
    branch: Annotated[
        str | None,
        Meta(description="With workspace=branch in a project with a repository: its branch."),
    ] = None


class MapResults(Result, frozen=True, kw_only=True):
    """Result of `session_map`."""

    results: Annotated[
        tuple[MapResult, ...], Meta(description="Results in the order of the messages.")
    ]
