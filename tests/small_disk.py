"""A small disk that is really full when it is: a tmpfs, which root alone can mount."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int, owner: Path) -> Iterator[Path]:
    """A folder on a tmpfs of that size, which belongs to whom `owner` belongs to."""
    folder.mkdir()
    belongs = owner.stat()
    options = f"size={mebibytes}m,mode=0700,uid={belongs.st_uid},gid={belongs.st_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def fill(disk: Path) -> Path:
    """Leave not a byte on a disk; returns the file whose removal makes room again."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    return ballast
