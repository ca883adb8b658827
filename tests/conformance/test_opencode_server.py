"""The real `opencode serve` behind its bridge, where no engine matters: retries, aborts, doors.

What every agent has to do on every engine is in `test_agent_turns.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from oubliette.runtime.agents import AgentEvent, AgentSession, OpencodeRuntime
from oubliette.runtime.containers import Inside
from oubliette.runtime.containers.process import procfs
from oubliette.runtime.zipapp import zipapp_path
from oubliette.testing.model_server import ModelServer
from tests import requirements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("opencode"),
    pytest.mark.timeout(300),
]

SECONDS = 120.0  # for whatever is waited for; far more than it ever takes
MCP = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "tools": [],
                  "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class Direct:
    """A bridge that is our own child, and the adapter that talks to it."""

    def __init__(self, home: Path, model: ModelServer, **fields: Any) -> None:
        self.runtime = OpencodeRuntime(
            {
                "path": requirements.program("opencode"),
                "model": "scripted",
                "base_url": model.url,
                "context_tokens": 10_000_000,
            }
        )
        self.session = AgentSession(
            session_id="gogol_1",
            project_id="proj_1",
            depth=0,
            cwd="/workspace",
            home="/home/agent/gogol_1",
            pairing_secret="secret",
            **fields,
        )
        (home / "work").mkdir(parents=True, exist_ok=True)
        self.inside = Inside(
            python=sys.executable,
            zipapp=str(zipapp_path()),
            relay_socket="/nonexistent",
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            places={"/workspace": str(home / "work"), "/home/agent/gogol_1": str(home)},
        )
        self.adapter = self.runtime.adapter(self.session, self.inside)
        self.events: list[AgentEvent] = []
        self.command = [sys.executable, "-c", MCP]
        self.stderr = home / "stderr"
        self._offset = 0
        self._turn = 0
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Direct:
        command = self.runtime.command(self.session, self.inside)
        settings = json.loads(command.env["OPENCODE_CONFIG_CONTENT"])
        settings["mcp"]["oubliette"]["command"] = self.command
        env = {**command.env, "OPENCODE_CONFIG_CONTENT": json.dumps(settings)}
        with self.stderr.open("wb") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=env,
                cwd=command.cwd,
                limit=1 << 24,
            )
        self._answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(SECONDS):
            await self.process.communicate()

    def _answer(self) -> None:
        for frame in self.adapter.writes():
            self.write(frame)

    def write(self, frame: bytes | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame or b"")

    async def read(self) -> list[AgentEvent]:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, (self.events, self.stderr.read_text())
        found = self.adapter.feed(line, self._offset)
        self._offset += len(line)
        self.events += found
        self._answer()
        return found

    async def until(self, kind: str, /, **fields: Any) -> AgentEvent:
        async with asyncio.timeout(SECONDS):
            while True:
                for event in await self.read():
                    if event.type == kind and fields.items() <= event.data.items():
                        return event

    def prompt(self, text: str) -> int:
        self._turn += 1
        self.write(self.adapter.prompt(self._turn, text))
        return self._turn

    async def turn(self, text: str) -> dict[str, Any]:
        self.prompt(text)
        return (await self.until("completion")).data

    def server(self) -> procfs.HostProcess:
        """The program that the bridge has started."""
        (found,) = [
            process
            for pid in procfs.pids()
            if procfs.command_line(pid)[1:2] == ["serve"]
            and (process := procfs.identify(pid)) is not None
            and parent_of(pid) == self.process.pid
        ]
        return found


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"PPid:\s+(\d+)", status)[1])  # type: ignore[index]


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses (in the kernel's hexadecimal) and ports that a process listens on."""
    inodes = {
        target[8:-1]
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if (target := str(fd.readlink())).startswith("socket:[")
    }
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    found = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return [(address, int(port, 16)) for address, port in found]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as started:
        yield started


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opencode")


async def test_an_abort_of_the_very_first_turn_harms_no_later_one(
    home: Path, model: ModelServer
) -> None:
    """OpenCode keeps what an abort does to its set-up, unless that is over before."""
    async with Direct(home, model) as direct:
        await direct.until("ready")
        for event in ("turn_started", None, "delta"):
            turn = direct.prompt("slow 1000")
            if event:
                await direct.until(event)
            direct.write(direct.adapter.interrupt(turn))
            ended = (await direct.until("completion")).data
            assert (ended["turn"], ended["status"]) == (turn, "interrupted")
            assert (await direct.turn("say still here"))["final_text"] == "still here"


async def test_failures_of_the_model_are_shown_until_it_answers_or_is_interrupted(
    home: Path, model: ModelServer
) -> None:
    async with Direct(home, model) as direct:
        await direct.until("ready")
        done = await direct.turn("fail 1 503 busy\nusage 1000 20\nsay at last")
        assert (done["status"], done["final_text"]) == ("completed", "at last")
        (retry,) = [e.data for e in direct.events if e.data.get("type") == "retry"]
        assert (retry["attempt"], retry["message"]) == (1, "busy")
        (used,) = [event.data for event in direct.events if event.type == "usage"]
        assert (used["input_tokens"], used["output_tokens"]) == (1000, 20)
        turn = direct.prompt("error 503 away")
        await direct.until("system", type="retry", attempt=2)
        direct.write(direct.adapter.interrupt(turn))
        assert (await direct.until("completion")).data["status"] == "interrupted"
        done = await direct.turn("error 400 no such model")
        assert (done["status"], done["final_text"]) == ("failed", "no such model")
        assert (await direct.turn("say still here"))["final_text"] == "still here"


async def test_nobody_gets_in_without_the_password_and_nothing_listens_to_the_outside(
    home: Path, model: ModelServer
) -> None:
    async with Direct(home, model) as direct:
        await direct.until("ready")
        server = direct.server()
        ((address, port),) = listening(server.pid)
        assert address == "0100007F"  # 127.0.0.1
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for path in ("/global/health", "/session", "/event", "/doc"):
                assert (await client.get(path)).status_code == 401
            assert (await client.post("/session", auth=("opencode", "x"))).status_code == 401
        assert "PASSWORD" not in " ".join(procfs.command_line(server.pid))


async def test_a_session_without_our_mcp_server_fails_with_opencodes_reason(
    home: Path, model: ModelServer
) -> None:
    direct = Direct(home, model)
    direct.command = ["/nonexistent/python"]
    async with direct, asyncio.timeout(SECONDS):
        while direct.adapter.failed is None:
            await direct.read()
    assert "did not connect to the MCP server of Oubliette" in direct.adapter.failed
    assert "ENOENT" in direct.adapter.failed
    assert direct.events == []


async def test_a_conversation_that_is_lost_is_said_to_be_and_begun_anew(
    home: Path, model: ModelServer
) -> None:
    async with Direct(home, model, agent_session_id="ses_nowhere") as direct:
        lost = await direct.until("system", kind="not_resumed")
        assert "ses_nowhere" in lost.data["reason"]
        ready = await direct.until("ready")
        assert ready.data["resumed"] is False
        assert (await direct.turn("say hello"))["final_text"] == "hello"
    known = ready.data["agent_session_id"]
    async with Direct(home, model, agent_session_id=known) as again:
        assert (await again.until("ready")).data["resumed"] is True
        assert "say hello" in (await again.turn("history"))["final_text"]
