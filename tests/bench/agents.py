"""What an agent costs with us, beside its own program alone, in the same run.

    python -m tests.bench.agents [--engines process,docker] [--rounds 3] [-o json]

* a session, from `session_spawn` to its agent's first event and first word: beside the bare program
  on this machine, in a fresh HOME, until it would take a prompt;
* a warm turn, from `session_message` to its end: beside the scripted model's answer alone;
* a child (of the scripted agent), from its parent's call to the result, agent and client started.

The agents' model is the scripted one, which answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import httpx2

from oubliette.runtime.agents import AcpAdapter, DroidAdapter
from oubliette.runtime.agents.handshake_adapter import Opening
from oubliette.runtime.containers.base import Inside
from oubliette.runtime.zipapp import zipapp_path
from oubliette.testing.model_server import ModelServer
from tests import requirements
from tests.bench.agent_house import AgentHouse, agent_house

AGENTS = {"scripted": None, "opencode": "opencode", "opencode-acp": "opencode", "droid": "droid"}
"""Agent → its program, where it has one."""
LONGEST = 150.0  # seconds for one of all these
TURNS = 5


async def bare(agent: str, model: ModelServer) -> float:
    """Milliseconds until the program alone would take a prompt."""
    program = AGENTS[agent]
    if program is None:
        return await bare_scripted()
    stream = ("--input-format", "stream-jsonrpc", "--output-format", "stream-jsonrpc")
    arguments = {
        "opencode": ("serve", "--hostname", "127.0.0.1", "--port", "0"),
        "opencode-acp": ("acp",),
        "droid": ("exec", *stream),
    }[agent]
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp", ignore_cleanup_errors=True) as home:
        opening = Opening(cwd=home, mcp_servers=())
        adapter = {"opencode-acp": AcpAdapter, "droid": DroidAdapter}.get(agent)
        talk = adapter(opening) if adapter is not None else None
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            requirements.program(program), *arguments,
            cwd=home, env=environment(home, model),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=1 << 24,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LONGEST):
                offset = 0
                for frame in talk.writes() if talk is not None else ():
                    process.stdin.write(frame)
                while True:
                    line = await process.stdout.readline()
                    assert line, f"{agent} ended with {await process.wait()}"
                    if talk is None:
                        if b"listening" in line:
                            break
                        continue
                    talk.feed(line, offset)
                    offset += len(line)
                    assert talk.failed is None, talk.failed
                    for frame in talk.writes():
                        process.stdin.write(frame)
                    if talk.ready:
                        break
            return (time.perf_counter() - began) * 1000
        finally:
            process.kill()
            await process.wait()


async def bare_scripted() -> float:
    """Milliseconds until the scripted agent alone has said its first line."""
    argv = Inside(python=sys.executable, zipapp=str(zipapp_path())).program("scripted-agent")
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as home:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=home, env={"HOME": home, "PATH": os.environ["PATH"]},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            assert await process.stdout.readline()
            return (time.perf_counter() - began) * 1000
        finally:
            process.kill()
            await process.wait()


def environment(home: str, model: ModelServer) -> dict[str, str]:
    """As little as the program needs to start without asking the network for anything."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Bench",
        "options": {"baseURL": model.url, "apiKey": "none"},
        "models": {"scripted": {"name": "scripted", "tool_call": True}},
    }
    settings = {
        "model": "bench/scripted",
        "small_model": "bench/scripted",
        "enabled_providers": ["bench"],
        "provider": {"bench": provider},
        "autoupdate": False,
        "share": "disabled",
    }
    off = "AUTOUPDATE DEFAULT_PLUGINS LSP_DOWNLOAD MODELS_FETCH PROJECT_CONFIG SHARE".split()
    return {
        "HOME": home,
        "PATH": os.environ["PATH"],
        **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false",
    }


async def answered(model: ModelServer) -> float:
    """Milliseconds of the model's answer alone."""
    async with httpx2.AsyncClient() as http:
        body = {
            "model": "scripted",
            "stream": True,
            "messages": [{"role": "user", "content": "say hi"}],
            "tools": [{"type": "function", "function": {"name": "x"}}],
        }
        times = []
        for _ in range(TURNS):
            began = time.perf_counter()
            (await http.post(f"{model.url}/chat/completions", json=body)).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def measure(house: AgentHouse, agent: str, model: ModelServer, rounds: int) -> dict[str, Any]:
    events, first, alone, turns, children = [], [], [], [], []
    for _ in range(rounds):
        alone.append(await bare(agent, model))
        began = time.perf_counter()
        session = await house.spawn(agent)
        events.append((house.first_event - began) * 1000)
        first.append((house.first_word - began) * 1000)
        for _ in range(TURNS):
            began = time.perf_counter()
            await house.turn(session)
            turns.append((time.perf_counter() - began) * 1000)
        await house.end(session)
        if AGENTS[agent] is None:
            children.append(await house.child(agent))
    found = {
        "event_ms": statistics.median(events),
        "first_ms": statistics.median(first),
        "turn_ms": statistics.median(turns),
        "bare_ms": statistics.median(alone),
    }
    found["first_ratio"] = found["first_ms"] / found["bare_ms"]
    if children:
        found["child_ms"] = statistics.median(children)
    else:
        found["model_ms"] = await answered(model)
    return {name: round(value, 2) for name, value in found.items()}


def shown(engine: str, agent: str, found: dict[str, float]) -> str:
    text = f"{engine:8}{agent:13} first event {found['event_ms']:.0f} ms, word"
    text += f" {found['first_ms']:.0f} ms | bare program, ready: {found['bare_ms']:.0f} ms,"
    text += f" {found['first_ratio']:.2f} x; warm turn {found['turn_ms']:.1f} ms"
    if "model_ms" in found:
        text += f" | the model alone: {found['model_ms']:.1f} ms"
    if "child_ms" in found:
        text += f"; child to result {found['child_ms']:.0f} ms"
    return text


async def run(engines: list[str], rounds: int, output: str) -> None:
    for engine in engines:
        reason = requirements.missing("bubblewrap" if engine == "process" else engine)
        if reason is not None:
            print(f"{engine}: left out, {reason}")
            continue
        async with ModelServer() as model, agent_house(engine, model) as house:
            for agent, program in AGENTS.items():
                if program is not None and (why := requirements.missing(program)) is not None:
                    print(f"{engine:8}{agent}: left out, {why}")
                    continue
                found = await measure(house, agent, model, rounds)
                if output == "json":
                    kind = {"bench": "agents", "engine": engine, "agent": agent}
                    print(json.dumps({**kind, **found}), flush=True)
                else:
                    print(shown(engine, agent, found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="process,docker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text")
    given = parser.parse_args()
    sys.exit(asyncio.run(run(given.engines.split(","), given.rounds, given.output)))
