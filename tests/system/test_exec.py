"""Commands in a container as a person and a program use them: a terminal, pipes, a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
from typing import TYPE_CHECKING, Any

import pexpect
import pyte
import pytest

from oubliette.incontainer import wire
from tests.web_socket import command_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.site import Agent, Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SECONDS = 120.0


class Terminal:
    """`oubliette exec` with a person at its terminal."""

    def __init__(self, site: Site, words: tuple[str, ...], rows: int, columns: int) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "oubliette.cli.main", "exec", *words],
            env={**os.environ, "OUBLIETTE_HOME": str(site.server.home), "TERM": "xterm"},
            timeout=SECONDS,
            dimensions=(rows, columns),
        )
        self.child.delaybeforesend = None
        self.child.logfile_read = self
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.mode = termios.tcgetattr(self.child.child_fd)

    def write(self, data: bytes) -> None:
        self._stream.feed(data)

    def flush(self) -> None:
        """What pexpect asks of a log."""

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]

    async def sees(self, text: str) -> None:
        await asyncio.to_thread(self.child.expect_exact, text)

    async def types(self, text: str) -> None:
        await asyncio.to_thread(self.child.send, text)

    async def ended(self) -> int:
        """Its exit code; the mode of the terminal is that of before."""
        await asyncio.to_thread(self.child.expect, pexpect.EOF)
        assert termios.tcgetattr(self.child.child_fd) == self.mode
        await asyncio.to_thread(self.child.wait)
        return int(self.child.exitstatus)


@contextlib.contextmanager
def terminal(site: Site, *words: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    made = Terminal(site, words, rows, columns)
    try:
        yield made
    finally:
        made.child.close(force=True)


@pytest.fixture
async def agent(site: Site) -> Agent:
    spawned = await site.eyes.call(
        "session_spawn", project_id=site.project["id"], prompt="say hello", new_session=True
    )
    made = site.agent(spawned["session_id"])
    await made.turn()
    return made


async def test_a_person_works_in_the_container_of_a_session(site, agent):
    words = ("-it", agent.session_id, "env", "PS1=> ", "sh")
    with terminal(site, *words, rows=30, columns=100) as person:
        await person.sees("> ")
        await person.types("stty size; echo $TERM; basename $PWD\r")
        await person.sees("30 100")
        await person.sees("> ")
        session = await agent.get()
        assert person.lines[1:4] == ["30 100", "xterm", session["workspace_id"]]
        await person.types("trap 'stty size' WINCH; echo set\r")
        await person.sees("set\r\n> ")
        person.child.setwinsize(40, 120)
        await person.types("\r")
        await person.sees("40 120")
        await person.types("sh -c 'echo be''gun; exec sleep 600'\r")
        await person.sees("begun\r\n")  # the key is for the program, and not for the shell before
        await person.types("\x03")
        await person.sees("> ")
        await person.types("exit 5\r")
        assert await person.ended() == 5


@pytest.mark.whole
async def test_ctrl_z_stops_a_program_of_the_shell_and_ctrl_d_ends_the_shell(site):
    with terminal(site, "-it", "shared", "env", "PS1=> ", "sh") as person:
        await person.sees("> ")
        await person.types("sh -c 'echo be''gun; exec sleep 600'\r")
        await person.sees("begun\r\n")
        await person.types("\x1a")
        await person.sees("Stopped")
        await person.types("kill -KILL %1; wait\r")
        await person.sees("> ")
        await person.types("\x04\x04")
        assert await person.ended() in {0, 137}


@pytest.mark.whole
async def test_output_and_exit_code_are_those_of_the_command(site, oubliette):
    done = await oubliette("exec", "shared", "sh", "-c", "echo out; echo err >&2; cat; exit 3")
    assert done == (3, "out\n", "err\n")
    done = await oubliette("exec", "shared", "--", "sh", "-c", "kill -TERM $$")
    assert done.code == 128 + signal.SIGTERM
    text = "line\n" * 100_000
    done = await oubliette("exec", "-i", "shared", "cat", stdin=text)
    assert (done.code, done.out == text) == (0, True)
    done = await oubliette("exec", "-w", "/tmp", "shared", "pwd")
    assert done.code == 0
    assert done.out != (await oubliette("exec", "shared", "pwd")).out


@pytest.mark.whole
async def test_what_is_asked_wrongly_is_refused_with_a_remedy(site, oubliette):
    refused = await oubliette("exec", "-it", "shared", "sh")
    assert refused.code == 2
    assert "leave -t out" in refused.err
    refused = await oubliette("exec", "nothing-like-it", "sh")
    assert refused.code == 3
    assert "neither a session nor a project" in refused.err
    refused = await oubliette("exec", "shared", "no-such-program")
    assert refused.code == 1
    assert "no-such-program" in refused.err


TRAP = "exec 9>lock; flock 9; trap 'echo hung up >gone; exit' HUP; echo ready; sleep 600 & wait"


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_a_client_that_is_killed_hangs_its_command_up(site, oubliette, number):
    await oubliette("exec", "shared", "rm", "-f", "gone")
    with terminal(site, "-it", "shared", "sh", "-c", TRAP) as person:
        await person.sees("ready")
        person.child.kill(number)
        if number != signal.SIGKILL:
            assert await person.ended() == 130
        after = await oubliette("exec", "shared", "flock", "lock", "cat", "gone")
        assert after.out == "hung up\n"  # the lock is free once all of it has ended


@pytest.mark.whole
async def test_a_command_ends_with_its_session_and_with_its_container(site, agent):
    with terminal(site, "-it", agent.session_id, "sh", "-c", "echo ready; sleep 600") as person:
        await person.sees("ready")
        await agent.end()
        await person.sees("the session has ended")
        assert await person.ended() == 1
    with terminal(site, "-it", "shared", "sh", "-c", "echo ready; exec sleep 600") as person:
        await person.sees("ready")
        await site.eyes.call("container_stop", project_id=site.project["id"], force=True)
        assert await person.ended() in {1, 128 + signal.SIGTERM}


@pytest.mark.whole
async def test_a_program_runs_a_command_with_a_key_that_may_write(site):
    wanted: dict[str, Any] = {
        "project_id": site.project["id"],
        "command": ["sh", "-c", "stty size; read x; echo got $x; stty size; exit 4"],
        "terminal": {"rows": 24, "cols": 80},
    }
    async with command_socket(site.server.url, site.server.token("read")) as socket:
        assert (await socket.ask(**wanted))["error"]["code"] == "forbidden"
    key = site.server.token("write", principal="program")
    async with command_socket(site.server.url, key) as socket:
        assert await socket.ask(**wanted) == {"ok": {}}
        await socket.sees(b"24 80\r\n")
        socket.send(wire.RESIZE, 50 << 16 | 132)
        socket.send(wire.STDIN, 1, b"it\r")
        assert await socket.end() == {"code": 4, "signal": None}
        assert socket.out.endswith(b"got it\r\n50 132\r\n")
