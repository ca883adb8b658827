"""Connections to ports of this machine, for browsers of another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from oubliette.actors.ports.messages import GuestStream, OpenConnection
from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front.ports.connections import PortConnections
from oubliette.tools.home_streams import StreamEnd

if TYPE_CHECKING:
    from oubliette.kit import Ref

pytestmark = pytest.mark.anyio


class Ports:
    """Stand-in for the PortsActor: a program that has nothing more to send."""

    async def ask(self, _: OpenConnection, **_limits: float) -> GuestStream:
        reader = asyncio.StreamReader()
        reader.feed_data(b"x")
        reader.feed_eof()
        return GuestStream(reader, Mock(), 8000, "alice")

    def tell(self, _: object) -> None:
        pass


class End(StreamEnd):
    """The end of a stream, which notes for whom it works."""

    def __init__(self) -> None:
        super().__init__()
        self.worked_for: list[str] = []

    async def send(self, data: bytes) -> None:
        self.worked_for.append(working_for.get())
        await super().send(data)


async def test_a_connection_is_work_for_the_owner_of_the_port() -> None:
    wanted = msgspec.msgpack.encode(OpenConnection(name="p", connection_id="c", share=1))
    end = End()
    ports: Any = Ports()
    await PortConnections(lambda _: cast("Ref", ports)).serve(wanted, end)
    assert end.worked_for == ["alice", "alice"]
