"""SpawnOptions, options of a new session for blocking calls, and what the loop gets for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from oubliette.api.spawner import SessionOptions
from oubliette.api.tools.objects import listed_tools
from oubliette.sync.caller import Caller

if TYPE_CHECKING:
    from oubliette.api import spawner as twins


class SpawnOptions(SessionOptions, total=False):
    """Options of a new session, all optional."""

    caller: Caller | None
    """Caller that provides the tools, instead of `tools` and `on_permission`."""


def for_loop(options: SpawnOptions) -> twins.SpawnOptions:
    """Return the options for the asynchronous API; iterables are read here, in their thread."""
    given: dict[str, Any] = {**options}
    caller = options.get("caller")
    if isinstance(caller, Caller):
        given["caller"] = caller.twin
    tools = options.get("tools")
    if tools is not None:
        given["tools"] = listed_tools(tools)
    return cast("twins.SpawnOptions", given)
