"""A program with the libraries of the extra `client` alone calls a server elsewhere."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLIENT = [Requirement(each) for each in PROJECT["optional-dependencies"]["client"]]
BASE = [Requirement(each) for each in PROJECT["dependencies"]]
PROGRAM = """
import asyncio, importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
import oubliette
from oubliette.api.http import HttpConnection

async def main():
    async with HttpConnection(sys.argv[2], sys.argv[3]) as remote:
        made = await remote.call("project_create", {"name": "from a client", "init_git": False})
        try:
            await remote.call("project_get", {"project_id": "proj_" + "0" * 26})
        except oubliette.NotFound as error:
            return made["id"], error.code

found = asyncio.run(main())
there = [name for name in json.loads(sys.argv[4]) if importlib.util.find_spec(name)]
try:
    oubliette.kit
except ModuleNotFoundError as error:
    print(json.dumps([*found, there, str(error)]))
"""
SERVERS = [
    "docker", "mcp", "platformdirs", "pydantic", "pykka", "rich", "starlette", "structlog", "tomlkit",
    "typer", "uvicorn",
]  # fmt: skip


def needed(requirements: list[Requirement]) -> dict[str, metadata.Distribution]:
    """The installed distributions that these need, with what they need in turn."""
    found: dict[str, metadata.Distribution] = {}
    left = list(requirements)
    while left:
        each = left.pop()
        name = canonicalize_name(each.name)
        if name in found:
            continue
        found[name] = metadata.distribution(each.name)
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement)
    return found


def tops(distribution: metadata.Distribution) -> Iterator[Path]:
    """The files and folders of a distribution that lie directly in site-packages."""
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    for name in names - {"__pycache__"}:
        yield Path(str(distribution.locate_file(name)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As site-packages after an installation of the package without its dependencies, and these."""
    (tmp_path / "oubliette").symlink_to(ROOT / "oubliette")
    for distribution in needed(CLIENT).values():
        for top in tops(distribution):
            (tmp_path / top.name).symlink_to(top)
    return tmp_path


def test_a_client_needs_no_other_versions_than_a_server() -> None:
    assert {str(each) for each in CLIENT} <= {str(each) for each in BASE}


async def test_a_program_without_the_libraries_of_a_server_calls_its_tools(
    site: Site, folder: Path
) -> None:
    arguments = [str(folder), site.server.url, site.principal(), json.dumps(SERVERS)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", PROGRAM, *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err.decode()) == (0, "")
    project_id, code, there, told = json.loads(out)
    assert (await site.eyes.call("project_get", project_id=project_id))["name"] == "from a client"
    assert (code, there) == ("not_found", [])
    assert told.startswith("oubliette.kit needs ")
    assert told.endswith("-m pip install oubliette-agents")
