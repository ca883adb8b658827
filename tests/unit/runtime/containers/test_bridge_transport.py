"""The link through a program in the container, when its lower connection ends in odd ways."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oubliette.runtime.containers.bridge_transport import BridgeTransport

pytestmark = pytest.mark.anyio


class ClosedTwice:
    """Transport over TLS that was closed, twice: its `abort` fails in Python 3.11."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")


async def test_the_end_of_the_lower_connection_reaches_the_reader_however_it_was_closed() -> None:
    reader = asyncio.StreamReader()
    link = BridgeTransport(asyncio.StreamReaderProtocol(reader))
    link.begin(cast("Any", ClosedTwice()))
    link.ended(None)
    with pytest.raises(OSError, match="the bridge said nothing"):
        await asyncio.wait_for(reader.read(), 5)
