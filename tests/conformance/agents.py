"""The agents that the suite is run against.

An agent joins by one entry in `AGENTS`: its runtime, a transcript of what such an agent says (as it
was really said), and how its prompts are phrased where a test needs it to do something.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from oubliette import ids
from oubliette.runtime.agents import (
    AcpRuntime,
    AgentRuntime,
    AgentSession,
    DroidRuntime,
    OpencodeAcpRuntime,
    OpencodeRuntime,
    ScriptedRuntime,
)
from oubliette.runtime.containers import Inside
from oubliette.runtime.containers.docker.client import Engine as DockerEngine
from oubliette.runtime.containers.host_paths import make_owned
from tests import requirements
from tests.conformance.engines import ENGINES, SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oubliette.runtime.agents import AgentAdapter, AgentEvent, Executor
    from tests.conformance.engines import Bench, Engine, Running

SCRIPTED_TRANSCRIPT = (
    b'{"type": "ready", "turn": 0, "agent": "scripted", "version": "0.1.0"}\n'
    b'{"type": "turn_started", "turn": 1}\n'
    b'{"type": "delta", "turn": 1, "text": "h\xc3\xa9"}\n'
    b'{"type": "tool_call", "turn": 1, "call_id": "c1", "tool": "weather", "arguments": {"a": 1}}\n'
    b'{"type": "tool_result", "turn": 1, "call_id": "c1", "tool": "weather", "is_error": false,'
    b' "result": {"content": []}}\n'
    b'{"type": "permission_request", "turn": 1, "request_id": "r1", "text": "may I?"}\n'
    b'{"type": "usage", "turn": 1, "cost_usd": 0.5, "tokens": 12}\n'
    b"Segmentation fault (core dumped)\n"
    b"\n"
    b'{"type": "news", "turn": 1, "of": "a later release"}\n'
    b'{"type": "error", "turn": 1, "message": "what went wrong"}\n'
    b'{"type": "message", "turn": 1, "text": "done"}\n'
    b'{"type": "completion", "turn": 1, "final_text": "done", "status": "completed"}\n'
    b'{"type": "completion", "turn": "one", "final_text": 1, "status": "whatever"}\n'
    b"[1, 2]\n\xff\xfe\n"
)


@dataclass(frozen=True)
class Agent:
    name: str
    runtime: Callable[[], AgentRuntime]
    transcript: bytes
    kinds: tuple[str, ...]
    """The kinds of the transcript's events, in order."""
    say: Callable[[str], str]
    """A prompt that is answered by exactly this text."""
    wait: str
    """A prompt that takes very long and can be interrupted."""
    ask: str
    """A prompt that asks for permission."""
    crash: str
    """A prompt at which the process ends."""
    remember: tuple[str, str, str]
    """A prompt to keep something, one to recall it, and what is then said."""
    requires: str | None = None
    models: bool = False
    """It talks to a model, which its container has to reach."""
    asks: dict[str, Any] = field(default_factory=dict)
    """Fields of a session whose agent asks for permission."""
    opening: bytes = b""
    """Output that ends the handshake."""
    seconds: float = SECONDS
    """For whatever it is waited for; far more than it ever takes."""
    engines: tuple[str, ...] | None = None
    """Where it runs the suite, if that is less than others of its kind do."""
    in_full: bool = True
    """Runs more than what is essential, on the engines that have that."""
    resumes: bool = True
    """A new process goes on where an ended one stopped."""

    async def start(self, bench: Bench) -> Running:
        """A container that it can run in."""
        spec = bench.spec(**({"network": network_of(bench)} if self.models else {}))
        mounts = (*spec.mounts, *self.runtime().mounts)
        return await bench.start(msgspec.structs.replace(spec, mounts=mounts))

    async def runtime_in(self, running: Running) -> AgentRuntime:
        """For that container, from where its model is reached."""
        runtime = self.runtime()
        if self.models and running.spec.network == "bridge":
            await runtime.initialize({"base_url": model_url(gateway())})
        return runtime

    def adapter(self, state: Any = None) -> AgentAdapter:
        """For a session that is nobody's."""
        session = AgentSession(
            session_id="gogol_1",
            project_id="proj_1",
            depth=0,
            cwd="/workspace",
            home="/home/agent/gogol_1",
            pairing_secret="secret",
            autonomy="ask",
        )
        return self.runtime().adapter(session, Inside(), state)


SLOW = 150.0
"""Seconds for a real agent. On a busy machine a container gets one process's share of it."""
WIRE = Path(__file__).parent / "wire"
"""What agents really said, as it was recorded."""


def network_of(bench: Bench) -> str:
    """One that leads to the model: the machine's loopback, or from a machine of its own the bridge."""
    return "host" if bench.runtime.capabilities.network_host else "bridge"


def gateway() -> str:
    """This machine's address on docker's bridge: nobody else can reach it there."""
    api = DockerEngine("docker").connect()
    try:
        # Its network names a gateway from dockerd's second start on a machine on, not at the first.
        interface = api.inspect_network("bridge")["Options"]["com.docker.network.bridge.name"]
        addresses = psutil.net_if_addrs()[interface]
        return next(each.address for each in addresses if each.family == socket.AF_INET)
    finally:
        api.close()


@functools.cache
def model_url(host: str = "127.0.0.1") -> str:
    """A scripted model for real agents, until this process ends."""
    command = [sys.executable, "-m", "oubliette.testing.model_server", "--host", host]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    atexit.register(program.kill)
    assert program.stdout is not None
    return json.loads(program.stdout.readline())["url"]


def opencode_config() -> dict[str, Any]:
    config: dict[str, Any] = {"model": "scripted", "context_tokens": 10_000_000}
    if requirements.missing("opencode") is None:
        config |= {"path": requirements.program("opencode"), "base_url": model_url()}
    return config


def opencode() -> OpencodeRuntime:
    return OpencodeRuntime(opencode_config())


def opencode_acp() -> OpencodeAcpRuntime:
    return OpencodeAcpRuntime(opencode_config())


def acp() -> AcpRuntime:
    """OpenCode again, as an agent of which nothing is known but its command line: `[acp]`."""
    config: dict[str, Any] = {"command": ["opencode", "acp"]}
    if requirements.missing("opencode") is None:
        options = {"baseURL": model_url(), "apiKey": "none"}
        limit = {"context": 10_000_000, "output": 32_000}
        models = {"scripted": {"name": "scripted", "tool_call": True, "limit": limit}}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
        settings = {
            "autoupdate": False,
            "provider": {"here": provider},
            "enabled_providers": ["here"],
            "model": "here/scripted",
            "small_model": "here/scripted",
            "permission": {"*": "ask"},
        }
        config |= {
            "path": requirements.program("opencode"),
            "env": [
                f"OPENCODE_CONFIG_CONTENT={json.dumps(settings)}",
                "OPENCODE_DISABLE_MODELS_FETCH=1",
                "OPENCODE_DISABLE_AUTOUPDATE=1",
            ],
        }
    runtime = AcpRuntime()
    with contextlib.suppress(StopIteration):
        runtime.initialize(config).send(None)  # it waits for nothing
    return runtime


def droid() -> DroidRuntime:
    config: dict[str, Any] = {"model": "scripted"}
    if requirements.missing("droid") is None:
        config |= {"path": requirements.program("droid"), "base_url": model_url()}
    return DroidRuntime(config)


CMDLINES = "/proc/[0-9]*/cmdline"


def execute(command: str) -> str:
    """Arguments of Droid's tool that runs commands."""
    risk = {"riskLevel": "low", "riskLevelReason": "a test"}
    return json.dumps({"command": command, "summary": "a test", "timeout": 100, **risk})


AGENTS = [
    Agent(
        name="scripted",
        runtime=ScriptedRuntime,
        transcript=SCRIPTED_TRANSCRIPT,
        kinds=(
            "ready turn_started delta tool_call tool_result permission_request usage system system"
            " error message completion system system system"
        ).split(" "),  # type: ignore[arg-type]
        say=lambda text: f"say {text}",
        wait="sleep 1000",
        ask="ask may I go on?",
        crash="crash 3",
        remember=("remember colour blue", "recall colour", "blue"),
    ),
    Agent(
        name="opencode",
        runtime=opencode,
        transcript=(WIRE / "opencode.jsonl").read_bytes(),
        kinds=tuple((WIRE / "opencode.kinds").read_text(encoding="utf-8").split()),
        opening=b"".join((WIRE / "opencode.jsonl").read_bytes().splitlines(True)[:5]),
        say=lambda text: f"say {text}",
        wait="slow 1000",
        ask='call bash {"command": "echo allow", "description": "says something"}',
        crash='call bash {"command": "kill -9 $PPID", "description": "ends its parent"}',
        remember=("say the colour is blue", "history", "blue"),
        requires="opencode",
        models=True,
        asks={"autonomy": "ask"},
        seconds=SLOW,
    ),
    Agent(
        name="opencode-acp",
        runtime=opencode_acp,
        transcript=(WIRE / "opencode_acp.jsonl").read_bytes(),
        kinds=tuple((WIRE / "opencode_acp.kinds").read_text(encoding="utf-8").split()),
        opening=b"".join((WIRE / "opencode_acp.jsonl").read_bytes().splitlines(True)[:2]),
        say=lambda text: f"say {text}",
        wait="slow 1000",
        ask='call bash {"command": "echo allow", "description": "says something"}',
        crash='call bash {"command": "kill -9 $PPID", "description": "ends its parent"}',
        remember=("say the colour is blue", "history", "blue"),
        requires="opencode",
        models=True,
        asks={"autonomy": "ask"},
        seconds=SLOW,
    ),
    Agent(
        name="acp",
        runtime=acp,
        transcript=(WIRE / "opencode_acp.jsonl").read_bytes(),
        kinds=tuple((WIRE / "opencode_acp.kinds").read_text(encoding="utf-8").split()),
        opening=b"".join((WIRE / "opencode_acp.jsonl").read_bytes().splitlines(True)[:2]),
        say=lambda text: f"say {text}",
        wait="slow 1000",
        ask='call bash {"command": "echo allow", "description": "says something"}',
        crash='call bash {"command": "kill -9 $PPID", "description": "ends its parent"}',
        remember=("say the colour is blue", "history", "blue"),
        requires="opencode",
        models=True,
        asks={"autonomy": "ask"},
        seconds=SLOW,
        engines=("process",),
        in_full=False,
    ),
    Agent(
        name="droid",
        runtime=droid,
        transcript=(WIRE / "droid.jsonl").read_bytes(),
        kinds=tuple((WIRE / "droid.kinds").read_text(encoding="utf-8").split()),
        opening=b"".join((WIRE / "droid.jsonl").read_bytes().splitlines(True)[:4]),
        say=lambda text: f"say {text}",
        wait="slow 1000",
        ask=f"call Execute {execute('echo allow')}",
        crash=f"call Execute {execute(f'kill -9 $(grep -l stream-json[r]pc {CMDLINES} | cut -d/ -f3)')}",
        remember=("say the colour is blue", "history", "blue"),
        requires="droid",
        models=True,
        asks={"autonomy": "ask"},
        seconds=SLOW,
    ),
]


IN_FULL = ("process",)
"""Engines on which real agents run the whole suite."""
IN_ESSENCE = ("docker", "podman", "apple")
"""Engines on which they run what is marked as essential: a real program takes seconds to start, and
what the others test is the adapter's, which no engine can change."""


def essential(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run this test with real agents on every engine that they run on."""
    test.essential = True  # type: ignore[attr-defined]
    return test


def resuming(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run this test for agents that can be resumed."""
    test.resuming = True  # type: ignore[attr-defined]
    return test


def pairs(test: Callable[..., Any]) -> list[tuple[Agent, Engine]]:
    """What a test runs for. A pair that is left out is no skip: `docs/testing.md` says which."""
    essential = getattr(test, "essential", False)
    real = IN_FULL + IN_ESSENCE if essential else IN_FULL
    return [
        (agent, engine)
        for agent in AGENTS
        for engine in ENGINES
        if (agent.requires is None or engine.name in (agent.engines or real))
        and (essential or agent.in_full)
        and (agent.resumes or not getattr(test, "resuming", False))
    ]


@dataclass
class Talk:
    """A running agent, and what it has said so far."""

    executor: Executor
    session: AgentSession
    events: list[AgentEvent] = field(default_factory=list)
    seconds: float = SECONDS
    _source: Any = None

    async def until(self, kind: str) -> AgentEvent:
        """The next event of that kind; what comes before it is kept."""
        async with asyncio.timeout(self.seconds):
            async for event in self._source:
                self.events.append(event)
                if event.type == kind:
                    return event
        raise AssertionError(f"no {kind} in {self.events}: {self.executor.stderr}")

    def resumed(self) -> AgentSession:
        """The session for its next process, as the server keeps it."""
        ready = next(event.data for event in self.events if event.type == "ready")
        named = ready.get("agent_session_id")
        return msgspec.structs.replace(self.session, agent_session_id=named)

    async def turn(self, prompt: str) -> AgentEvent:
        await self.executor.send(prompt)
        return await self.until("completion")


def new_session(running: Running, session_id: str | None = None, **fields: Any) -> AgentSession:
    session_id = session_id or ids.new_id(ids.SESSION)
    homes = next(m.source for m in running.spec.mounts if m.target == "/home/agent")
    make_owned(homes, session_id, uid=running.bench.agent_uid)
    return AgentSession(
        session_id=session_id,
        project_id=ids.new_id(ids.PROJECT),
        depth=0,
        cwd="/workspace",
        home=f"/home/agent/{session_id}",
        pairing_secret=secrets.token_hex(16),
        **fields,
    )


@contextlib.asynccontextmanager
async def talking(
    agent: Agent, running: Running, session: AgentSession | None = None
) -> AsyncIterator[Talk]:
    runtime = await agent.runtime_in(running)
    session = session or new_session(running)
    async with asyncio.timeout(SECONDS):
        executor = await runtime.execute_streaming(running.link, running.info.inside, session)
    events = executor.events()
    talk = Talk(executor, session, seconds=agent.seconds, _source=events)
    try:
        yield talk
    finally:
        async with asyncio.timeout(SECONDS):
            await events.aclose()
            await executor.close()
            await runtime.close()
