"""The actor of one session's link: JSON-RPC lines of its agent's client, both ways."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.container.guest_connection import GuestConnection, GuestConnectionState
from oubliette.actors.relay.session_connection import (
    LINES_OF_A_CALL,
    MAX_IN_WORK,
    SessionConnectionActor,
)
from oubliette.actors.session.messages import (
    LinkNotify,
    LinkProgress,
    LinkReady,
    LinkReply,
    LinkRequest,
    LinkRequestOver,
    OpenLink,
)
from oubliette.config.schema import CallersConfig, Config
from oubliette.incontainer import wire
from oubliette.json_values import MAX_VALUES
from oubliette.runtime.guest.control_link import ControlLink

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

SECRET = "s" * 32
LINK = OpenLink(
    session_id="gogol_x", project_id="proj_x", depth=2, session="session", secret=SECRET
)


class Scene:
    """One link of one session, whose guest runs and is connected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: list[Any] = world.record("session")
        self.guest = GuestConnectionState()
        self.played = world.open_guest(self.guest)
        self.ref = world.system.ref("link")

    async def connect(self) -> None:
        assert self.guest.info is not None
        self.control = await ControlLink.connect(self.played.dial, self.played.key, epoch=1)
        self.guest.opened(self.control, self.guest.info)

    def begin(self, *, bare: bool = False) -> None:
        self.world.system.spawn(
            SessionConnectionActor,
            self.world.context,
            GuestConnection(self.guest),
            LINK,
            bare=bare,
            name="link",
        )

    def of(self, kind: type) -> list[Any]:
        return [told for told in self.told if isinstance(told, kind)]

    async def client(self, number: int = 1) -> tuple[StreamReader, StreamWriter]:
        """The far end of its connection, the first, second … of this test."""
        await self.world.until(lambda: len(self.of(LinkReady)) == number, seconds=0.1)
        return self.played.clients[number - 1][1:]


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    scene = Scene(world)
    await scene.connect()
    yield scene
    await scene.ref.stop()
    await scene.control.aclose()


async def test_the_guest_learns_the_digest_of_the_secret_and_the_session_that_it_is_ready(
    scene: Scene,
) -> None:
    scene.begin()
    await scene.client()
    (asked,) = scene.played.asked("expect")
    assert (asked["digest"], asked["depth"]) == (wire.digest(SECRET), 2)
    assert SECRET not in json.dumps(scene.played.requests)
    assert scene.told == [LinkReady(link="link", generation=1)]


async def test_requests_reach_the_session_in_order(scene: Scene) -> None:
    scene.begin()
    _, writer = await scene.client()
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n{"id":"b","method":"ping",')
    writer.write(b'"params":{"x":1}}\n')
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == 2)
    first, second = scene.of(LinkRequest)
    assert (first.id, first.method, first.params) == (1, "tools/list", {})
    assert (second.id, second.method, second.params) == ("b", "ping", {"x": 1})
    assert {first.link, second.link} == {"link"}


async def test_no_more_is_read_while_many_requests_wait(scene: Scene) -> None:
    """Each that ends makes a place, with an answer or without."""
    scene.begin()
    _, writer = await scene.client()
    for number in range(MAX_IN_WORK + 10):
        writer.write(b'{"id":%d,"method":"caller_tool"}\n' % number)
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK)
    await scene.world.settle()
    assert len(scene.of(LinkRequest)) == MAX_IN_WORK
    scene.ref.tell(LinkReply(generation=1, id=3, result={}))
    scene.ref.tell(LinkReply(generation=0, id=3, result={}))  # of an earlier connection
    scene.ref.tell(LinkRequestOver())
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 3)
    await scene.world.settle()
    assert len(scene.of(LinkRequest)) == MAX_IN_WORK + 3


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"method":"tools_listed"}',
        b'{"method":"notifications/cancelled","params":{"requestId":1}}',
        b'{"id":true}',
        b"no JSON",
        b"[]",
    ],
)
async def test_a_link_has_a_rate_of_lines_whatever_they_are(scene: Scene, line: bytes) -> None:
    """Those that wait are not even decoded; another link has a rate of its own."""
    callers = CallersConfig(calls_per_second=5, calls_burst=10)
    scene.world.configure(Config(callers=callers))
    scene.begin()
    reader, writer = await scene.client()
    answered = bytearray()

    async def read() -> None:
        while piece := await reader.read(65536):
            answered.extend(piece)

    def handled() -> int:
        return answered.count(b"\n") + len(scene.of(LinkRequest))

    reading = asyncio.ensure_future(read())
    since = scene.world.clock.monotonic()
    writer.write((line + b"\n") * 100)

    async def in_all(seconds: float) -> int:
        await scene.world.clock.elapse(since + seconds - scene.world.clock.monotonic())
        for _ in range(20):
            for _ in range(len(scene.of(LinkRequest))):
                scene.ref.tell(LinkRequestOver())
            await asyncio.to_thread(lambda: None)
        return handled()

    most = LINES_OF_A_CALL * callers.calls_burst
    await scene.world.until(lambda: handled() >= most - 1)
    assert await in_all(0.05) == most
    assert await in_all(1.05) == most + LINES_OF_A_CALL * callers.calls_per_second
    assert await in_all(2.05) == most + 2 * LINES_OF_A_CALL * callers.calls_per_second
    reading.cancel()
    await asyncio.wait([reading])


async def test_of_large_requests_few_are_read_ahead(scene: Scene) -> None:
    """What waits is in memory: without a bound 256 lines of 16 MiB each."""
    scene.begin()
    _, writer = await scene.client()
    for number in range(MAX_IN_WORK):
        writer.write(b'{"id":%d,"method":"caller_tool"}\n' % number)
    text = "x" * (wire.MAX_SESSION_LINE // 2)
    large = json.dumps({"id": 100, "method": "caller_tool", "params": {"text": text}}).encode()
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": 5}}
    for line in (large, large, json.dumps(cancelled).encode(), large):
        writer.write(line + b"\n")
    # The cancellation passes the two that fit, and what comes after it waits unread.
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 1)
    writer.write(json.dumps(cancelled).encode() + b"\n")
    await scene.world.settle()
    assert len(scene.of(LinkRequest)) == MAX_IN_WORK + 1
    for _ in range(3):
        scene.ref.tell(LinkRequestOver())
    await scene.world.until(lambda: len(scene.of(LinkRequest)) > MAX_IN_WORK + 3)


async def test_a_large_request_that_is_cancelled_makes_room_for_another(scene: Scene) -> None:
    scene.begin()
    _, writer = await scene.client()
    for number in range(MAX_IN_WORK):
        writer.write(b'{"id":%d,"method":"caller_tool"}\n' % number)
    text = "x" * (wire.MAX_SESSION_LINE // 2)
    for number in (100, 101):
        params = {"text": text}
        line = {"id": number, "method": "caller_tool", "params": params}
        writer.write(json.dumps(line).encode() + b"\n")
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": number}}
        writer.write(json.dumps(cancelled).encode() + b"\n")
    writer.write(json.dumps(line).encode() + b"\n")
    writer.write(json.dumps(cancelled).encode() + b"\n")
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 3)


async def test_a_cancellation_passes_the_requests_that_wait(scene: Scene) -> None:
    """And takes one of them out, which is not passed on any more."""
    scene.begin()
    _, writer = await scene.client()
    for number in range(MAX_IN_WORK + 3):
        writer.write(b'{"id":%d,"method":"caller_tool"}\n' % number)
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK)
    for number in (5, MAX_IN_WORK + 1):
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": number}}
        writer.write(json.dumps(cancelled).encode() + b"\n")
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 2)
    assert [each.params for each in scene.of(LinkRequest)[MAX_IN_WORK:]] == [
        {"requestId": 5},
        {"requestId": MAX_IN_WORK + 1},
    ]
    for _ in range(4):  # the two cancellations, and two calls
        scene.ref.tell(LinkRequestOver())
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 4)
    assert [each.id for each in scene.of(LinkRequest)[-2:]] == [MAX_IN_WORK, MAX_IN_WORK + 2]


async def test_what_was_sent_before_the_end_of_a_link_is_passed_on(scene: Scene) -> None:
    scene.begin()
    _, writer = await scene.client()
    for number in range(MAX_IN_WORK + 3):
        writer.write(b'{"id":%d,"method":"caller_tool"}\n' % number)
    writer.close()
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK)
    for _ in range(3):
        scene.ref.tell(LinkRequestOver())
    await scene.world.until(lambda: len(scene.of(LinkRequest)) == MAX_IN_WORK + 3)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"no json", -32700),
        (b"[]", -32600),
        (b'{"id":true,"method":"ping"}', -32600),
        (b'{"id":1,"method":7}', -32600),
        (b'{"id":1,"method":"ping","params":[]}', -32602),
        (b'{"id":18446744073709551616,"method":"ping"}', -32600),
        (b'{"id":1,"method":"ping","params":{"x":{"y":18446744073709551616}}}', -32602),
        (b'{"id":1,"method":"ping","params":{"x":["\\ud800"]}}', -32602),
        (b'{"id":1,"method":"ping","params":{"x":1e400}}', -32602),
        (b'{"id":1,"method":"ping","params":{"x":' + b"[" * 900 + b"]" * 900 + b"}}", -32602),
    ],
)
async def test_what_is_no_request_is_answered_with_an_error_and_goes_no_further(
    scene: Scene, line: bytes, code: int
) -> None:
    scene.begin()
    reader, writer = await scene.client()
    writer.write(line + b"\n" + b'{"id":9,"method":"ping"}\n')
    assert json.loads(await reader.readline())["error"]["code"] == code
    await scene.world.until(lambda: scene.of(LinkRequest))
    assert [request.id for request in scene.of(LinkRequest)] == [9]


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"%s"}}', 7),
        (b'{"method":"ping","params":{"x":"%s"},"id":"b"}', "b"),
        (b"%s", None),
    ],
)
async def test_a_line_that_is_too_long_is_an_error_of_its_request_in_words(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, line: bytes, id_: object
) -> None:
    monkeypatch.setattr(wire, "MAX_SESSION_LINE", 1000)
    scene.begin()
    reader, writer = await scene.client()
    line %= b"x" * 2000
    writer.write(line + b"\n")
    answer = json.loads(await reader.readline())
    said = f"Invalid Request: a line of {len(line)} bytes; at most 1000 are read"
    assert (answer["id"], answer["error"]["message"]) == (id_, said)
    assert scene.of(LinkRequest) == []


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":[%s]}}', 7),
        (b'{"method":"ping","params":{"x":[%s]},"n":1,"id":"b"}', "b"),
        (b'{"method":"ping","id":[7],"params":{"x":[%s]}}', None),
        (b'{"method":"ping","id":18446744073709551616,"params":{"x":[%s]}}', None),
        (b'{"id":7,"params":[%s', None),
    ],
)
async def test_a_request_of_too_many_values_is_refused_with_the_limit(
    scene: Scene, line: bytes, id_: object
) -> None:
    scene.begin()
    reader, writer = await scene.client()
    writer.write(line % (b"[1]," * 1_000_000 + b"1") + b"\n")
    answer = json.loads(await reader.readline())
    error = {
        "code": -32602,
        "message": f"Invalid params: 'params': more than {MAX_VALUES} values",
    }
    assert (answer["id"], answer["error"]) == (id_, error)
    assert scene.of(LinkRequest) == []


async def test_answers_and_notifications_reach_the_client(scene: Scene) -> None:
    scene.begin()
    reader, _ = await scene.client()
    scene.ref.tell(LinkReply(generation=1, id=1, result={"ok": True}))
    scene.ref.tell(LinkReply(generation=1, id=2, error={"code": -1, "message": "no"}))
    scene.ref.tell(LinkNotify(method="session/map", params={}, legacy_type=True))
    assert [json.loads(await reader.readline()) for _ in range(3)] == [
        {"jsonrpc": "2.0", "id": 1, "result": {"ok": True}},
        {"jsonrpc": "2.0", "id": 2, "error": {"code": -1, "message": "no"}},
        {"jsonrpc": "2.0", "method": "session/map", "type": "session/map", "params": {}},
    ]


async def test_progress_reaches_the_connection_that_made_the_request(scene: Scene) -> None:
    scene.begin()
    reader, _ = await scene.client()
    scene.ref.tell(LinkProgress(generation=0, id=1, message="of an earlier connection"))
    scene.ref.tell(LinkProgress(generation=1, id=2, message="half done"))
    params = {"id": 2, "message": "half done"}
    told = json.loads(await reader.readline())
    assert told == {"jsonrpc": "2.0", "method": "progress", "params": params}


async def test_a_client_that_goes_away_is_expected_again_and_gets_no_old_answers(
    scene: Scene,
) -> None:
    scene.begin()
    _, writer = await scene.client()
    writer.close()
    reader, _ = await scene.client(2)
    assert scene.of(LinkReady)[-1].generation == 2
    scene.ref.tell(LinkReply(generation=1, id=1, result="old"))
    scene.ref.tell(LinkReply(generation=2, id=2, result="new"))
    assert json.loads(await reader.readline())["result"] == "new"


async def test_it_connects_again_after_the_relay_has_refused_it(scene: Scene) -> None:
    scene.begin()
    _, writer = await scene.client()
    writer.write(wire.error_line("evicted"))
    await scene.client(2)
    assert scene.of(LinkRequest) == []


async def test_a_guest_that_takes_no_bare_clients_is_not_asked_for_one(scene: Scene) -> None:
    scene.begin(bare=True)
    await scene.world.settle(10.0)
    assert scene.played.clients == []
    assert scene.told == []


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_its_end_closes_the_connection_and_lets_the_client_in_still(
    scene: Scene, end: str
) -> None:
    """The SocketActor knows whether the link is wanted any more."""
    scene.begin()
    reader, _ = await scene.client()
    await getattr(scene.ref, end)()
    assert await reader.read() == b""
    assert scene.played.asked("unexpect") == []
