"""How long a program in a container may take to answer a browser."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oubliette.actors.ports.messages import GuestStream
from oubliette.mcp_front.ports import exchange
from oubliette.mcp_front.ports.exchange import NoAnswer, PortExchange

pytestmark = pytest.mark.anyio


class Program:
    """The connection to a program that reads, and answers what the test feeds."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.read: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.read.append(data)

    async def drain(self) -> None:
        pass


async def ask(program: Program, body: list[bytes], sent: list[Any]) -> None:
    """Pass one request on, whose body comes in these pieces."""
    pieces = [*body]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.03)
        if not pieces:
            await asyncio.Future()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = cast("Any", {"method": "POST", "raw_path": b"/", "query_string": b""})
    stream = GuestStream(program.reader, cast("Any", program), 8000, "alice")
    headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
    await PortExchange(stream, scope, receive, send).run(headers)


async def test_a_program_that_does_not_begin_to_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "ANSWER_SECONDS", 0.05)
    program, sent = Program(), []
    async with asyncio.timeout(10):
        with pytest.raises(NoAnswer):
            await ask(program, [b"one", b"two", b"three", b""], sent)
    assert b"three" in b"".join(program.read)  # each piece that it took gave it more time
    assert sent == []


async def test_an_answer_that_has_begun_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_SECONDS", 0.05)
    program, sent = Program(), []
    program.reader.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")
    asyncio.get_running_loop().call_later(0.15, program.reader.feed_data, b"lf")
    async with asyncio.timeout(10):
        await ask(program, [b""], sent)
    assert b"".join(each.get("body", b"") for each in sent) == b"half"


PARTS = 2000
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"1\r\na\r\n" * PARTS + b"0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * PARTS + HEAD + b"0\r\n\r\n",
    ],
    ids=["chunks of one byte", "answers before the answer"],
)
async def test_an_answer_of_many_small_parts_lets_others_have_their_turns(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, sent = Program(), []
    in_turn, most = 0, 0
    pass_on = PortExchange._pass_on

    async def counted(self: PortExchange, event: Any) -> bool:
        nonlocal in_turn, most
        in_turn += 1
        most = max(most, in_turn)
        return await pass_on(self, event)

    async def others() -> None:
        nonlocal in_turn
        while True:
            await asyncio.sleep(0)
            in_turn = 0

    monkeypatch.setattr(PortExchange, "_pass_on", counted)
    program.reader.feed_data(answer)
    turns = asyncio.create_task(others())
    async with asyncio.timeout(30):
        await ask(program, [b""], sent)
    turns.cancel()
    assert sent[-1]["more_body"] is False
    assert most <= 16
