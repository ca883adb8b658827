"""Clients that know only the relay protocol's first form, beside a real server, in a real sandbox.

`bare_client.py` is such a client. It is started by the session's agent, in its container; the agent
has not started ours.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ToolFailed
from tests.system.wire_client import WireClient, place

pytestmark = pytest.mark.anyio

SETTINGS = {"relay.accept_bare": True}
PROGRAM = Path(__file__).with_name("bare_client.py").read_text()
OTHER = str(Path(__file__).with_name("bare_client.mjs"))


async def add(a: int, b: int) -> int:
    return a + b


async def refuse() -> None:
    raise ValueError("not today")


TOOLS = {"add": add, "refuse": refuse}


async def ran(site, agent, *steps: list[Any]) -> list[Any]:
    """What the client printed, line by line."""
    done = await agent.ask(await prompt(site, agent, *steps), timeout=90.0)
    assert done["exit_code"] == 0, done
    return [json.loads(line) for line in done["stdout"].splitlines()]


async def prompt(site, agent, *steps: list[Any]) -> str:
    """A prompt that runs the client, put into the workspace, with its script."""
    session, _ = place(site, agent.session_id)
    folder = (
        site.server.home / "projects" / session.project_id / "workspaces" / session.workspace_id
    )
    (folder / "bare_client.py").write_text(PROGRAM)
    script = folder / f"{agent.session_id}.script"
    script.write_text("".join(json.dumps(step) + "\n" for step in steps))
    socket = '"${OUBLIETTE_RELAY_SOCKET:-/mcp/relay.sock}"'
    return f"exec python3 bare_client.py {socket} {session.project_id} < {script.name}"


async def test_the_callers_tools_arrive_and_can_be_called(site) -> None:
    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        config, total, refused, unknown = await ran(
            site,
            agent,
            ["config"],
            ["call", "caller_tool", {"tool": "add", "arguments": {"a": 2, "b": 3}}],
            ["call", "caller_tool", {"tool": "refuse", "arguments": {}}],
            ["call", "caller_tool", {"tool": "nothing", "arguments": {}}],
        )
        assert config["caller_id"] == "myapp"
        assert {tool["name"] for tool in config["tools"]} == {"add", "refuse"}
        assert total == 5
        assert "not today" in refused["error"]
        assert "nothing" in unknown["error"]


async def test_a_child_is_spawned_followed_and_spoken_to_again(site) -> None:
    """The answer comes at once, with the child's id; the text is read from the events."""
    async with site.caller("http-auto", tools=TOOLS) as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        (first,) = await ran(site, agent, ["message", "say on its way\nsleep 1\nsay the answer"])
        assert first["spawned"] is True
        assert first["result"] == "the answer"
        assert first["answered_after"] < 5.0
        assert (await agent.get())["child_session_ids"] == [first["session_id"]]
        (again,) = await ran(site, agent, ["message", "say more", first["session_id"]])
        assert (again["session_id"], again["spawned"]) == (first["session_id"], False)
        assert again["result"] == "more"


async def test_a_child_that_fails_says_why(site) -> None:
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        failed, crashed = await ran(
            site, agent, ["message", "say x\nfail out of luck"], ["message", "crash 3"]
        )
        assert "out of luck" in failed["error"]
        assert crashed["error"]


async def test_oubliettes_own_tools_are_discovered_and_called_with_a_key(site) -> None:
    key = site.server.token("read")
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        tools, listed, forbidden, wrong, unknown = await ran(
            site,
            agent,
            ["call", "oubliette_tools", {"api_key": key}],
            ["call", "oubliette_call_tool", {"api_key": key, "tool": "project_list"}],
            ["call", "oubliette_call_tool", {"api_key": key, "tool": "project_create"}],
            ["call", "oubliette_tools", {"api_key": "oub_wrong"}],
            ["call", "no_such_method", {}],
        )
        assert "project_list" in {tool["name"] for tool in tools["tools"]}
        assert listed["isError"] is False
        assert site.project["id"] in listed["content"][0]["text"]
        assert forbidden["code"] == -32002
        assert wrong == {"error": "invalid or expired API key", "code": -32001}
        assert unknown == {"error": "Method not found: no_such_method", "code": -32601}


async def test_each_agents_client_gets_its_own_session_however_many_start_at_once(site) -> None:
    async with site.caller("http-auto") as caller:
        agents = [await site.spawn(caller, "say here") for _ in range(4)]
        for agent in agents:
            await agent.turn()
        prompts = [await prompt(site, agent, ["message", "say hi"]) for agent in agents]
        done = await asyncio.gather(
            *(agent.ask(text, timeout=90.0) for agent, text in zip(agents, prompts, strict=True))
        )
        for agent, each in zip(agents, done, strict=True):
            child = json.loads(each["stdout"])["session_id"]
            assert (await agent.get())["child_session_ids"] == [child]


async def test_a_bare_client_stands_beside_the_sessions_own(site) -> None:
    """Neither takes the other's link, and both hear of the caller's tools."""
    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, 'call myapp_add {"a": 1, "b": 1}')
        assert (await agent.outcome())["text"] == "2"
        steps = (
            ["config"],
            ["call", "caller_tool", {"tool": "add", "arguments": {"a": 1, "b": 2}}],
        )
        config, total = await ran(site, agent, *steps)
        assert config["caller_id"] == "myapp"
        assert total == 3
        assert (await agent.ask('call myapp_add {"a": 2, "b": 2}'))["text"] == "4"


async def test_a_client_with_a_secret_waits_for_its_answers_as_ever(site) -> None:
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            answer = await link.ask("session_message", {"message": "say x", "session_id": ""})
            assert (answer["result"], answer["spawned"]) == ("x", True)
            page = await link.ask("session_events", {"session_id": answer["session_id"]})
            (said,) = [each for each in page["events"] if each["type"] == "message"]
            assert (said["role"], said["text"]) == ("assistant", "x")


@pytest.mark.whole
@pytest.mark.requires("node")
async def test_a_client_in_another_language_does_all_of_it_side_by_side(site) -> None:
    """It was written from the protocol's description alone, and runs outside the container."""
    key = site.server.token("read")
    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        session, socket = place(site, agent.session_id)
        steps = [
            ["caller_tool", {"tool": "add", "arguments": {"a": 2, "b": 3}}],
            ["caller_tool", {"tool": "refuse"}],
            ["caller_tool", {"tool": "nothing", "arguments": {}}],
            ["oubliette_tools"],
            ["oubliette_call_tool", {"tool": "project_list"}],
            ["oubliette_call_tool", {"tool": "project_list", "arguments": {"limit": 0}}],
            ["oubliette_call_tool", {"tool": "project_create", "arguments": {"name": "no"}}],
            ["oubliette_tools", {"api_key": "oub_wrong"}],
            ["no_such_method", {}],
            ["message", "say on its way\nsleep 0.3\nsay the answer"],
            ["message", "say x\nfail out of luck"],
            ["session_message", {"session_id": ""}],
            ["session_events", {"session_id": "gogol_nobody"}],
            ["configs"],
        ]
        process = await asyncio.create_subprocess_exec(
            "node", OTHER, str(socket), session.project_id, key,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                script = "".join(json.dumps(step) + "\n" for step in steps)
                out, _ = await process.communicate(script.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        told = dict(json.loads(line) for line in out.splitlines())
        assert sorted(told) == list(range(len(steps)))
        total, refused, unknown, tools, listed, odd, forbidden, wrong, method = (
            told[n] for n in range(9)
        )
        assert total == 5
        assert "not today" in refused["error"]
        assert "nothing" in unknown["error"]
        assert "project_list" in {tool["name"] for tool in tools["tools"]}
        assert "project_create" not in {tool["name"] for tool in tools["tools"]}
        assert site.project["id"] in listed["content"][0]["text"]
        assert odd["isError"] is True
        assert "limit" in odd["content"][0]["text"]
        assert forbidden["code"] == -32002
        assert wrong == {"error": "invalid or expired API key", "code": -32001}
        assert method == {"error": "Method not found: no_such_method", "code": -32601}
        assert (told[9]["spawned"], told[9]["said"]) == (True, ["the answer"])
        assert "out of luck" in told[10]["error"]
        assert "message" in told[11]["error"]
        assert told[12]["error"]
        assert {told[9]["child"], told[10]["child"]} == set(
            (await agent.get())["child_session_ids"]
        )
        (config,) = told[13]
        assert config["caller_id"] == "myapp"
        assert {tool["name"] for tool in config["tools"]} == {"add", "refuse"}


async def dial(site, agent, header: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    _, socket = place(site, agent.session_id)
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(f"{header}\n".encode())
    return reader, writer


async def first_line(site, agent, header: str) -> str:
    reader, writer = await dial(site, agent, header)
    try:
        async with asyncio.timeout(20):
            return (await reader.readline()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_project_keeps_bare_clients_out(site) -> None:
    project = await site.new_project(accept_bare=False)
    assert project["accept_bare"] is False
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here", project_id=project["id"])
        await agent.turn()
        told = await first_line(site, agent, f"OUBLIETTE-DOWNSTREAM {project['id']}")
        assert told == "OUBLIETTE-ERROR a pairing secret is needed\n"


async def test_a_bare_client_meets_no_session_of_another_project(site) -> None:
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        reader, writer = await dial(site, agent, "OUBLIETTE-DOWNSTREAM proj_" + "0" * 26)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.readline()
        writer.close()
        told = await first_line(site, agent, f"OUBLIETTE-DOWNSTREAM {site.project['id']}")
        assert json.loads(told)["type"] == "caller_tools_config"


async def test_opening_a_project_is_the_operators_where_they_have_closed_it(zygote) -> None:
    from oubliette.testing.server import ServerProcess
    from tests.callers import HttpCaller

    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        async with HttpCaller(server.url, server.token("write")) as writer:
            with pytest.raises(ToolFailed, match=r"^accept_bare: relay\.accept_bare is off"):
                await writer.call("project_create", name="open", accept_bare=True)
            closed = await writer.call("project_create", name="closed", accept_bare=False)
            unset = await writer.call("project_create", name="unset")
            assert (closed["accept_bare"], unset["accept_bare"]) == (False, None)
        async with HttpCaller(server.url, server.token("admin")) as admin:
            project = await admin.call("project_create", name="open", accept_bare=True)
            assert project["accept_bare"] is True
