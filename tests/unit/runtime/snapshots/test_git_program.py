"""git as the server runs it: it ends with its block, and its errors are sentences with a remedy."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.git_program import (
    GitProgram,
    ProgramOutput,
    git_failure,
    streaming,
)
from tests.git_hosts import checkout, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

FULL = """
import os, select, sys, time
much, word = map(int, sys.argv[1:])
os.set_blocking(much, False)
while select.select([], [much], [], 0.5)[1]:
    os.write(much, b"x" * 4096)
os.write(word, b"full")
time.sleep(600)
"""
"""It writes for as long as somebody takes what it writes, then says so elsewhere."""


@pytest.mark.parametrize(("much", "word"), [(1, 2), (2, 1)])
async def test_a_program_whose_pipe_is_full_ends_with_its_block(
    tmp_path: Path, much: int, word: int
) -> None:
    command = [sys.executable, "-c", FULL, str(much), str(word)]
    async with (
        asyncio.timeout(30),
        streaming(command, environment={}, folder=tmp_path, seconds=25) as process,
    ):
        pipe = process.stderr if word == 2 else process.stdout
        assert pipe is not None
        assert await pipe.read(4) == b"full"
    assert process.returncode == -9


async def test_what_another_reads_is_left_to_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('said', flush=True); time.sleep(600)"]
    async with (
        asyncio.timeout(30),
        streaming(command, environment={}, folder=tmp_path, seconds=25) as process,
    ):
        assert process.stdout is not None
        assert await process.stdout.read(1) == b"s"
        rest = asyncio.create_task(process.stdout.read())
        await asyncio.sleep(0)
    assert await rest == b"aid\n"
    assert process.returncode == -9


@pytest.mark.parametrize(
    ("errors", "words", "remedy"),
    [
        ("fatal: write error: No space left on device", "disk is full", "free some space"),
        ("error: invalid path 'gitmod~1'", "the path gitmod~1, which git takes", "rename it"),
        ("error: unable to create file a/b: File name too long", "the name a/b is too", "rename"),
        ("error: insufficient permission\nfatal: Permission denied", "not write there", "owner"),
        ("fatal: cannot fork() for x: Cannot fork", "no room", "ulimit"),
        (
            "error: unable to read sha1 file of a (b)\nmore",
            "missing or damaged",
            "copy of the home",
        ),
        ("fatal: bad object refs/heads/x", "missing or damaged", "copy of the home"),
        ("fatal: the moon is in the way", "the moon is in the way", "oubliette doctor"),
        ("", "it ended with 128 and gave no reason", "oubliette doctor"),
    ],
)
def test_a_failure_on_a_repository_of_the_server_has_a_remedy(
    errors: str, words: str, remedy: str
) -> None:
    error = git_failure("read-tree", ProgramOutput(128, b"", errors))
    assert error.message.startswith("git read-tree: ")
    assert "\n" not in error.message
    assert words in error.message
    assert remedy.replace("owner", "server's user") in error.hint


async def test_a_damaged_object_is_called_so(tmp_path: Path) -> None:
    program = GitProgram.find()
    if program is None:
        pytest.skip("needs git")
    folder = checkout(tmp_path / "one")
    name = git(folder, "rev-parse", "HEAD:README").strip()
    damaged = folder / ".git" / "objects" / name[:2] / name[2:]
    damaged.chmod(0o600)
    damaged.write_bytes(b"")
    with pytest.raises(RuntimeFailure, match="missing or damaged") as raised:
        await program.run(folder / ".git", "cat-file", "blob", name, seconds=30.0)
    assert "copy of the home" in raised.value.hint
