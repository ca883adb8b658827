"""HeldCopiesActor of one node: what it takes from others, what it refuses, what it removes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.snapshot_requests import SNAPSHOTS, SendCopy
from oubliette.errors import InvalidParameter, LimitExceeded, RuntimeFailure
from oubliette.node import part_files
from oubliette.node.held_copies import (
    CHUNK_BYTES,
    DropParts,
    HasParts,
    HeldCopiesActor,
    HoldChunk,
    ReadPart,
    SealPart,
)
from oubliette.runtime.store.postgres.cluster import held_copies
from tests.unit.actors import fakes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from oubliette.kit import Ref
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

PROJECT = "proj_1"
PART, OTHER = "0" * 32, "f" * 32
MOST = 2_000_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with fakes.world(tmp_path) as made:
        yield made


class Records:
    """The answers of the database."""

    def __init__(self) -> None:
        self.held: list[tuple[str, str]] = []
        self.bad: list[tuple[str, str]] = []
        self.deleted: list[str] = []

    async def run(self, question: Callable[..., Any], *_: Any) -> Any:
        return {
            held_copies.parts_held: self.held,
            held_copies.badly_held: self.bad,
            held_copies.deleted_of: self.deleted,
        }[question]


@pytest.fixture
def records() -> Records:
    return Records()


def start(world: World, home: Path, records: Records) -> Ref:
    args = (home, "beta", cast("Any", records), MOST)
    return world.system.spawn(HeldCopiesActor, *args, name="copies")


async def send(ref: Ref, data: bytes, part: str = PART) -> None:
    for offset in range(0, len(data), CHUNK_BYTES):
        chunk = data[offset : offset + CHUNK_BYTES]
        await ref.ask(HoldChunk(project_id=PROJECT, part=part, offset=offset, data=chunk))
    await ref.ask(seal(data, part))


def seal(data: bytes, part: str = PART) -> SealPart:
    digest = hashlib.sha256(data).hexdigest()
    return SealPart(project_id=PROJECT, part=part, bytes=len(data), sha256=digest)


async def test_a_part_is_read_as_it_was_sent(
    world: World, tmp_path: Path, records: Records
) -> None:
    ref, data = start(world, tmp_path, records), os.urandom(CHUNK_BYTES + 1000)
    assert not await ref.ask(HasParts(project_id=PROJECT, parts=(PART,)))
    await send(ref, data)
    await ref.ask(seal(data))  # the answer was lost
    assert await ref.ask(HasParts(project_id=PROJECT, parts=(PART,)))
    assert not await ref.ask(HasParts(project_id=PROJECT, parts=(PART, OTHER)))
    found = b""
    while more := await ref.ask(ReadPart(project_id=PROJECT, part=PART, offset=len(found))):
        found += more
    assert found == data


async def test_what_did_not_arrive_as_it_was_sent_is_not_held(
    world: World, tmp_path: Path, records: Records
) -> None:
    ref = start(world, tmp_path, records)
    await ref.ask(HoldChunk(project_id=PROJECT, part=PART, offset=0, data=b"one"))
    with pytest.raises(RuntimeFailure, match="does not go on"):
        await ref.ask(HoldChunk(project_id=PROJECT, part=PART, offset=4, data=b"two"))
    with pytest.raises(RuntimeFailure, match="as it was sent"):
        await ref.ask(seal(b"other"))
    with pytest.raises(RuntimeFailure, match="not held"):
        await ref.ask(ReadPart(project_id=PROJECT, part=PART, offset=0))


async def test_a_part_above_the_limit_is_refused_and_leaves_nothing(
    world: World, tmp_path: Path, records: Records
) -> None:
    ref = start(world, tmp_path, records)
    with pytest.raises(LimitExceeded):
        await send(ref, bytes(MOST + 1))
    assert not list(tmp_path.glob("copies/*/*"))


@pytest.mark.parametrize(
    ("project", "part"),
    [("..", PART), (".", PART), ("a/b", PART), ("", PART), (PROJECT, "../x"), (PROJECT, "A" * 32)],
)
async def test_names_that_are_no_ids_are_refused(
    world: World, tmp_path: Path, records: Records, project: str, part: str
) -> None:
    ref = start(world, tmp_path, records)
    for message in (
        HoldChunk(project_id=project, part=part, offset=0, data=b"x"),
        SealPart(project_id=project, part=part, bytes=1, sha256=""),
        ReadPart(project_id=project, part=part, offset=0),
        HasParts(project_id=project, parts=(part,)),
    ):
        with pytest.raises(InvalidParameter, match="it is no id"):
            await ref.ask(message)
    assert not list(tmp_path.glob("copies/*"))


async def test_a_link_in_the_place_of_a_part_is_not_followed(
    world: World, tmp_path: Path, records: Records
) -> None:
    ref = start(world, tmp_path, records)
    folder = tmp_path / "copies" / PROJECT
    folder.mkdir(parents=True)
    (folder / f"{PART}.new").symlink_to(tmp_path / "target")
    with pytest.raises(RuntimeFailure):
        await ref.ask(HoldChunk(project_id=PROJECT, part=PART, offset=0, data=b"x"))
    assert not (tmp_path / "target").exists()


async def test_parts_are_dropped_unless_a_record_has_them(
    world: World, tmp_path: Path, records: Records
) -> None:
    ref = start(world, tmp_path, records)
    await send(ref, b"one")
    await send(ref, b"two", OTHER)
    records.held = [(PROJECT, OTHER)]
    ref.tell(DropParts(project_id=PROJECT, parts=(PART, OTHER)))
    assert await ref.ask(HasParts(project_id=PROJECT, parts=(OTHER,)))
    assert not await ref.ask(HasParts(project_id=PROJECT, parts=(PART,)))


@pytest.mark.whole
def test_a_folder_that_is_removed_as_an_empty_one_holds_the_next_part(tmp_path: Path) -> None:
    """A node looks after its copies while others send theirs."""
    path = part_files.path_of(tmp_path, PROJECT, PART)
    done = threading.Event()

    def tidy() -> None:
        while not done.is_set():
            part_files.tidy(tmp_path, ())

    with ThreadPoolExecutor(1) as pool:
        tidying = pool.submit(tidy)
        try:
            for _ in range(2000):
                part_files.append(path, 0, b"one", MOST)
                part_files.remove(tmp_path, PROJECT, (PART,))
        finally:
            done.set()
        tidying.result()


async def test_what_is_left_of_the_time_away_is_removed_at_the_start(
    world: World, tmp_path: Path, records: Records
) -> None:
    for project, part in ((PROJECT, PART), (PROJECT, OTHER), ("proj_2", PART), ("proj_3", PART)):
        path = part_files.path_of(tmp_path, project, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        old = time.time() - part_files.LEFT_SECONDS - 10
        os.utime(path, (old, old))
    part_files.path_of(tmp_path, "proj_3", PART).touch()
    records.held, records.deleted = [(PROJECT, OTHER)], ["proj_2"]
    start(world, tmp_path, records)
    await world.until(lambda: not (tmp_path / "copies" / "proj_2").exists())
    await world.until(lambda: sum(len(files) for *_, files in os.walk(tmp_path / "copies")) == 2)
    left = {path.parent.name for path in tmp_path.glob("copies/*/*")}
    assert left == {PROJECT, "proj_3"}, "one is in a record, one may be on its way"


async def test_copies_without_a_good_holder_are_sent_again(
    world: World, tmp_path: Path, records: Records
) -> None:
    asked = world.record(SNAPSHOTS)
    records.bad = [(PROJECT, "workspace")]
    start(world, tmp_path, records)
    await world.until(lambda: bool(asked))
    assert asked == [SendCopy(project_id=PROJECT, workspace_id="workspace")]
