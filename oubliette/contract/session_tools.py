"""Parameters that the tools of sessions have in common for clients and for agents.

Clients call `session_message`, `session_map` and `session_events` of the table
(`oubliette/tools/registry.py`), agents the base tools of the same names (`agent_tools`). A field
that both have is declared here.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params

MAX_PARTS: Final = 1000
"""Maximum of messages of one `session_map`."""
MAX_WAIT: Final = 600.0
"""Maximum of seconds that `session_events` waits."""

SessionStatus = Literal["created", "running", "idle", "completed", "failed", "timed_out"]
Message = Annotated[field_types.Prompt, Meta(description="Message to the agent: what it is to do.")]
ContinuedSession = Annotated[
    field_types.SessionId | None,
    Meta(description="Id of a session that you started before; a stopped one is resumed."),
]
PARTS: Final = Meta(
    min_length=1,
    max_length=MAX_PARTS,
    description="What each agent is to do: a text, or an object with options.",
)
"""Bounds and description of the messages of a `session_map`, whose options differ."""
Parallel = Annotated[
    int, Meta(ge=1, le=MAX_PARTS, description="Maximum of sessions that run at the same time.")
]


NewWorkspace = Annotated[
    Literal["shared", "branch"],
    Meta(
        description="branch: each new session works on a copy of the workspace as it is now, in a"
        " workspace and on a branch of its own."
    ),
]


class EventsParams(Params, frozen=True, kw_only=True):
    """Parameters of `session_events` for agents, and the base of those for clients."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    since_index: Annotated[
        int,
        Meta(
            ge=-1,
            le=2**53,
            description="last_index of the previous answer: only later events are returned;"
            " -1: all.",
        ),
    ] = -1
    max_events: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number to return.")] = 500
    wait_seconds: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT, description="Time to wait for the first event, if there is none."),
    ] = 0.0
