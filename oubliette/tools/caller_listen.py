"""Parameters and result of `caller_listen`, which the tool and the front both serve."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from oubliette.tools.caller_tools import LentTool
from oubliette.tools.schema import field_types
from oubliette.tools.spec import Params, Result

MAX_LISTEN: Final = 86_400.0  # seconds
POLL_SECONDS: Final = 25.0
"""How long a poll waits unless it says otherwise; well below clients' request timeouts."""
MAX_POLL_SECONDS: Final = 120.0


class CallerListen(Params, frozen=True, kw_only=True):
    """Parameters of `caller_listen`."""

    caller_id: Annotated[field_types.CallerId, Meta(description="Who you are to your agents.")]
    caller_tools: Annotated[
        tuple[LentTool, ...] | None,
        Meta(description="Tools that you lend to sessions started with this caller_id."),
    ] = None
    after: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None,
        Meta(description="next of the answer before; without it from now on, open requests first."),
    ] = None
    observe: Annotated[
        bool, Meta(description="Only watch: no tool requests, and others keep listening.")
    ] = False
    max_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_LISTEN)] | None,
        Meta(description="End by then; a stream goes on until you leave, a long poll for 25 s."),
    ] = None


class CallerListenResult(Result, frozen=True, kw_only=True):
    """Result of `caller_listen`."""

    events: tuple[dict[str, Any], ...]
    next: Annotated[int, Meta(description="after of the next call.")]
    ended: Annotated[
        str | None,
        Meta(description="Why nothing more comes this way: superseded, server stopping."),
    ]
