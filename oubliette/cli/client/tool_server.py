"""ToolServer, the interface of everything that carries out the tool calls of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.api.control import ProgressCallback

CALL_SECONDS: Final = 60.0


class ToolServer(Protocol):
    """A server of a home, one elsewhere, or the database of a home.

    It is the blocking form of `oubliette.api.connection.Connection`: commands start no event loop
    to call one tool.
    """

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        timeout: float = CALL_SECONDS,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> dict[str, Any]:
        """Call a tool; as for `oubliette.api.control.ControlClient.call`."""
        ...
