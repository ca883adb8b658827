"""Each way to a server takes calls as the others do."""

from __future__ import annotations

import inspect

import pytest

from oubliette.api.control import ControlClient, given
from oubliette.cli.client.remote import RemoteServer
from oubliette.cli.client.tool_server import ToolServer
from oubliette.cli.client.tools import HomeServer


@pytest.mark.parametrize("kind", [ControlClient, HomeServer, RemoteServer])
def test_commands_call_every_server_alike(kind: type) -> None:
    assert inspect.signature(kind.call) == inspect.signature(ToolServer.call)


def test_what_is_none_is_not_sent_and_what_is_empty_is() -> None:
    assert given({"a": None, "b": 0, "c": "", "d": False}) == {"b": 0, "c": "", "d": False}
