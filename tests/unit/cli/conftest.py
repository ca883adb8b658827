"""A home of a server, and the command line in this very process.

A module whose tests are all of one command names it in `FIRST_WORDS`: `run` puts those words first.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from oubliette.cli import main
from oubliette.cli.terminal import logging_config, output
from tests.unit.cli.command_line import Done, Run


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short path, for the socket in it."""
    path = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def log_of_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command configures the log for the rest of its process, which here is other tests'."""
    monkeypatch.setattr(logging_config, "configure", lambda *_, **__: None)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def signals_of_this_process() -> Iterator[None]:
    """`serve` has handlers until its process ends, which here goes on; its children inherit them."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(
    home: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Runs a command on `home`."""
    first = tuple(getattr(request.module, "FIRST_WORDS", ()))
    monkeypatch.setenv("OUBLIETTE_HOME", str(home))
    for name in ("OUBLIETTE_URL", "OUBLIETTE_KEY", "OUBLIETTE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    monkeypatch.setattr(output, "_chosen", output.Format.text)

    def call(*words: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main.run([*first, *words])
        said = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, said.out, said.err)

    return call
