"""The client's link to the server: it breaks, comes back, is refused, and nothing hangs or is lost."""

from __future__ import annotations

import types

import pytest

from oubliette.incontainer import wire
from oubliette.incontainer.client import calls
from oubliette.incontainer.client.calls import PendingCall
from oubliette.incontainer.client.relay_link import Link
from oubliette.incontainer.client.settings import Settings
from tests.unit.incontainer.fake_server import ADD, FakeServer, RawAgent, environment

pytestmark = pytest.mark.anyio


async def test_a_pending_call_is_sent_again_with_its_call_id_when_the_link_comes_back():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        first = await server.link()
        number, other = agent.call("ant_add", a=1), agent.call("session_message", message="x")
        sent, sent_other = await first.request(), await first.request()
        first.cut()
        second = await server.link()
        assert second.header == first.header
        again = {
            request["method"]: request
            for request in (await second.request(), await second.request())
        }
        assert again["caller_tool"]["params"] == sent["params"]
        assert again["session_message"]["params"] == sent_other["params"]
        second.answer(again["caller_tool"], "late but right")
        assert (await agent.reply(number))["result"]["content"][0]["text"] == "late but right"
        second.answer(again["session_message"], {"result": "done"})
        assert (await agent.reply(other))["result"]["structuredContent"] == {"result": "done"}
        assert agent.notes == []  # the same tools: nothing has changed


async def test_a_call_made_while_the_link_is_down_waits_for_it():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        first = await server.link()
        await server.deafen()
        first.cut()
        number = agent.call("ant_add", a=1)
        assert (await agent.ask("ping"))["result"] == {}
        await server.listen()
        second = await server.link()
        second.answer(await second.request("caller_tool"), 1)
        assert (await agent.reply(number))["result"]["isError"] is False


async def test_a_call_cancelled_while_the_link_is_down_is_not_sent_again():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        first = await server.link()
        gone, kept = agent.call("ant_add", a=1), agent.call("ant_add", a=2)
        await first.request()
        await first.request()
        await server.deafen()
        first.cut()
        agent.note("notifications/cancelled", requestId=gone)
        await agent.ask("ping")
        await server.listen()
        second = await server.link()
        request = await second.request()
        assert request["params"]["arguments"] == {"a": 2}
        second.answer(request, 1)
        assert (await agent.reply(kept))["result"]["isError"] is False


async def test_a_change_by_oubliettes_tools_is_not_made_twice_when_the_link_breaks_under_it():
    tools = {"tools": [{"name": "token_create"}, {"name": "project_list"}]}
    async with FakeServer() as server, RawAgent(server.path, OUBLIETTE_API_KEY="oub_k") as agent:
        await agent.handshake()
        first = await server.link()
        first.answer(await first.request(), tools)
        await agent.tool_names()
        change, reading = agent.call("oubliette_token_create"), agent.call("oubliette_project_list")
        await first.request()
        await first.request()
        first.cut()
        outcome = (await agent.reply(change))["result"]
        assert outcome["isError"] is True
        assert outcome["_meta"]["dev.oubliette/kind"] == "unknown"
        second = await server.link()
        again = {
            request["method"]: request
            for request in (await second.request(), await second.request())
        }
        second.answer(again["oubliette_tools"], tools)
        assert again["oubliette_call_tool"]["params"]["tool"] == "project_list"
        second.answer(again["oubliette_call_tool"], {"content": [], "isError": False})
        assert (await agent.reply(reading))["result"]["isError"] is False


async def test_a_call_waits_for_a_server_that_is_away_as_long_as_the_agent_is_kept():
    async with (
        FakeServer(ADD) as server,
        RawAgent(server.path, OUBLIETTE_OUTAGE_SECONDS="0.5") as agent,
    ):
        await agent.handshake()
        await agent.tool_names()
        first = await server.link()
        number = agent.call("ant_add", a=1)
        await first.request()
        await server.deafen()
        first.cut()
        outcome = (await agent.reply(number))["result"]
        assert outcome["isError"] is True
        assert "not connected to Oubliette for 0.5 s" in outcome["content"][0]["text"]


@pytest.mark.parametrize("nonsense", ["", "soon", "-1", "nan", "0"])
async def test_a_time_that_is_none_is_that_of_the_host(nonsense):
    assert Settings({**environment("/s"), "OUBLIETTE_OUTAGE_SECONDS": nonsense}, []).outage == 600.0


async def test_a_refused_header_is_reported_and_tried_again():
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        server.greeting = [b"OUBLIETTE-ERROR already connected"]
        await agent.handshake()
        assert await agent.tool_names() == [
            "session_message",
            "session_map",
            "session_events",
        ]  # no waiting for it
        await server.link()
        server.greeting = []
        second = await server.link()
        second.config(ADD)
        await agent.note_of("notifications/tools/list_changed")
        assert "ant_add" in await agent.tool_names()
        code, stderr = await agent.end()
        assert code == 0
        assert "already connected" in stderr
        assert "s3cret" not in stderr


async def test_broken_lines_of_the_server_are_ignored_and_the_link_stays():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.call("ant_add")
        request = await link.request()
        link.send(
            b"garbage",
            b"\xff\xfe",
            b"[]",
            b"7",
            b"null",
            b"{}",
            b"",
            b"[" * 50_000,
            {"jsonrpc": "2.0", "id": 99, "result": 1},
            {"jsonrpc": "2.0", "id": None, "result": 1},
            {"jsonrpc": "2.0", "id": "x", "result": 1},
            {"jsonrpc": "2.0", "id": True, "result": 1},
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}},
            {"jsonrpc": "2.0", "method": "something/new", "params": {}},
            {"type": "something_else"},
            {"type": 5},
            {"method": ["x"], "id": {}},
            {"type": "caller_tools_config", "params": {"caller_id": 5, "tools": "x"}},
            {
                "type": "caller_tools_config",
                "params": {"caller_id": "ant", "tools": [5, {}, {"name": ""}, {"name": 5}, ADD]},
            },
        )
        link.answer(request, "still here")
        assert (await agent.reply(number))["result"]["content"][0]["text"] == "still here"
        assert "ant_add" in await agent.tool_names()


async def test_a_request_of_the_server_is_answered_as_unknown():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        link.send({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}})
        reply = await link.receive()
        assert reply["id"] == "q"
        assert reply["error"]["code"] == -32601


async def test_an_answer_above_16_mib_fails_its_call_with_a_reason():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.call("ant_add")
        link.answer(await link.request(), "x" * (17 << 20))
        outcome = (await agent.reply(number))["result"]
        assert outcome["isError"] is True
        assert "16777216" in outcome["content"][0]["text"]
        next_number = agent.call("ant_add")
        link.answer(await link.request(), "small")
        assert (await agent.reply(next_number))["result"]["isError"] is False


async def test_arguments_and_results_of_15_mib_pass():
    big = "é" * (15 << 19)
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        agent.send(
            (
                '{"jsonrpc": "2.0", "id": "big", "method": "tools/call", "params": {"name": "ant_add", "arguments": {"x": "'
                + big
                + '"}}}'
            ).encode()
        )
        request = await link.request()
        assert request["params"]["arguments"]["x"] == big
        link.answer(request, "back")
        assert (await agent.reply("big"))["result"]["content"][0]["text"] == "back"
        number = agent.call("ant_add")
        request = await link.request()
        link.send(('{"jsonrpc": "2.0", "id": %d, "result": "%s"}' % (request["id"], big)).encode())
        assert (await agent.reply(number))["result"]["content"][0]["text"] == big


async def test_arguments_that_exceed_the_line_by_our_envelope_are_refused_with_a_reason():
    # 16 MiB less a little fit the agent's line, but not ours
    line = '{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"ant_add","arguments":{"x":"%s"}}}'
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        agent.send((line % ("x" * ((16 << 20) - len(line) + 2))).encode())
        outcome = (await agent.reply(5))["result"]
        assert outcome["isError"] is True
        assert "16777216" in outcome["content"][0]["text"]


async def test_a_result_that_is_no_json_number_is_an_error_with_a_reason():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.call("ant_add")
        request = await link.request()
        link.send(b'{"jsonrpc": "2.0", "id": %d, "result": {"x": NaN}}' % request["id"])
        assert "JSON" in (await agent.reply(number))["error"]["message"]


# ---------------------------------------------------------------- time


class VirtualLoop:
    """A loop whose time the test moves, without descriptors."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def call_later(self, seconds, callback):
        timer = types.SimpleNamespace(due=self.now + seconds, callback=callback)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def advance(self, seconds):
        end = self.now + seconds
        while True:
            due = [timer for timer in self.timers if timer.due <= end]
            if not due:
                break
            timer = min(due, key=lambda one: one.due)
            self.timers.remove(timer)
            self.now = max(self.now, timer.due)
            timer.callback()
        self.now = end


@pytest.fixture
def loop(monkeypatch):
    loop = VirtualLoop()
    monkeypatch.setattr(calls, "time", types.SimpleNamespace(monotonic=lambda: loop.now))
    return loop


def unreachable_link(loop, logged=None):
    def nothing(*_):
        pass

    link = Link(
        loop,
        "/tmp/no-such-relay.sock",
        wire.Downstream("p", "s", "x"),
        on_config=nothing,
        on_connected=nothing,
        on_unreachable=nothing,
        on_full=nothing,
        log=nothing if logged is None else logged.append,
    )
    link.connect()
    return link


def paired_link(loop):
    """A link that its server has greeted."""
    link = unreachable_link(loop)
    link._retry.cancel()
    link._pair()
    return link


def make_call(outcomes, **options):
    def done(result, failed):
        outcomes.append(failed.kind if failed else result)

    return PendingCall("caller_tool", {}, done=done, **{"outage_seconds": 30.0, **options})


def test_a_call_ends_when_the_link_is_down_for_too_long(loop):
    outcomes = []
    link = unreachable_link(loop)
    link.call(make_call(outcomes), 75.0)
    link.call(make_call(outcomes, outage_seconds=600.0), 86400.0)
    loop.advance(29.5)
    assert outcomes == []
    loop.advance(1.0)
    assert outcomes == ["disconnected"]
    loop.advance(600.0)
    assert outcomes == ["disconnected", "disconnected"]


def test_a_call_outlives_an_outage_that_is_longer_than_its_deadline(loop):
    outcomes = []
    link = paired_link(loop)
    number = link.call(make_call(outcomes, outage_seconds=600.0), 75.0)
    loop.advance(70.0)
    link._broken("ended")
    late = link.call(make_call(outcomes, outage_seconds=600.0), 75.0)
    loop.advance(590.0)
    assert outcomes == []
    link._retry.cancel()
    link._pair()
    loop.advance(74.0)  # its time begins again: the server may give the caller as much anew
    link._line(wire.encode_json({"id": number, "result": "late but right"}))
    assert outcomes == ["late but right"]
    loop.advance(2.0)
    assert outcomes == ["late but right", "timeout"]
    assert late > number


def test_a_call_ends_at_its_deadline(loop):
    outcomes = []
    link = paired_link(loop)
    link.call(make_call(outcomes), 75.0)
    link.call(make_call(outcomes), 5.0)
    loop.advance(4.9)
    assert outcomes == []
    loop.advance(0.5)
    assert outcomes == ["timeout"]
    loop.advance(69.0)
    assert outcomes == ["timeout"]
    loop.advance(1.0)
    assert outcomes == ["timeout", "timeout"]


def test_a_silent_call_reports_every_ten_seconds_and_less_often_when_the_server_does(loop):
    outcomes, news = [], []
    link = paired_link(loop)
    number = link.call(make_call(outcomes, on_progress=news.append), 75.0)
    loop.advance(31.0)
    assert len(news) == 3
    link._line(
        wire.encode_json({"method": "progress", "params": {"id": number, "message": "from there"}})
    )
    assert news[3:] == ["from there"]
    loop.advance(9.5)
    assert len(news) == 4
    loop.advance(1.0)
    assert len(news) == 5


def test_many_ended_calls_leave_no_timers_behind(loop):
    outcomes = []
    link = paired_link(loop)
    for _ in range(1000):
        number = link.call(make_call(outcomes, on_progress=print), 75.0)
        link._line(wire.encode_json({"id": number, "result": 1}))
    assert outcomes == [1] * 1000
    assert len(loop.timers) <= 3


def test_attempts_to_connect_come_at_growing_intervals_up_to_two_seconds(loop, monkeypatch):
    link = unreachable_link(loop)
    attempts = []
    connect = Link.connect
    monkeypatch.setattr(Link, "connect", lambda self: (attempts.append(loop.now), connect(self)))
    assert link._retry is not None
    loop.advance(60.0)
    pauses = [later - earlier for earlier, later in zip(attempts, attempts[1:], strict=False)]
    assert all(pause <= 2.0 for pause in pauses)
    assert pauses[0] <= 0.4
    assert sum(pauses[-5:]) >= 5.0  # between one and two seconds each
    link.close()
    assert loop.timers == []


def test_trouble_is_told_once_until_it_changes(loop):
    logged = []
    link = unreachable_link(loop, logged)
    loop.advance(60.0)
    assert len(logged) == 1
    assert "/tmp/no-such-relay.sock" in logged[0]
    link.close()
