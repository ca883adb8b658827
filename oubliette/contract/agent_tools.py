"""Base tools of agents: names, descriptions for models, parameters.

`oubliette-client` lists them to its agent, also before it has reached a server: from a file in the
zipapp, which a test compares with this table. Renew it:

    python -m oubliette.contract.agent_tools > incontainer/client/agent_tools.json

The server carries out the tools of sessions, and the client those of the context folder.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from oubliette.contract import field_types, json_schema, session_tools
from oubliette.contract.field_types import Params

Kind = Literal["base", "context"]
"""`base`: carried out by the server; `context`: by the client, in the workspace."""


class AgentMessage(Params, frozen=True, kw_only=True):
    """Message of an agent to a child."""

    message: session_tools.Message
    session_id: session_tools.ContinuedSession = None

    def __post_init__(self) -> None:
        """Take an empty `session_id` for none: models fill in what they do not use."""
        if not self.session_id:
            msgspec.structs.force_setattr(self, "session_id", None)


class AgentSessionMessage(AgentMessage, frozen=True, kw_only=True):
    """Parameters of an agent's `session_message`."""

    wait: Annotated[bool, Meta(description="Wait until the agent has finished its turn.")] = True
    workspace: session_tools.NewWorkspace = "shared"

    def __post_init__(self) -> None:
        """Refuse a workspace for a session that has one."""
        super().__post_init__()
        if self.workspace == "branch" and self.session_id is not None:
            raise ValueError("workspace is for new sessions; leave it out with session_id")


class AgentMapMessage(AgentMessage, frozen=True, kw_only=True):
    """One message of an agent's `session_map`."""

    own_workspace: Annotated[bool, Meta(description="Give it a workspace of its own.")] = False

    def __post_init__(self) -> None:
        """Refuse a workspace for a session that has one."""
        super().__post_init__()
        if self.own_workspace and self.session_id is not None:
            raise ValueError("own_workspace is for new sessions; leave it out with session_id")


class AgentSessionMap(Params, frozen=True, kw_only=True):
    """Parameters of an agent's `session_map`."""

    messages: Annotated[tuple[field_types.Prompt | AgentMapMessage, ...], session_tools.PARTS]
    max_parallel: session_tools.Parallel | None = None
    """None: as many as the limits allow."""
    workspace: session_tools.NewWorkspace = "shared"


Descriptor = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Names the entry, such as findings or part-3.",
    ),
]
Writer = Annotated[
    str | None,
    Meta(description="Only what this agent session wrote; else what all sessions wrote."),
]


class ContextWrite(Params, frozen=True, kw_only=True):
    """Parameters of `context_write`."""

    descriptor: Descriptor
    data: Annotated[Any, Meta(description="Any JSON value.")]


class ContextList(Params, frozen=True, kw_only=True):
    """Parameters of `context_list`."""

    session_id: Writer = None


class ContextRead(Params, frozen=True, kw_only=True):
    """Parameters of `context_read`."""

    descriptor: Descriptor
    session_id: Writer = None


class AgentTool(msgspec.Struct, frozen=True, kw_only=True):
    """A base tool of agents."""

    name: str
    kind: Kind
    description: str
    params: type[Params]


_TOOLS: Final = (
    AgentTool(
        name="session_message",
        kind="base",
        params=AgentSessionMessage,
        description="Give a task to another agent and get its answer. Without session_id a new"
        " agent session is started, with a workspace like yours; with session_id the message goes"
        " on in that session. Several calls at the same time run several agents side by side. With"
        " wait=false the call returns at once: follow the session with session_events.",
    ),
    AgentTool(
        name="session_map",
        kind="base",
        params=AgentSessionMap,
        description="Divide a task: give many messages to as many new agents, wait for all of"
        " them, and get their answers in order. Better than many calls of session_message: it"
        " keeps to the limits, and one that fails does not stop the others. Let them"
        " leave long results with context_write and read those with context_read.",
    ),
    AgentTool(
        name="session_events",
        kind="base",
        params=session_tools.EventsParams,
        description="Read what happened in an agent session that you started: messages, tool"
        " calls, and whether it has completed or failed.",
    ),
    AgentTool(
        name="context_write",
        kind="context",
        params=ContextWrite,
        description="Leave a result for the other agents of this workspace, your parent above all:"
        " data under a name of your choice. Writing again under the same name replaces it. Prefer"
        " this to a long final answer, and name in the answer what to read.",
    ),
    AgentTool(
        name="context_list",
        kind="context",
        params=ContextList,
        description="List what the agents of this workspace have left with context_write.",
    ),
    AgentTool(
        name="context_read",
        kind="context",
        params=ContextRead,
        description="Read what agents of this workspace have left under a name: of every session,"
        " to gather the parts of a divided task in one call, or of one.",
    ),
)

AGENT_TOOLS: Final[dict[str, AgentTool]] = {tool.name: tool for tool in _TOOLS}
"""Base tools by name, in the order in which agents see them."""


def catalogue() -> bytes:
    """The file that clients list to their agents: by kind, the entries of `tools/list`."""
    listed: dict[Kind, list[dict[str, Any]]] = {"base": [], "context": []}
    for tool in AGENT_TOOLS.values():
        listed[tool.kind].append(
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": _for_models(json_schema.object_schema(tool.params)),
            }
        )
    return msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n"


def _for_models(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without null: some providers of models refuse it, and models overuse it."""
    kinds = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    if len(kinds) == 1:
        schema = {**kinds[0], **schema}
        del schema["anyOf"]
    if schema.get("default", schema) is None:
        del schema["default"]
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            inner = cast("dict[str, dict[str, Any]]", value)
            kept[key] = {name: _for_models(part) for name, part in inner.items()}
        elif key == "items":
            kept[key] = _for_models(value)
        elif key == "anyOf":
            kept[key] = [_for_models(part) for part in value]
        else:
            kept[key] = value
    return kept


if __name__ == "__main__":
    sys.stdout.buffer.write(catalogue())
