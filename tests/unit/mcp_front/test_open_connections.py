"""The table of open connections, at its limit and when one is over early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from oubliette.mcp_front.transport.open_connections import OpenConnections


def connection() -> Any:
    closed: list[bool] = []
    transport = SimpleNamespace(abort=lambda: closed.append(True))
    return type("Connection", (), {"transport": transport, "unused": False, "closed": closed})()


def test_a_connection_that_is_over_is_not_counted_when_its_key_turns_out_to_be_good() -> None:
    table = OpenConnections(2)
    gone, used = connection(), connection()
    table.add(used)
    table.admitted(used, "alice")
    table.add(gone)
    table.remove(gone)  # its client went away while a program behind a port was waited for
    table.admitted(gone, "alice")
    table.add(connection())
    assert not used.closed
