"""`oubliette-client` as a process: how it starts, ends, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from oubliette.incontainer import wire
from oubliette.incontainer.client.settings import DEFAULT_SOCKET, Settings
from tests.unit.incontainer.fake_server import (
    ADD,
    CLIENT,
    ROOT,
    SECONDS,
    FakeServer,
    LineProcess,
    RawAgent,
    environment,
)

pytestmark = pytest.mark.anyio


async def test_the_end_of_stdin_cancels_what_runs_and_ends_the_client():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        agent.call("ant_add")
        request = await link.request()
        assert await agent.end() == (0, "")
        cancelled = await link.receive()
        assert cancelled["params"] == {"requestId": request["id"]}
        assert await link.ended() == b""


async def test_sigterm_ends_it_cleanly_too():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exited() == (0, "")


async def test_sigint_is_meant_for_the_agent_and_ignored():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        agent.process.send_signal(signal.SIGINT)
        assert (await agent.ask("ping"))["result"] == {}


async def test_an_agent_that_closes_its_end_of_stdout_ends_the_client():
    async with FakeServer(ADD) as server:
        reader, writer = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *CLIENT,
            env=environment(server.path),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=writer,
        )
        os.close(writer)
        os.close(reader)
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0
        process.stdin.close()
        process._transport.close()


async def test_a_list_that_waits_is_answered_before_the_client_ends():
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        number = agent.start("tools/list")
        agent.stdin.close()
        assert len((await agent.reply(number))["result"]["tools"]) == 3


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({"OUBLIETTE_PROJECT_ID": None}, "OUBLIETTE_PROJECT_ID"),
        ({"OUBLIETTE_SESSION_ID": None}, "OUBLIETTE_SESSION_ID"),
        ({"OUBLIETTE_PROJECT_ID": "a b"}, "OUBLIETTE-DOWNSTREAM"),
        ({"OUBLIETTE_PAIRING_SECRET": "x\ny"}, "OUBLIETTE-DOWNSTREAM"),
        ({"OUBLIETTE_SESSION_ID": "x" * 300}, "OUBLIETTE-DOWNSTREAM"),
    ],
)
async def test_an_environment_that_no_header_can_carry_is_refused_with_exit_code_2(missing, named):
    async with LineProcess(CLIENT, environment("/tmp/none.sock", **missing)) as client:
        code, stderr = await client.exited()
        assert code == 2
        assert named in stderr


def test_secrets_leave_the_environment_when_they_are_read():
    environ = {
        "OUBLIETTE_PROJECT_ID": "p",
        "OUBLIETTE_SESSION_ID": "s",
        "OUBLIETTE_PAIRING_SECRET": "x",
        "OUBLIETTE_API_KEY": "k",
        "OUBLIETTE_DEPTH": "2",
    }
    settings = Settings(environ, [])
    assert (settings.api_key, settings.header) == ("k", wire.Downstream("p", "s", "x"))
    assert settings.socket == DEFAULT_SOCKET
    assert environ == {
        "OUBLIETTE_PROJECT_ID": "p",
        "OUBLIETTE_SESSION_ID": "s",
        "OUBLIETTE_DEPTH": "2",
    }


def test_secrets_leave_the_environment_even_when_it_is_refused():
    environ = {"OUBLIETTE_PAIRING_SECRET": "x", "OUBLIETTE_API_KEY": "k"}
    with pytest.raises(wire.WireError):
        Settings(environ, [])
    assert environ == {}


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [(["/a"], "/b", "/a"), ([], "/b", "/b"), ([], None, DEFAULT_SOCKET)],
)
def test_the_socket_is_named_by_argument_then_variable_then_default(arguments, variable, expected):
    environ = {"OUBLIETTE_PROJECT_ID": "p"}
    if variable:
        environ["OUBLIETTE_RELAY_SOCKET"] = variable
    assert Settings(environ, arguments).socket == expected


def test_without_a_secret_the_header_is_the_seeds_bare_one():
    settings = Settings({"OUBLIETTE_PROJECT_ID": "p", "OUBLIETTE_SESSION_ID": "s"}, [])
    assert settings.header == wire.Downstream("p")


async def test_what_else_prints_goes_to_stderr_and_what_else_reads_gets_nothing():
    code = (
        "import os, sys; from oubliette.incontainer.client import main, mcp_server\n"
        "plain = mcp_server.StdioMcpServer.line\n"
        "def line(self, data):\n"
        "    print('stray', flush=True); os.system('echo child; cat'); return plain(self, data)\n"
        "mcp_server.StdioMcpServer.line = line\n"
        "sys.exit(main.main([]))"
    )
    async with (
        FakeServer() as server,
        LineProcess([sys.executable, "-c", code], environment(server.path)) as agent,
    ):
        agent.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert await agent.receive() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert await agent.end() == (0, "stray\nchild\n")


async def test_an_agent_that_does_not_read_gets_everything_later():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        agent.stdout._transport.pause_reading()  # as an agent that is busy would
        numbers = [agent.call("ant_add", a=a) for a in range(60)]
        requests = [await link.request() for _ in numbers]
        text = "x" * (1 << 20)
        for request in requests:
            link.answer(request, text)
        agent.stdout._transport.resume_reading()
        for number in numbers:
            assert (await agent.reply(number))["result"]["content"][0]["text"] == text


async def test_a_relay_that_does_not_read_holds_the_agent_back_and_loses_nothing():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.writer.transport.pause_reading()
        text = "x" * (1 << 20)
        for a in range(60):
            agent.call("ant_add", a=a, text=text)
        link.writer.transport.resume_reading()
        for a in range(60):
            request = await link.request()
            assert request["params"]["arguments"] == {"a": a, "text": text}
            link.answer(request, a)
            await agent.reply(a + 3)


def test_it_reads_a_file_as_well_as_a_pipe(tmp_path):
    given, found = tmp_path / "in", tmp_path / "out"
    given.write_text('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    with given.open("rb") as stdin, found.open("wb") as stdout:
        done = subprocess.run(
            CLIENT,
            stdin=stdin,
            stdout=stdout,
            env=environment("/tmp/none.sock"),
            cwd=ROOT,
            timeout=10,
            check=False,
        )
    assert done.returncode == 0
    assert found.read_text() == '{"jsonrpc":"2.0","id":1,"result":{}}\n'


def test_it_survives_having_nothing_to_read_and_nowhere_to_write():
    done = subprocess.run(
        CLIENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment("/tmp/none.sock"),
        cwd=ROOT,
        timeout=10,
        check=False,
    )
    assert done.returncode == 0


async def test_a_stderr_that_nobody_reads_does_not_stop_it():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    try:
        process = await asyncio.create_subprocess_exec(
            *CLIENT,
            env=environment("/tmp/none.sock"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=writer,
        )
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        async with asyncio.timeout(SECONDS):
            assert await process.stdout.readline()
            process.stdin.close()
            assert await process.wait() == 0
        process._transport.close()
    finally:
        os.close(reader)
        os.close(writer)
