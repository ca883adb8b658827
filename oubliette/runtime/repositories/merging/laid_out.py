"""Files of a tree, laid into a folder as they are, where git can be asked about them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from oubliette.runtime.repositories.merging.merge_room import MergeRoom

PIECE: Final = 32 << 20
"""Bytes of contents that are in memory at a time, unless one file has more."""


async def lay_out(
    room: MergeRoom, folder: Path, files: Mapping[bytes, str], most: int = 1 << 62
) -> set[bytes]:
    """Write files below a folder, which has none of them; return the paths of those it has now.

    Args:
        room: Has the contents.
        folder: The folder.
        files: Path of each file in a tree that git has checked, and the name of its content.
        most: Bytes above which a file is left out.

    Raises:
        RuntimeFailure: git failed.
        DeadlineExceeded: it takes too long.
    """
    await asyncio.to_thread(folder.mkdir, mode=0o700, exist_ok=True)
    paths: dict[str, list[bytes]] = {}
    for path, blob in files.items():
        paths.setdefault(blob, []).append(path)
    asked = "".join(f"{blob}\n" for blob in paths).encode()
    sizes: dict[str, int] = {}
    for line in (await room.run("cat-file", "--batch-check", given=asked)).decode().splitlines():
        blob, _, size = line.split(" ")
        if int(size) <= most:
            sizes[blob] = int(size)
    for piece in _pieces(sizes):
        given = "".join(f"{blob}\n" for blob in piece).encode()
        output = await room.run("cat-file", "--batch", given=given)
        await asyncio.to_thread(_write, bytes(folder), output, piece, paths)
    return {path for blob in sizes for path in paths[blob]}


def _pieces(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    piece: list[str] = []
    total = 0
    for blob, size in sizes.items():
        if piece and total + size > PIECE:
            yield piece
            piece, total = [], 0
        piece.append(blob)
        total += size
    if piece:
        yield piece


def _write(
    folder: bytes, output: bytes, piece: list[str], paths: Mapping[str, list[bytes]]
) -> None:
    """Write the contents in the output of `git cat-file --batch`. Blocks."""
    place = 0
    for blob in piece:
        end = output.index(b"\n", place)
        size = int(output[place:end].rsplit(b" ", 1)[1])
        for path in paths[blob]:
            whole = folder + b"/" + path
            os.makedirs(os.path.dirname(whole), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - bytes
            with open(whole, "xb") as file:  # noqa: PTH123 - bytes
                file.write(memoryview(output)[end + 1 : end + 1 + size])
        place = end + size + 2
