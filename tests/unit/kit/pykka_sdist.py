"""Pykka's source distribution, for its tests; fetched once into the user's cache."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import platformdirs

FETCH_TIMEOUT = 240.0
"""Seconds; pip builds the metadata of what it downloads, in an environment of its own."""


def fetch() -> Path:
    """The archive of the Pykka version that is installed.

    Raises:
        OSError: it is not in the cache and cannot be downloaded.
    """
    version = importlib.metadata.version("pykka")
    cache = Path(platformdirs.user_cache_dir("oubliette-tests"))
    archive = cache / f"pykka-{version}.tar.gz"
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _download(version, folder)
        got = list(Path(folder).glob("*.tar.gz"))
        if len(got) != 1:
            raise OSError(f"pip downloaded {[path.name for path in got]} for pykka {version}")
        got[0].replace(archive)
    return archive


def _download(version: str, folder: str) -> None:
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is None:
            raise OSError("neither pip nor uv is there to download pykka's source distribution")
        pip = [uv, "tool", "run", "pip"]
    command = [*pip, "download", "-q", "--no-binary", "pykka", "--no-deps", "-d", folder]
    try:
        done = subprocess.run(
            [*command, f"pykka=={version}"], capture_output=True, timeout=FETCH_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pykka's source distribution did not come in {FETCH_TIMEOUT} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"cannot download pykka's source distribution: {said[-1:]}")


def unpack(folder: Path) -> Path:
    """Unpack the archive below `folder`; the root of Pykka's sources there."""
    with tarfile.open(fetch()) as archive:
        # Debian 12's Python is 3.11.2; filters came with 3.11.4.
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    return next(folder.glob("pykka-*"))
