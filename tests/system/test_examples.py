"""Every example runs as it says, as a program of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests import requirements
from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 120.0


async def run(name: str, *arguments: str, **env: str) -> str:
    """Run an example to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FOLDER / name),
        *arguments,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def provide_a_tool(site: Site) -> None:
    said = await run("provide_a_tool.py", site.server.url, OUBLIETTE_KEY=site.principal())
    assert "the agent says:" in said
    assert "42" in said


async def own_actor(site: Site) -> None:
    settings = {"containers__runtime": "process"}
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as home:
        settings["containers__runtime_dir"] = f"{home}/r"
        if not site.server.sandboxed:
            settings["process__sandbox"] = "best-effort"
        env = {f"OUBLIETTE_{key.upper()}": value for key, value in settings.items()}
        first = await run("own_actor.py", home, **env)
        again = await run("own_actor.py", home, **env)
    assert "begins after -1" in first
    for said in (first, again):
        assert said.count("the agent says: audited") == 1
        assert "turns: 1 of gogol_" in said
    assert "begins after -1" not in again


async def scripted_model(site: Site) -> None:
    lines = (await run("scripted_model.py")).splitlines()
    assert lines == [
        "tokens: 1234",
        "the agent says: tool said: 42",
        "requests: ['/v1/chat/completions', '/v1/chat/completions']",
        "an error: 529 overloaded_error",
    ]


async def real_agent_without_a_model(site: Site) -> None:
    program = requirements.program("droid")
    said = await run("real_agent_without_a_model.py", "droid", program)
    assert "droid says: tool said: 42" in said


RUNS = {
    "own_actor.py": own_actor,
    "provide_a_tool.py": provide_a_tool,
    "scripted_model.py": scripted_model,
}
NEEDS = {"real_agent_without_a_model.py": ("droid", real_agent_without_a_model)}


def test_each_example_is_run_here() -> None:
    there = {path.name for path in FOLDER.glob("*.py")}
    assert there == RUNS.keys() | NEEDS.keys()


@pytest.mark.parametrize(
    "example",
    [
        *(pytest.param(run, id=name) for name, run in RUNS.items()),
        *(
            pytest.param(run, id=name, marks=pytest.mark.requires(needed))
            for name, (needed, run) in NEEDS.items()
        ),
    ],
)
async def test_an_example_does_what_it_says(site: Site, example) -> None:
    await example(site)
