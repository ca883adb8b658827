"""The programs of docs/python.md and the README run as they stand, and print what is shown there."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PAGES = ("docs/python.md", "README.md")
ADDRESS = "http://127.0.0.1:8080/mcp"
PROGRAM = re.compile(r"(?ms)^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?")
SECONDS = 60.0


class Program(NamedTuple):
    """A program of a page, and the output that the page shows."""

    page: str
    line: int
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def programs() -> Iterator[Program]:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in PROGRAM.finditer(text):
            line = text[: found.start()].count("\n") + 2
            yield Program(page, line, found[1], found[2] or "")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One home for the programs of the page, one after another, as a reader runs them."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        yield Path(folder)


def environment(site: Site, home: Path) -> dict[str, str]:
    settings = {
        "OUBLIETTE_HOME": f"{home}/home",
        "OUBLIETTE_KEY": site.principal(),
        "OUBLIETTE_AGENTS__DEFAULT": "scripted",
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_CONTAINERS__RUNTIME_DIR": f"{home}/run",
    }
    if not site.server.sandboxed:
        settings["OUBLIETTE_PROCESS__SANDBOX"] = "best-effort"
    return {**os.environ, **settings}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=pytest.mark.whole if number % 6 else [], id=str(each))
        for number, each in enumerate(programs())
    ],
)
async def test_a_program_of_a_page_prints_what_the_page_shows(
    site: Site, home: Path, program: Program
) -> None:
    text = program.text.replace(ADDRESS, site.server.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        text,
        cwd=home,
        env=environment(site, home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    assert out.decode() == program.output


def test_the_page_has_programs_of_every_step() -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    steps = re.split(r"(?m)^## (?=\d\. )", text)[1:]
    assert [step[0] for step in steps] == ["1", "2", "3", "4", "5"]
    assert all(PROGRAM.search(step) for step in steps)
