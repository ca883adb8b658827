"""Podman without root: an ordinary user's own service, found by its usual socket.

Root plays that user: ids of its own in `/etc/subuid`, in a mount namespace that ends with the
service. The suite is run by the user, as in `test_ordinary_user`, but for what podman leaves on the
disk, which is below one folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.test_ordinary_user import ROOT, UID, openings

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_SUBUID = 2_000_000
SERVICE = """
set -e
mount --make-rprivate /
for file in subuid subgid passwd group; do mount --bind "$1/$file" "/etc/$file"; done
exec 3<&0 0</dev/null
exec setpriv --reuid="$2" --regid="$2" --clear-groups --inh-caps=-all env -i PATH="$PATH" \\
  LANG=C.UTF-8 HOME="$1/home" XDG_RUNTIME_DIR="$1/run" LISTEN_FDS=1 LISTEN_PID="$$" \\
  podman --log-level error system service --time=0
"""
NEEDED = ("podman", "newuidmap", "newgidmap", "unshare", "setpriv", "bwrap")

pytestmark = [
    pytest.mark.requires("root"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in NEEDED), reason=f"needs {', '.join(NEEDED)}"
    ),
    pytest.mark.requires("podman"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def house() -> Iterator[Path]:
    """The folder of a user whose podman listens."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("home", "run", "run/podman"):
        (folder / name).mkdir(mode=0o700)
        os.chown(folder / name, UID, UID)
    for name in ("subuid", "subgid"):
        (folder / name).write_text(f"{UID}:{FIRST_SUBUID}:65536\n")
    for name, line in (
        ("passwd", f"obrl:x:{UID}:{UID}::{folder}/home:/bin/sh\n"),
        ("group", f"obrl:x:{UID}:\n"),
    ):
        (folder / name).write_text(Path(f"/etc/{name}").read_text() + line)
    argv = ["unshare", "--mount", "sh", "-c", SERVICE, "sh", str(folder), str(UID)]
    with socket.socket(socket.AF_UNIX) as listener:
        # Ours, and handed to it as systemd does: whoever comes too early waits in the queue.
        path = folder / "run" / "podman" / "podman.sock"
        listener.bind(str(path))
        listener.listen(64)
        os.chown(path, UID, UID)
        with (folder / "log").open("wb") as log:
            service = subprocess.Popen(  # from a folder that the user may pass
                argv, cwd="/", stdin=listener, stdout=log, stderr=log, start_new_session=True
            )
    try:
        yield folder
    finally:
        # Without root it is two processes, of which the one that listens outlives the other.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(service.pid, signal.SIGKILL)
        service.wait(20)
        # What keeps the user's namespace; podman starts it once and leaves it.
        with contextlib.suppress(OSError, ValueError):
            pause = folder / "run" / "libpod" / "tmp" / "pause.pid"
            os.kill(int(pause.read_text()), signal.SIGKILL)
        shutil.rmtree(folder)


def test_the_suite_holds_on_podman_without_root(house: Path) -> None:
    choice = "podman and not bridged and (goes_from or writes_is or missing_program)"
    argv = ["bwrap", "--dev-bind", "/", "/", *openings(), "--"]
    argv += ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
    argv += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "--no-header"]
    argv += ["-n", "0", "-k", choice, "tests/conformance"]
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": tempfile.gettempdir(),
        "XDG_RUNTIME_DIR": str(house / "run"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OUBLIETTE_REQUIRE": "podman",
    }
    done = subprocess.run(
        argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=280,
        check=False,
    )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    said = (house / "log").read_text(errors="replace")
    assert done.returncode == 0, f"{text[-6000:]}\n{said[-2000:]}"
    assert " passed" in text
