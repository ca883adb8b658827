"""The client and the real host between them: pairing, refusal, a link that breaks, a host that ends."""

from __future__ import annotations

import json

import pytest

from oubliette.incontainer import wire
from tests.unit.incontainer.fake_server import ADD, RawAgent, config_line, config_params
from tests.unit.incontainer.hostclient import HostProcess

pytestmark = pytest.mark.anyio


def upstream(control):
    """A server's side of the session, which has sent its configuration."""
    link = control.upstream("gogol_1", "proj_1")
    link.send(wire.encode_json(config_line(config_params(ADD))))
    return link


def answer(link, result):
    request = json.loads(link.line())
    link.send(wire.encode_json({"jsonrpc": "2.0", "id": request["id"], "result": result}))
    return request


async def test_a_call_goes_through_the_host_and_survives_a_broken_upstream():
    with HostProcess() as host:
        control = host.control()
        control.expect("gogol_1", "s3cret", project="proj_1")
        async with RawAgent(host.socket) as agent:
            await agent.handshake()
            link = upstream(control)
            assert "ant_add" in await agent.tool_names()
            number = agent.call("ant_add", a=1)
            first = json.loads(link.line())
            link.close()
            link = upstream(control)
            again = answer(link, {"sum": 2})
            assert again["params"] == first["params"]
            assert (await agent.reply(number))["result"]["structuredContent"] == {"sum": 2}
            assert agent.notes == []
            code, stderr = await agent.end()
            assert code == 0
            assert "s3cret" not in stderr
            assert link.rest() == b""  # its end reached the server


async def test_a_wrong_secret_is_refused_and_the_agent_is_told_by_its_calls():
    with HostProcess() as host:
        control = host.control()
        control.expect("gogol_1", "s3cret", project="proj_1")
        upstream(control)
        async with RawAgent(host.socket, OUBLIETTE_PAIRING_SECRET="guessed") as agent:
            await agent.handshake()
            assert await agent.tool_names() == ["session_message", "session_map", "session_events"]
            code, stderr = await agent.end()
            assert code == 0
            assert "refused" in stderr
            assert "guessed" not in stderr


async def test_a_second_client_takes_over_when_the_first_has_gone():
    with HostProcess() as host:
        control = host.control()
        control.expect("gogol_1", "s3cret", project="proj_1")
        link = upstream(control)
        async with RawAgent(host.socket) as first:
            await first.handshake()
            assert "ant_add" in await first.tool_names()
            async with RawAgent(host.socket) as second:
                await second.handshake()
                assert await second.tool_names() == [
                    "session_message",
                    "session_map",
                    "session_events",
                ]
                await first.end()
                assert link.rest() == b""
                link = upstream(control)
                await second.note_of("notifications/tools/list_changed")
                number = second.call("ant_add")
                answer(link, "mine now")
                assert (await second.reply(number))["result"]["isError"] is False
