"""Root runs the suite once more as a user without any right, who has to do without root's ways.

The child sees the same files. Folders on the way to the interpreter that only root may pass (as
in a home of root's) are replaced for it by empty ones, in a mount namespace of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from oubliette.runtime.containers.host_paths import closed_folders

UID = 23999
ROOT = Path(__file__).resolve().parents[2]
NEEDED = (ROOT, Path(sys.prefix).absolute(), Path(sys.base_prefix).resolve())


def openings() -> list[str]:
    """bwrap options that let the user reach what Python needs, and nothing else of root's."""
    options: list[str] = []
    opened: set[Path] = set()
    for path in NEEDED:
        closed = next(iter(closed_folders(path, UID)), None)
        if closed is None:
            continue
        if closed not in opened:
            options += ["--perms", "0755", "--tmpfs", str(closed)]
            opened.add(closed)
        for parent in reversed(path.parents):
            if parent.is_relative_to(closed):
                options += ["--perms", "0755", "--dir", str(parent)]
        options += ["--ro-bind", str(path), str(path)]
    return options


@pytest.mark.requires("root", "bubblewrap")
@pytest.mark.whole
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "choice",
    ["(lifecycle or hardening or adoption) and not best-effort", "best-effort and adoption"],
    ids=["bubblewrap", "best-effort"],
)
def test_the_suite_holds_for_an_ordinary_user(choice: str) -> None:
    argv = ["bwrap", "--dev-bind", "/", "/", *openings(), "--"]
    argv += ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
    argv += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "--no-header"]
    argv += ["-k", choice, "tests/conformance"]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": tempfile.gettempdir(),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OUBLIETTE_REQUIRE": "bubblewrap",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=110,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{text[-6000:]}\n{done.stderr.decode(errors='replace')[-2000:]}"
    assert " passed" in text
