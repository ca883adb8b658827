"""The files program as a process: how it answers, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oubliette.actors.container import file_requests
from oubliette.incontainer.files import frames
from oubliette.incontainer.files.main import IDLE_SECONDS
from oubliette.runtime.guest.file_program import ALARM

ROOT = Path(__file__).parents[4]


def run(sent: bytes) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the answers."""
    done = subprocess.run(
        [sys.executable, "-m", "oubliette.incontainer", "files"],
        input=sent,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    return done.returncode, [fields for fields, _ in frames.FileFrames().feed(done.stdout)]


def request(verb: str, root: Path, path: str, *, seconds: float = 20.0, **more: Any) -> bytes:
    return frames.encode(
        {"verb": verb, "root": str(root), "path": path, "seconds": seconds, **more}
    )


def test_requests_are_answered_in_order_until_stdin_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    listing = request("list", tmp_path, "", after="", limit=5)
    missing = request("delete", tmp_path, "b", recursive=False)
    gone = request("list", tmp_path / "nowhere", "", after="", limit=5)
    code, answers = run(listing + missing + gone)
    assert code == 0
    assert [entry["name"] for entry in answers[0]["entries"]] == ["a"]
    assert [each.get("problem") for each in answers] == [None, "missing", "no_workspace"]


def test_an_operation_that_takes_too_long_ends_it(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}").touch()
    os.mkdir(tmp_path / "d")
    for name in list(tmp_path.iterdir()):
        if name.is_file():
            name.rename(tmp_path / "d" / name.name)
    slow = request("delete", tmp_path, "d", seconds=0.001, recursive=True)
    code, answers = run(slow)
    assert (code, answers) == (-signal.SIGALRM, [])
    assert signal.SIGALRM == ALARM


@pytest.mark.parametrize("sent", [b"\xff" * 20, frames.HEAD.pack(2, 0) + b"[]"])
def test_what_is_no_request_ends_it_with_an_exit_code_of_its_own(sent: bytes) -> None:
    assert run(sent) == (3, [])


def test_the_server_ends_it_before_it_ends_on_its_own() -> None:
    assert file_requests.IDLE_SECONDS < IDLE_SECONDS
