"""A program of which not everything is read ends with its block all the same."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.snapshots.git_program import streaming

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
