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
    """Run an example to its end; what it printed, without the log on its stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FOLDER / name),
        *arguments,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out + log).decode()
    return out.decode()


def own_system(site: Site) -> dict[str, str]:
    """Variables of a program that has the system in its process, without a model."""
    settings = {"agents__default": "scripted", "containers__runtime": "process"}
    if not site.server.sandboxed:
        settings["process__sandbox"] = "best-effort"
    return {f"OUBLIETTE_{key.upper()}": value for key, value in settings.items()}


async def hello(site: Site) -> None:
    env = own_system(site)
    assert await run("hello.py", **env) == "Hello from a sandbox.\n"
    assert await run("hello.py", "say hello", **env) == "hello\n"


async def typed_result(site: Site) -> None:
    assert (await run("typed_result.py", **own_system(site))).splitlines() == [
        "a.py:7: high",
        "wrong: Expected `int` >= 1 - at `$.findings[0].line`",
    ]


async def fan_out(site: Site) -> None:
    assert (await run("fan_out.py", **own_system(site))).splitlines() == [
        "1: 5 words",
        "2: 6 words",
        "3: 4 words",
        "4: the book has 3 chapters",
        "5: failed: the paper is too wet",
        "read: [1, 2, 3]",
    ]


async def provide_a_tool(site: Site) -> None:
    said = await run("provide_a_tool.py", site.server.url, OUBLIETTE_KEY=site.principal())
    called, answered = said.splitlines()
    assert called == "the agent calls: example_add {'a': 20, 'b': 22}"
    assert '"text": "42' in answered


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
    "fan_out.py": fan_out,
    "hello.py": hello,
    "own_actor.py": own_actor,
    "provide_a_tool.py": provide_a_tool,
    "scripted_model.py": scripted_model,
    "typed_result.py": typed_result,
}
CORE = {"hello.py", "provide_a_tool.py"}
NEEDS = {"real_agent_without_a_model.py": ("droid", real_agent_without_a_model)}


@pytest.mark.whole
async def test_the_notebook_runs_and_shows_its_results(site: Site, monkeypatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    for key, value in own_system(site).items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(FOLDER / "notebook.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[] for _ in code], "clear the outputs"
    await NotebookClient(notebook, timeout=SECONDS, kernel_name="python3").async_execute()
    assert [_output(cell) for cell in code] == [
        "'Hello from a sandbox.'",
        "[('It works.', 1.0), ('Twice.', 0.5)]",
        "one\ntwo\n",
        "790",
        "",
    ]


def _output(cell) -> str:
    shown = [each for each in cell.outputs if each.get("name") != "stderr"]  # the log
    return "".join(each.get("text") or each["data"]["text/plain"] for each in shown)


def test_each_example_is_run_here() -> None:
    there = {path.name for path in FOLDER.glob("*.py")}
    assert there == RUNS.keys() | NEEDS.keys()


@pytest.mark.parametrize(
    "example",
    [
        *(
            pytest.param(run, id=name, marks=[] if name in CORE else pytest.mark.whole)
            for name, run in RUNS.items()
        ),
        *(
            pytest.param(run, id=name, marks=pytest.mark.requires(needed))
            for name, (needed, run) in NEEDS.items()
        ),
    ],
)
async def test_an_example_does_what_it_says(site: Site, example) -> None:
    await example(site)
