"""Parameters and result of `caller_listen`, which the tool and the front both implement."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.agent_options import ToolDefinition
from oubliette.contract.field_types import Params
from oubliette.tools.spec import Result

MAX_LISTEN: Final = 86_400.0  # seconds
POLL_SECONDS: Final = 25.0
"""Seconds that a poll waits by default; well below clients' request timeouts."""
MAX_POLL_SECONDS: Final = 120.0


class CallerListen(Params, frozen=True, kw_only=True):
    """Parameters of `caller_listen`."""

    caller_id: Annotated[
        field_types.CallerId, Meta(description="Your id as a caller, chosen by you.")
    ]
    caller_tools: Annotated[
        tuple[ToolDefinition, ...] | None,
        Meta(description="Tools that you provide to sessions started with this caller_id."),
    ] = None
    after: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None,
        Meta(
            description="next of the previous answer. Unset: open requests, then events from now"
            " on."
        ),
    ] = None
    observe: Annotated[
        bool,
        Meta(
            description="Receive events only: no tool requests, and no other listener is"
            " superseded."
        ),
    ] = False
    max_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_LISTEN)] | None,
        Meta(
            description="Time limit. Unset: a stream lasts until you disconnect, a long poll 25 s."
        ),
    ] = None


class CallerListenResult(Result, frozen=True, kw_only=True):
    """Result of `caller_listen`."""

    events: tuple[dict[str, Any], ...]
    next: Annotated[int, Meta(description="Value of after in the next call.")]
    ended: Annotated[
        str | None,
        Meta(description="Why the listener ended: superseded, server stopping."),
    ]
