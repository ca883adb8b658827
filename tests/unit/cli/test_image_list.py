"""`oubliette image list`: what the engine has of the images, or that it does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command_line import Run
from tests.unit.runtime.containers.docker.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
FIRST_WORDS = ["image", "list"]

BASE = "docker.io/library/python:3"
THERE = {
    "Id": "sha256:" + "1e" * 32,
    "Size": 130_400_000,
    "Created": "2026-01-02T03:04:05.123456789Z",
    "Metadata": {"LastTagTime": "2026-02-03T04:05:06Z"},
}


def configure(home: Path, address: str, runtime: str = "docker") -> None:
    (home / "oubliette.toml").write_text(
        f'[containers]\nimage = "{BASE}"\nruntime = "{runtime}"\n'
        f'[docker]\nhost = "{address}"\n[podman]\nhost = "{address}-podman"\n',
        encoding="utf-8",
    )


@pytest.fixture
async def engine(home: Path) -> AsyncIterator[FakeEngine]:
    """An engine that has the base image and no other."""
    made = FakeEngine()
    made.info = {"OSType": "linux", "OperatingSystem": "x", "Runtimes": {}, "SecurityOptions": []}
    made.answers[f"/images/{BASE}/json"] = THERE
    configure(home, await made.listen(home / "engine.sock"))
    yield made
    await made.aclose()


async def listed(run: Run) -> Any:
    done = await asyncio.to_thread(run, "-o", "json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


async def test_what_the_engine_has_stands_beside_what_is_configured(
    run: Run, home: Path, engine: FakeEngine
) -> None:
    found = await listed(run)
    assert found["engine"]["name"] == "docker"
    assert found["engine"]["reason"] is None
    base, dev = found["images"]
    assert base == {
        "container_type": "base",
        "image": BASE,
        "built_from": None,
        "present": True,
        "id": THERE["Id"],
        "size_bytes": 130_400_000,
        "built_at": pytest.approx(1767323045.12, abs=0.01),
        "arrived_at": 1770091506.0,
    }
    assert (dev["present"], dev["id"]) == (False, None)
    assert not (home / "lock").exists()


async def test_people_see_a_table_of_it(run: Run, engine: FakeEngine) -> None:
    done = await asyncio.to_thread(run)
    head, base, dev = (line.split("\t") for line in done.out.splitlines())
    assert head[3:] == ["IN DOCKER", "ID", "SIZE", "BUILT", "ARRIVED"]
    assert base[3:] == [
        "yes",
        "1e" * 6,
        "130.4 MB",
        "2026-01-02 03:04:05Z",
        "2026-02-03 04:05:06Z",
    ]
    assert dev[3:] == ["no", "", "", "", ""]
    assert done.err == ""


async def test_dates_that_the_engine_does_not_know_are_left_out(
    run: Run, engine: FakeEngine
) -> None:
    never = "0001-01-01T00:00:00Z"
    engine.answers[f"/images/{BASE}/json"] = {
        **THERE,
        "Created": never,
        "Metadata": {"LastTagTime": never},
    }
    base = (await listed(run))["images"][0]
    assert (base["present"], base["built_at"], base["arrived_at"]) == (True, None, None)


@pytest.mark.parametrize("runtime", ["docker", "podman", "auto"])
async def test_an_engine_that_does_not_answer_is_named_with_the_remedy(
    run: Run, home: Path, runtime: str
) -> None:
    configure(home, f"unix://{home}/nowhere.sock", runtime)
    found = await listed(run)
    assert found["engine"]["name"] == (None if runtime == "auto" else runtime)
    assert "nowhere.sock" in found["engine"]["reason"]
    assert found["engine"]["remedy"]
    assert {each["present"] for each in found["images"]} == {None}
    done = await asyncio.to_thread(run)
    assert done.code == 0
    assert [line.split("\t")[3] for line in done.out.splitlines()[1:]] == ["?", "?"]
    assert "it is unknown which images are present" in done.err
    assert "\nhint: " in done.err


async def test_an_engine_that_ends_meanwhile_is_told(run: Run, engine: FakeEngine) -> None:
    async def hang_up(*_: Any) -> None:
        return

    engine.answers[f"/images/{BASE}/json"] = hang_up
    found = await listed(run)
    assert found["engine"]["name"] == "docker"
    assert found["engine"]["reason"]
    assert {each["present"] for each in found["images"]} == {None}
