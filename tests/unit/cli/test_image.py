"""`oubliette image`: what there is, and how far a build or a pull is."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from oubliette.cli.client import tools
from oubliette.cli.terminal import output, progress
from oubliette.runtime.containers.docker.image_progress import ImageProgress, share_of
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["image"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of a server that builds in two steps."""
    calls: list[Any] = []

    def call(_: object, tool: str, given: Any, timeout: float, *, on_progress: Any) -> Any:
        calls.append((tool, {k: v for k, v in given.items() if v is not None}, timeout))
        on_progress("step 1 of 2: FROM \x1b[2Jbase")
        on_progress("step 2 of 2: RUN true")
        return {"image": "localhost/dev:1", "state": "built", "log_tail": "end"}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return calls


def test_the_types_are_listed_with_what_their_images_are_built_from(run: Run, home: Path) -> None:
    (home / "oubliette.toml").write_text(
        '[containers]\nimage = "docker.io/library/python:3"\nruntime = "process"\n'
        '[container_types.own]\nimage = "own:1"\nbuild_dir = "/srv/own"\n'
    )
    listed = json.loads(run("list", "-o", "json").out)["images"]
    by_type = {each["container_type"]: each for each in listed}
    assert by_type["base"]["image"] == "docker.io/library/python:3"
    assert by_type["base"]["built_from"] is None
    own = {name: by_type["own"][name] for name in ("container_type", "image", "built_from")}
    assert own == {"container_type": "own", "image": "own:1", "built_from": "/srv/own"}
    done = run("list")
    assert done.out.splitlines()[0].startswith("TYPE\tIMAGE\tBUILT FROM\t")
    assert "process, which has no images" in done.err


def test_in_a_pipe_progress_is_plain_lines_on_stderr(run: Run, asked: list[Any]) -> None:
    done = run("rebuild", "dev")
    assert asked == [("image_rebuild", {"container_type": "dev"}, 3600.0)]
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [
        "building dev: step 1 of 2: FROM �[2Jbase",
        "building dev: step 2 of 2: RUN true",
        "localhost/dev:1 was built.",
    ]


def test_for_programs_there_is_the_result_alone(run: Run, asked: list[Any]) -> None:
    done = run("refresh", "base", "-o", "json", "--timeout", "10m")
    assert asked == [("container_refresh", {"container_type": "base"}, 600.0)]
    assert done.err == ""
    assert json.loads(done.out)["state"] == "built"


@pytest.mark.parametrize("words", [["refresh"], ["refresh", "base", "--project", "shop"]])
def test_one_image_is_refreshed(run: Run, asked: list[Any], words: list[str]) -> None:
    done = run(*words)
    assert (done.code, asked) == (2, [])
    assert "one of them" in done.err


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    said = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(reader, 4096):
                said.extend(part)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with os.fdopen(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(output, "_chosen", output.Format.text)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        with progress.shown("building dev") as on_progress:
            on_progress("1 of 4 layers, 5.0 of 10.0 MB")
    thread.join(5)
    os.close(reader)
    text = said.decode("utf-8", "replace")
    assert "building dev" in text
    assert "5.0 of 10.0 MB" in text
    assert "━" in text


# ---------------------------------------------------------------------- how far it is


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("2 of 5 layers", 0.4),
        ("2 of 5 layers, 30.0 of 60.0 MB", 0.5),
        ("step 3 of 4: RUN make", 0.5),
        ("step 1 of 4: FROM x", 0.0),
        ("fetching docker.io/x", None),
        ("0 of 0 layers", None),
        ("", None),
    ],
)
def test_the_share_that_is_done(line: str, share: float | None) -> None:
    assert share_of(line) == share


@pytest.mark.parametrize("word", ["Step 2/4 : RUN make\n", "STEP 2/4: RUN make\n"])
def test_a_build_tells_its_step_and_what_it_says(word: str) -> None:
    on_progress = ImageProgress()
    on_progress.feed({"stream": word})
    assert on_progress.line.startswith("step 2 of 4: ")
    assert share_of(on_progress.line) == 0.25
    on_progress.feed({"stream": "compiling a.c\n"})
    assert on_progress.line == "step 2 of 4: compiling a.c"


def test_what_a_pull_says_of_itself_is_read_back() -> None:
    on_progress = ImageProgress()
    on_progress.feed({"id": "a", "status": "Pull complete"})
    on_progress.feed(
        {"id": "b", "status": "Downloading", "progressDetail": {"current": 1e6, "total": 4e6}}
    )
    assert on_progress.line == "1 of 2 layers, 1.0 of 4.0 MB"
    assert share_of(on_progress.line) == 0.25
