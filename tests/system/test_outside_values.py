"""Values that could not be stored or sent are refused where they enter, and make nobody deaf."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from oubliette.runtime.files.home import DATABASE
from oubliette.testing.server import ServerProcess
from tests.system.site import Site
from tests.system.wire_client import WireClient

pytestmark = [pytest.mark.anyio, pytest.mark.whole]

TOOLS = {"wait": lambda x=None: x}


async def test_a_call_with_an_integer_beyond_64_bits_is_refused_and_its_caller_goes_on(site):
    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, 'call myapp_wait {"x": 18446744073709551616}')
        outcome = await agent.outcome()
        assert outcome["is_error"]
        assert "arguments.x: an integer of more than 64 bits" in outcome["text"]
        again = await agent.ask('call myapp_wait {"x": 18446744073709551615}')
        assert json.loads(again["text"]) == 2**64 - 1
        await caller.event("caller_tool_request", session_id=agent.session_id)


async def test_what_an_agent_sends_by_its_link_is_refused_with_the_reason(site):
    def call(x: str) -> bytes:
        arguments = b'{"tool": "wait", "call_id": "%d", "arguments": {"x": %b}}'
        params = arguments % (len(x), x.encode())
        return b'{"jsonrpc": "2.0", "id": 7, "method": "caller_tool", "params": %b}' % params

    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            for bad, reason in (
                ("[" * 65 + "]" * 65, "nested deeper than 64 levels"),
                ("[" * 900 + "]" * 900, "nested deeper than 64 levels"),
                ("-9223372036854775809", "an integer of more than 64 bits"),
                ("9" * 5000, "an integer of more than 64 bits"),
                ('"\\ud800"', "is not valid Unicode"),
                ("1e400", "JSON has no NaN or Infinity"),
            ):
                await link.send_raw(call(bad))
                answer = await link.receive()
                while answer.get("id") != 7:
                    answer = await link.receive()
                assert answer["error"]["code"] == -32602
                assert reason in answer["error"]["message"]
            await link.send_raw(call("[" * 64 + "]" * 64))
            while "result" not in (answer := await link.receive()):
                assert "error" not in answer
        asked = await caller.event("caller_tool_request", session_id=agent.session_id)
        assert json.dumps(asked["arguments"]["x"]) == "[" * 64 + "]" * 64


async def test_an_event_of_an_old_database_that_cannot_be_sent_comes_by_reference(zygote):
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        key = server.token("write")
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with site.caller("http-auto", token=key, tools=TOOLS) as caller:
                await caller.listen()
                agent = await site.spawn(caller, 'call myapp_wait {"x": 5}')
                await agent.outcome()
        await server.stop()
        with contextlib.closing(sqlite3.connect(server.home / DATABASE)) as database, database:
            changed = database.execute(
                "UPDATE events SET data = replace(data, '\"x\":5', '\"x\":18446744073709551616')"
                " WHERE type IN ('caller_tool_request', 'tool_call')"
            )
            assert changed.rowcount == 2
        await server.start()
        site = Site(server)
        async with site.caller("http-auto", token=key) as caller:
            await caller.listen(after=0, observe=True)
            called = await caller.event("tool_call")
            assert called["ref"] == {"session_id": agent.session_id, "index": called["index"]}
            assert (await caller.whole(called))["arguments"] == {"x": 2**64}
            await caller.event("completion")
            page = await caller.call("session_events", session_id=agent.session_id)
            assert [each["type"] for each in page["events"] if "ref" in each] == [
                "tool_call",
                "caller_tool_request",
            ]
            await caller.call("session_message", session_id=agent.session_id, message="say b")
            await caller.event("completion", after=caller.events.index(called) + 2)
