"""Events on the wire hold whatever an agent says; the port holds whatever comes in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oubliette.config.schema import Config, ServerConfig
from oubliette.errors import ConfigError
from oubliette.mcp_front.events import event_format
from oubliette.mcp_front.host_and_origin import HostPolicy
from oubliette.mcp_front.quotas import Quotas
from oubliette.mcp_front.transport.http_server import HttpServer
from oubliette.records import Event
from tests import selection
from tests.http_client import HttpClient
from tests.interaction.frontkit import world

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=()), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def event(data, kind="message", seq=7):
    return Event(
        session_id="gogol_1", index=3, ts=1.5, type=kind, data=data, seq=seq, principal="p"
    )


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
@example({"type": "caller_tool_request", "session_id": "other", "seq": -1, "index": "x"})
@example({"text": "a\r\n\r\ndata: {}\r\n\r\nb\u2028\x85\x00"})
@example({"text": "\ud83d", "n": 2**200})
def test_one_event_is_one_frame_and_nothing_in_it_can_pose_as_another(data):
    frame = event_format.event_frame(event(data))
    assert frame.startswith(b"event: message\r\ndata: {")
    assert frame.endswith(b"}\r\n\r\n")
    assert frame.count(b"\n") == 3
    assert frame.count(b"\r") == 3
    message = json.loads(frame.split(b"data: ", 1)[1])
    assert message["method"] == "notifications/message"
    told = message["params"]["data"]
    head = {"type": "message", "session_id": "gogol_1", "index": 3, "ts": 1.5, "seq": 7}
    assert told | head == told
    for key, value in data.items():
        if key not in {*head, "version"}:
            assert told[key] == value


@pytest.mark.parametrize("size", [100, 880_000, 899_000, 901_000, 3_000_000])
def test_no_frame_is_larger_than_clients_take(size):
    frame = event_format.event_frame(event({"text": "x" * size}))
    assert len(frame) <= 1024 * 1024
    assert ("ref" in json.loads(frame.split(b"data: ", 1)[1])["params"]["data"]) is (size > 899_900)


def test_a_poll_fits_into_a_result_that_says_it_twice():
    events = tuple(event({"text": '"' * 90_000}, seq=n) for n in range(1, 4))
    answer, cursor = event_format.polled(events, (), 99)
    assert len(json.dumps(json.dumps(answer))) + len(json.dumps(answer)) < 1024 * 1024
    assert (len(answer), cursor) == (1, 1)
    assert event_format.polled(events[:1], (), 99)[1] == 99
    (large,), _ = event_format.polled((event({"text": '"' * 400_000}),), (), 99)
    assert large["ref"] == {"session_id": "gogol_1", "index": 3}


@given(st.lists(st.sampled_from(["call", "stream", "listener", "-call", "-stream", "-listener"])))
def test_what_is_given_back_can_be_taken_again(steps):
    quotas = Quotas(Config().callers)
    held = {"call": [], "stream": [], "listener": []}
    counters = {"call": quotas.calls, "listener": quotas.listeners, "stream": quotas.streams}

    async def scenario() -> None:
        for step in steps:
            kind = step.removeprefix("-")
            if step == "listener" and len(held[kind]) < 16:
                held[kind].append(quotas.take_listener("p").end)
            elif step == "call":
                held[kind].append((await quotas.take_call("p")).end)
            elif step == "stream":
                await quotas.take_stream("p")
                held[kind].append(lambda: quotas.end_stream("p"))
            elif step.startswith("-") and held[kind]:
                held[kind].pop()()
            for name, counter in counters.items():
                assert counter["p"] == len(held[name])
                assert ("p" in counter) is bool(held[name])

    asyncio.run(scenario())


@given(st.binary(max_size=60))
@example(b"127.0.0.1")
@example(b"127.0.0.1:")
@example(b"[::1]:8080")
@example(b"localhost:80:80")
def test_no_name_is_taken_for_ours_by_chance(host):
    known = HostPolicy(ServerConfig()).knows_host(host)
    name, _, port = host.partition(b"]:") if host.startswith(b"[") else host.partition(b":")
    name += b"]" if host.startswith(b"[") and not name.endswith(b"]") else b""
    ours = name.lower() in {b"127.0.0.1", b"localhost", b"[::1]"} and (
        port.isdigit() or host == name
    )
    assert known is ours


@pytest.mark.anyio
@settings(max_examples=selection.examples(15))
@given(
    chunks=st.lists(
        st.binary(max_size=200)
        | st.sampled_from(
            [
                b"POST /mcp HTTP/1.1\r\n",
                b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"Host: localhost\r\n",
                b"Content-Length: 5\r\n",
                b"Content-Length: -1\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"\r\n",
                b"ffffffffffffffffff\r\n",
                b"0\r\n\r\n",
            ]
        ),
        max_size=12,
    )
)
async def test_whatever_comes_in_the_server_lives_on(chunks):
    async with world(head=0.05, body=0.05, rest=0.05) as w, asyncio.timeout(60):
        host, port = w.front.url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError, OSError):
            writer.write_eof()
            answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            assert b"Traceback" not in answer
        writer.close()
        client = HttpClient(w.front.url)
        async with client.request("GET", path="/health") as response:
            assert response.status == 200
            await response.body()
        await client.aclose()


@pytest.mark.anyio
async def test_a_taken_port_is_an_error_that_says_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HttpServer(lambda *_: None, "127.0.0.1", port)
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}.*port 0"):
            server.bind()
