"""`make demo`: the main job with each agent on each engine, as the program that a user starts.

The scripted agent runs everywhere; a real one once on every engine that real agents are run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.runtime.files.home import DATABASE
from tests import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless, pytest.mark.timeout(400)]

SECONDS = 360.0  # for three cold agents on a busy machine

PROGRAMS = {"droid": "droid", "opencode-acp": "opencode", "opencode": "opencode"}
NEEDS = {"process": (), "docker": ("docker",), "podman": ("podman",)}
PAIRS = [
    ("process", "scripted"),
    ("docker", "scripted"),
    ("podman", "scripted"),
    ("process", "opencode"),
    ("process", "opencode-acp"),
    ("process", "droid"),
    ("docker", "opencode"),
    ("docker", "droid"),
]


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """Of somebody with no configuration and no agents but those that are named."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    yield {
        **{name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")},
        "OUBLIETTE_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "TMPDIR": str(folder),
    }
    shutil.rmtree(folder)


async def demo(environ: dict[str, str], *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oubliette", "demo", *arguments,
        env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()


def left(engine: str, home: Path) -> list[str]:
    """Containers of the demo that are still there."""
    if engine == "process":
        return []
    with contextlib.closing(sqlite3.connect(f"file:{home / DATABASE}?mode=ro", uri=True)) as store:
        ((instance,),) = store.execute("SELECT value FROM meta WHERE key = 'instance'")
    name = instance.decode() if isinstance(instance, bytes) else instance
    api = Engine("podman" if engine == "podman" else "docker").connect()
    try:
        labels = {"label": [f"dev.oubliette.instance={name}"]}
        return [found["Id"] for found in api.containers(all=True, filters=labels)]
    finally:
        api.close()


@pytest.mark.parametrize(
    ("engine", "agent"),
    [
        pytest.param(
            engine,
            agent,
            marks=[
                pytest.mark.requires(each)
                for each in (*NEEDS[engine], *([PROGRAMS[agent]] if agent in PROGRAMS else []))
            ],
        )
        for engine, agent in PAIRS
    ],
)
@pytest.mark.whole
async def test_the_demo_tells_its_story_to_the_end(environ, engine: str, agent: str) -> None:
    if agent in PROGRAMS:
        program = PROGRAMS[agent]
        variable = f"OUBLIETTE_{program.upper()}__PATH"
        environ[variable] = requirements.program(program)
    code, said = await demo(environ, "--runtime", engine, "--agent", agent, "--keep")
    assert code == 0, said
    for line in (
        "find_order(A-17) runs here",
        "child 1  says: ",
        "child 2  says: ",
        "before it is answered, the server is killed with -9",
        "approve(A-17, 12.5) was requested again and is answered now",
        "The agent said at the end: Done: the refund is approved.",
        f"agent            {agent}, isolation: ",
        "may read; there is no project but 'demo'",
        "no gap, no repeat",
    ):
        assert line in said, said
    if agent in PROGRAMS:
        assert f"no model is configured for {agent}: a scripted one answers at http" in said
    home = Path(re.search(r"home and logs +(\S+)", said)[1])  # type: ignore[index]
    assert (home / "server.log").exists()
    assert left(engine, home) == []


@pytest.mark.whole
@pytest.mark.parametrize("folder", ["closed", "deep"])
@pytest.mark.parametrize(
    "isolation", [pytest.param("container", marks=pytest.mark.requires("bubblewrap")), "none"]
)
async def test_the_demo_holds_wherever_its_temporary_folder_is_and_leaves_nothing(
    environ, isolation: str, folder: str
) -> None:
    """`closed`: no other user may pass it. `deep`: a socket's path would be too long in it."""
    if isolation == "none":
        environ["PATH"] = str(Path(sys.executable).parent)
    temporary = Path(environ["TMPDIR"]) / ("closed" if folder == "closed" else "d" * 60)
    temporary.mkdir(mode=0o700)
    environ["TMPDIR"] = str(temporary)
    code, said = await demo(environ)
    assert code == 0, said
    assert "The agent said at the end: Done: the refund is approved." in said
    assert f"isolation: {isolation}" in said
    assert ("agents run WITHOUT ISOLATION" in said) == (isolation == "none")
    assert "home and logs    removed; KEEP=1 (--keep) keeps them" in said
    home = Path(re.search(r"s, home (\S+)", said)[1])  # type: ignore[index]
    assert not home.exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.whole
async def test_a_demo_that_fails_keeps_its_home_and_says_where(environ) -> None:
    code, said = await demo(environ, "--runtime", "no-such")
    assert code == 1
    assert "the server did not start" in said
    home = Path(re.search(r"home and logs +(\S+)", said)[1])  # type: ignore[index]
    assert "no-such" in (home / "server.log").read_text()


@pytest.mark.whole
@pytest.mark.parametrize("agent", ["droid", "opencode"])
async def test_an_agent_that_is_not_installed_is_a_sentence_with_the_remedy(
    environ, agent: str
) -> None:
    code, said = await demo(environ, "--agent", agent)
    assert code == 2
    assert f"{agent} cannot be used here" in said
    assert "npm install -g" in said
    assert "Traceback" not in said
    assert list(Path(environ["TMPDIR"]).glob("oubliette-demo-*")) == []


async def test_an_agent_that_nobody_has_is_refused_with_the_names(environ) -> None:
    code, said = await demo(environ, "--agent", "no-such")
    assert code == 2
    assert "scripted" in said
    assert "droid" in said
    assert "Traceback" not in said
