"""Bodies of requests, in whatever pieces they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.mcp_front.transport.request_body import is_cut, read_body, replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Message, Receive

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def pieces(*bodies: bytes, end: bool = True) -> list[Message]:
    last = len(bodies) - 1
    return [
        {"type": "http.request", "body": body, "more_body": number < last or not end}
        for number, body in enumerate(bodies)
    ]


def of(messages: Iterable[Message]) -> Receive:
    left = iter(messages)

    async def receive() -> Any:
        return next(left)

    return receive


@pytest.mark.timeout(60)
async def test_small_pieces_cost_no_copies_of_what_came_before() -> None:
    small = 100_000  # of which each copied 15 MiB: several minutes
    messages = pieces(b"x" * (15 * MIB), *[b"y"] * small)
    read: list[Message] = []
    body = await read_body(of(messages), read, 16 * MIB)
    assert body == b"x" * (15 * MIB) + b"y" * small
    assert await replay(read, of(()))() == pieces(body)[0]
    assert not read


async def test_a_body_that_is_too_long_is_read_no_further_and_nothing_of_it_is_lost() -> None:
    messages = pieces(b"one", b"two", b"three", b"four")
    read: list[Message] = []
    rest = of(messages)
    assert await read_body(rest, read, 8) is None
    assert not is_cut(read)
    again = replay(read, rest)
    found = [await again(), await again()]
    assert found == pieces(b"onetwothree", b"four")


async def test_a_client_that_goes_away_in_a_body_is_noticed() -> None:
    gone: Message = {"type": "http.disconnect"}
    read: list[Message] = []
    assert await read_body(of([*pieces(b"half", end=False), gone]), read, 100) is None
    assert is_cut(read)
    assert read == [*pieces(b"half", end=False), gone]
