"""Who is there is served; who is not costs nobody anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.callers import HttpCaller
from tests.own_time import OwnTime
from tests.selection import core
from tests.system.site import TURN

pytestmark = pytest.mark.anyio

POLL_GRACE = 1.5
SETTINGS = {
    "callers.poll_grace_seconds": POLL_GRACE,
    "callers.send_timeout_seconds": 1.0,
    "sessions.caller_tool_timeout_seconds": 20.0,
}
CALL = 'call myapp_add {"a": 1, "b": 2}'
ROOT = Path(__file__).parents[2]


def add(a: int, b: int) -> dict[str, int]:
    """Add."""
    return {"sum": a + b}


TOOLS = {"add": add}
# The official client in the handshake generation always has its GET stream, which serves it.
UNBOUND = ["sdk-auto", "http-auto", "http-legacy"]


class Silent(HttpCaller):
    """A client of the newest generation that takes no notifications: it never opted in to logs."""

    def message(self, method, params):
        message = super().message(method, params)
        message["params"].get("_meta", {}).pop("io.modelcontextprotocol/logLevel", None)
        return message


async def poll(caller, done) -> None:
    """Live on the long poll alone."""
    after = None
    while not done.is_set():
        arguments = {"caller_id": caller.caller_id, "max_seconds": 5}
        if after is not None:
            arguments["after"] = after
        page = await caller.call("caller_listen", **arguments)
        after = page["next"]
        for event in page["events"]:
            caller.take(event)


@contextlib.asynccontextmanager
async def doing(work):
    """Work that goes on beside the test and ends with it."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def caller_process(site, token, kind, how="listen"):
    """A caller that can be killed; listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.system.caller_process", site.server.url, token, kind, how,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, limit=2**24,
    )  # fmt: skip
    try:
        await line_of(process, "listening")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        async with asyncio.timeout(10):
            await process.wait()


async def line_of(process, kind):
    async with asyncio.timeout(20):
        while True:
            line = await process.stdout.readline()
            assert line, "the caller ended"
            if json.loads(line)["type"] == kind:
                return


# ---------------------------------------------------------------- who is served


async def test_a_handshake_client_that_never_set_a_log_level_is_served(site):
    """A caller that never sent `logging/setLevel`."""
    async with site.caller("sdk-legacy", tools=TOOLS, events=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, CALL)
        assert (await agent.outcome())["structured"] == {"sum": 3}


@pytest.mark.parametrize("kind", ["sdk-legacy", "http-legacy"])
async def test_a_handshake_client_that_only_has_its_get_stream_is_served(site, kind):
    """The existing SSE stream is used."""
    async with site.caller(kind, tools=TOOLS) as caller:
        if kind == "http-legacy":
            await caller.open_get_stream()
        agent = await site.spawn(caller, CALL)
        assert (await agent.outcome())["structured"] == {"sum": 3}
        assert caller.of("caller_tool_request")[0]["session_id"] == agent.session_id


async def test_a_get_stream_that_opens_late_gets_what_is_open(site):
    """`opens its stream late`."""
    async with site.caller("http-legacy", tools=TOOLS) as caller:
        agent = await site.spawn(caller, CALL)
        await agent.event("caller_tool_request")
        await caller.open_get_stream()
        assert (await agent.outcome())["structured"] == {"sum": 3}


async def test_a_listener_that_opens_late_gets_what_is_open(site, kind):
    """`opens its stream late`."""
    async with site.caller(kind, tools=TOOLS) as caller:
        agent = await site.spawn(caller, CALL)
        event = await agent.event("caller_tool_request")
        await caller.listen()
        assert (await agent.outcome())["structured"] == {"sum": 3}
        # The GET stream of the SDK's handshake client may have told it before; then it comes again.
        told = {request["request_id"] for request in caller.of("caller_tool_request")}
        assert told == {event["request_id"]}


@pytest.mark.parametrize("kind", UNBOUND)
async def test_who_does_not_listen_is_told_of_to_the_agent_at_once(site, kind):
    """`or the agent is told at once why not`."""
    async with site.caller(kind, tools=TOOLS) as caller:
        agent = await site.spawn(caller, f"sleep {POLL_GRACE + 0.3}\n{CALL}")
        own = OwnTime()
        outcome = await agent.outcome()
    assert outcome["is_error"]
    assert outcome["text"] == "caller myapp is not connected: it does not listen for events"
    assert own.ms_of(outcome["elapsed_ms"]) < 1000


@pytest.mark.whole
async def test_listening_under_another_caller_id_is_not_presence(site):
    """Presence is that of (principal, caller_id)."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token, tools=TOOLS) as caller,
        site.caller("http-auto", token=token, caller_id="bee") as bee,
    ):
        await bee.listen()
        agent = await site.spawn(caller, f"sleep {POLL_GRACE + 0.3}\n{CALL}")
        outcome = await agent.outcome()
        assert outcome["is_error"]
        assert bee.of("caller_tool_request") == []


async def test_a_newest_client_without_log_notifications_is_served_by_its_polls(site):
    """A caller that polls is served (bare HTTP, long poll of caller_listen)."""
    async with Silent(site.server.url, site.principal(), caller_id="myapp", tools=TOOLS) as caller:
        done = asyncio.Event()
        async with doing(poll(caller, done)):
            agent = await site.spawn(caller, f"{CALL}\nsleep 0.3\n{CALL}")
            outcomes = await agent.turn()
        assert [json.loads(outcomes[place])["structured"] for place in (0, 2)] == [{"sum": 3}] * 2
        requests = [event["request_id"] for event in caller.of("caller_tool_request")]
        assert len(requests) == len(set(requests)) == 2


async def test_the_official_client_without_a_log_callback_is_served_by_its_polls(site):
    """A caller that polls is served (official SDK)."""
    async with site.caller("sdk-auto", tools=TOOLS, events=False) as caller:
        done = asyncio.Event()
        async with doing(poll(caller, done)):
            agent = await site.spawn(caller, CALL)
            assert (await agent.outcome())["structured"] == {"sum": 3}


async def test_a_poller_is_not_taken_for_gone_between_its_polls(site):
    """A poller is present for its grace after its last poll."""
    async with Silent(
        site.server.url, site.principal(), caller_id="myapp", tools=TOOLS, answers=False
    ) as caller:
        page = await caller.call("caller_listen", caller_id="myapp", max_seconds=0)
        agent = await site.spawn(caller, CALL)
        await agent.event("caller_tool_request")
        page = await caller.call("caller_listen", caller_id="myapp", after=page["next"])
        requests = [e for e in page["events"] if e["type"] == "caller_tool_request"]
        while not requests:
            page = await caller.call("caller_listen", caller_id="myapp", after=page["next"])
            requests = [e for e in page["events"] if e["type"] == "caller_tool_request"]
        await caller.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=requests[0]["request_id"],
            result="by poll",
        )
        assert (await agent.outcome())["text"] == "by poll"


async def test_a_poller_that_stays_away_is_gone_after_its_grace(site):
    async with Silent(
        site.server.url, site.principal(), caller_id="myapp", tools=TOOLS, answers=False
    ) as caller:
        await caller.call("caller_listen", caller_id="myapp", max_seconds=0)
        own = OwnTime()
        agent = await site.spawn(caller, CALL)
        outcome = await agent.outcome()
    assert outcome["is_error"]
    assert outcome["text"].startswith("caller myapp is not connected")
    assert own.ms_of(outcome["elapsed_ms"]) < (POLL_GRACE + 1) * 1000


async def test_a_caller_that_reads_session_events_is_served(site, kind):
    """Long poll by `session_events wait_seconds`."""
    async with site.caller(kind, tools=TOOLS) as caller:
        agent = await site.spawn(caller, f"sleep {POLL_GRACE + 0.5}\n{CALL}")
        last, completed = -1, False
        async with asyncio.timeout(20):
            while not completed:
                page = await caller.call(
                    "session_events", session_id=agent.session_id, since_index=last, wait_seconds=9
                )
                last, completed = page["last_index"], page["completed"]
                for event in page["events"]:
                    caller.take(event)
        assert json.loads(page["final_response"])["structured"] == {"sum": 3}


# ---------------------------------------------------------------- killed and frozen


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("sdk-auto", "listen"),
        ("sdk-legacy", "listen"),
        ("http-auto", "listen"),
        ("http-legacy", "listen"),
        ("http-legacy", "get-stream"),
    ],
)
async def test_a_killed_caller_costs_the_agent_less_than_two_seconds(site, kind, how):
    """Kill -9 of the caller's process while its agent waits for it."""
    token = site.principal()
    async with (
        caller_process(site, token, kind, how) as process,
        site.caller("http-legacy" if how == "get-stream" else kind, token=token, tools=TOOLS) as me,
    ):
        if how == "get-stream":
            # The stream belongs to an MCP session: it is bound by a spawn in that session.
            await me.open_get_stream()
            me.answers = False
            agent = await site.spawn(me, CALL)
            await me.event("caller_tool_request")
            me.http.kill()
        else:
            agent = await site.spawn(me, CALL)
            await line_of(process, "caller_tool_request")
            process.kill()
        killed = OwnTime()
        outcome = await agent.outcome()
        assert killed.seconds() < 2.0
    assert outcome["is_error"]
    assert outcome["text"] == "caller myapp is not connected: it disconnected"


@pytest.mark.whole
@pytest.mark.parametrize("frozen", core(["http-legacy"], ["sdk-auto", "http-legacy"]))
async def test_a_frozen_caller_costs_no_other_caller_anything(site, frozen):
    """SIGSTOP while megabytes of events are on their way to it."""
    token = site.principal()
    async with (
        caller_process(site, token, frozen) as process,
        site.caller("http-auto", token=token, tools=TOOLS) as owner,
        site.caller("http-auto", token=token, caller_id="same", tools=TOOLS) as same,
        site.caller("http-auto", caller_id="other", tools=TOOLS) as other,
    ):
        await same.listen()
        await other.listen()
        process.send_signal(signal.SIGSTOP)
        flood = await site.spawn(owner, f"emit 300 100000\n{CALL}")
        for caller in (same, other):
            name = f"{caller.caller_id}_add"
            agent = await site.spawn(caller, f'repeat 50 call {name} {{"a": 1, "b": 2}}')
            own = OwnTime()
            outcome = await agent.outcome()
            assert outcome["errors"] == 0
            assert own.ms_of(sum(outcome["elapsed_ms"])) < 50 * 500
        # Its own agent is not held for long either: it takes nothing, so it is cut.
        outcome = json.loads((await flood.turn(timeout=3 * TURN))[-1])
        assert outcome["is_error"]
        assert outcome["text"].startswith("caller myapp is not connected")
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.whole
async def test_a_caller_that_never_reads_costs_no_other_caller_anything(site):
    """One that opens its stream and then reads nothing."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token, tools=TOOLS) as owner,
        site.caller("http-auto", caller_id="other", tools=TOOLS) as other,
    ):
        with deaf_listener(site, token):
            await other.listen()
            flood = await site.spawn(owner, f"emit 300 100000\n{CALL}")
            agent = await site.spawn(other, 'repeat 50 call other_add {"a": 1, "b": 2}')
            own = OwnTime()
            outcome = await agent.outcome()
            assert outcome["errors"] == 0
            assert own.ms_of(sum(outcome["elapsed_ms"])) < 50 * 500
            outcome = json.loads((await flood.turn(timeout=3 * TURN))[-1])  # 30 MB of events
            assert outcome["is_error"]
            assert outcome["text"].startswith("caller myapp is not connected")


@contextlib.contextmanager
def deaf_listener(site, token):
    """A listener of `myapp` that reads the head of its stream, and nothing after that."""
    caller = HttpCaller(site.server.url, token, caller_id="myapp")
    body = caller.message(
        "tools/call", {"name": "caller_listen", "arguments": {"caller_id": "myapp"}}
    )
    content = json.dumps(body).encode()
    head = {
        **caller.http.headers,
        "host": f"{caller.http.host}:{caller.http.port}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(content)),
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "caller_listen",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    with socket.create_connection((caller.http.host, caller.http.port), timeout=10) as link:
        link.sendall(f"POST {caller.http.path} HTTP/1.1\r\n{lines}\r\n".encode() + content)
        assert link.recv(100).startswith(b"HTTP/1.1 200")
        yield


# ---------------------------------------------------------------- durable


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["sdk-auto", "http-legacy"])
async def test_a_durable_tool_waits_for_its_caller(site, kind):
    """With `durable: true` the request waits for the caller, up to its deadline."""
    async with site.caller(kind, tools=TOOLS, durable=True) as caller:
        agent = await site.spawn(caller, f"sleep {POLL_GRACE + 0.3}\n{CALL}")
        await agent.event("caller_tool_request")
        # Long past every grace there is.
        with pytest.raises(TimeoutError):
            await agent.event("caller_tool_settled", timeout=1.0)
        await caller.listen()
        assert (await agent.outcome())["structured"] == {"sum": 3}


@pytest.mark.whole
async def test_a_durable_request_outlives_the_death_of_its_caller(site):
    token = site.principal()
    async with caller_process(site, token, "http-auto") as process:
        async with site.caller("http-auto", token=token, tools=TOOLS, durable=True) as owner:
            agent = await site.spawn(owner, CALL)
            await line_of(process, "caller_tool_request")
            process.kill()
            await process.wait()
        with pytest.raises(TimeoutError):
            await agent.event("caller_tool_settled", timeout=1.5)
        async with site.caller("http-auto", token=token, tools=TOOLS) as again:
            await again.listen()
            assert (await agent.outcome())["structured"] == {"sum": 3}
            assert again.of("caller_tool_request")[0]["redelivered"]
