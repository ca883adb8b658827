"""What the front knows of MCP by itself is what the SDK says (`oubliette.mcp_front.protocol`)."""

from __future__ import annotations

from typing import get_args

import mcp_types as t
import pytest
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, REQUEST_CANCELLED
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from oubliette.mcp_front import protocol
from oubliette.mcp_front.transport import error_responses


def test_versions_are_those_of_the_sdk():
    assert set(HANDSHAKE_PROTOCOL_VERSIONS) == protocol.HANDSHAKE_VERSIONS
    assert set(MODERN_PROTOCOL_VERSIONS) == protocol.MODERN_VERSIONS


def test_names_are_those_of_the_sdk():
    assert MCP_SESSION_ID_HEADER.lower().encode() == protocol.SESSION_HEADER
    assert MCP_PROTOCOL_VERSION_HEADER.lower().encode() == protocol.VERSION_HEADER
    assert (
        t.SERVER_INFO_META_KEY,
        t.CLIENT_INFO_META_KEY,
        t.CLIENT_CAPABILITIES_META_KEY,
        t.PROTOCOL_VERSION_META_KEY,
        t.LOG_LEVEL_META_KEY,
    ) == (
        protocol.SERVER_INFO,
        protocol.CLIENT_INFO,
        protocol.CLIENT_CAPABILITIES,
        protocol.PROTOCOL_VERSION,
        protocol.LOG_LEVEL,
    )
    assert get_args(t.LoggingLevel) == get_args(protocol.Level)


def test_codes_are_those_of_the_sdk():
    assert (REQUEST_CANCELLED, t.CONNECTION_CLOSED, t.INTERNAL_ERROR) == (
        protocol.REQUEST_CANCELLED,
        protocol.CONNECTION_CLOSED,
        error_responses.INTERNAL_ERROR,
    )


@pytest.mark.parametrize(
    "value",
    ["7", 7, "", "x", " 7 ", "+7", "7.0", "0x7", "٧", "1_0", -1, 2**70, True, None, 1.5, [], {}],
    ids=repr,
)
def test_ids_are_those_of_the_sdk(value):
    found = as_request_id(value)
    assert protocol.request_id(value) == found
    if found is not None:
        assert protocol.correlated(found) == coerce_request_id(found)
