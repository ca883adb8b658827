"""Constants and rules of MCP that the front needs before the SDK is loaded (`sdk.py`).

`tests/interaction/test_front_protocol.py` compares all of it with the SDK's own.
"""

from __future__ import annotations

from typing import Final, Literal

SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"

HANDSHAKE_VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
MODERN_VERSIONS: Final = frozenset({"2026-07-28"})
"""Versions whose requests are independent: no handshake, no session."""

OWN_META: Final = "io.modelcontextprotocol/"
SERVER_INFO: Final = OWN_META + "serverInfo"
CLIENT_INFO: Final = OWN_META + "clientInfo"
CLIENT_CAPABILITIES: Final = OWN_META + "clientCapabilities"
PROTOCOL_VERSION: Final = OWN_META + "protocolVersion"
LOG_LEVEL: Final = OWN_META + "logLevel"

REQUEST_CANCELLED: Final = -32800
CONNECTION_CLOSED: Final = -32000

RequestId = int | str
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""Levels of log messages."""


def request_id(value: object) -> RequestId | None:
    """Return the value if it is valid as the id of a request; `true` is not."""
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def correlated(given: RequestId) -> RequestId:
    """The id in the form in which it is looked up: "7" and 7 are the same."""
    if isinstance(given, str):
        try:
            return int(given)
        except ValueError:
            pass
    return given
