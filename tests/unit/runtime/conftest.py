"""Short folders: a socket's path has room for 103 bytes, pytest's own take most of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def short() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
