"""Commands on a machine that refuses something: each ends with one sentence and a remedy."""

from __future__ import annotations

import errno
import io
import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oubliette.errors import ConfigError, NotFound
from oubliette.mcp_front.transport.http_server import HttpServer
from tests.unit.cli.command_line import Run

COMMANDS = [
    ("project", "list"),
    ("serve", "--port", "0", "--runtime", "process"),
    *(
        pytest.param(words, marks=pytest.mark.whole)
        for words in [
            ("token", "create", "--scope", "read"),
            ("config", "show"),
            ("audit",),
            ("run", "hello"),
        ]
    ),
]
TOO_LONG = "/tmp/" + "a" * 300  # that a name is too long is told to root too


@pytest.fixture
def no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process' user has no HOME, and none has an entry in passwd."""

    def unknown(_: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def removed_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    shutil.rmtree(gone)


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("chosen", ["~nobody-of-this-name/x", "./relative", None])
def test_a_home_that_the_machine_cannot_name_is_refused_in_a_sentence(
    words: tuple[str, ...],
    chosen: str | None,
    run: Run,
    home: Path,
    no_user: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OUBLIETTE_HOME")
    if chosen == "./relative":
        removed_folder(home, monkeypatch)
    done = run(*words, *(["--home", chosen] if chosen is not None else []))
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert "\nhint: " in done.err


@pytest.mark.parametrize("words", COMMANDS)
def test_a_home_that_cannot_be_looked_at_is_refused_in_a_sentence(
    words: tuple[str, ...], run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = home / "mine"
    subprocess.run(["git", "init", "-q", mine], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    first = ["git", "-C", mine, *author, "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(first, check=True)
    monkeypatch.chdir(mine)  # the checkout of the suite may be another user's
    done = run(*words, "--home", TOO_LONG)
    assert done.code in {1, 2}
    assert "File name too long" in done.out + done.err
    assert "Traceback" not in done.out + done.err


def test_an_error_of_the_machine_is_an_error_for_programs_too(run: Run) -> None:
    done = run("audit", "--home", TOO_LONG, "-o", "json")
    told = json.loads(done.err)["error"]
    assert told["code"] == "system"
    assert "File name too long" in told["message"]


@pytest.mark.parametrize(
    ("host", "number", "remedy"),
    [
        ("192.0.2.1", None, "127.0.0.1 always exists"),
        ("no-such-host.invalid", None, "a name that leads to one"),
        ("ü" * 80, None, "a name that leads to one"),
        ("\0", None, "a name that leads to one"),
        ("fe80::1", None, "choose another address"),
        ("127.0.0.1", errno.EACCES, "below 1024"),
        ("::1", errno.EAFNOSUPPORT, "IPv6"),
        ("127.0.0.1", errno.EMFILE, "ulimit -n"),
    ],
)
def test_an_address_that_cannot_be_listened_on_has_the_remedy_of_its_cause(
    host: str, number: int | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number is not None:
        monkeypatch.setattr("socket.socket", refusing(number))
    with pytest.raises(ConfigError) as refused:
        HttpServer(lambda *_: None, host, 0).bind()
    assert refused.value.hint is not None
    assert remedy in refused.value.hint
    assert "another program" not in refused.value.hint


def refusing(number: int) -> Callable[..., None]:
    def socket(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return socket


def test_the_doctor_goes_on_past_a_home_that_may_not_be_entered(run: Run) -> None:
    done = run("doctor", "--quick", "--home", TOO_LONG, "-o", "json")
    told = {each["name"]: each["status"] for each in json.loads(done.out)["checks"]}
    assert (told["home"], told["database"]) == ("fail", "fail")
    assert "zipapp" in told


@pytest.mark.parametrize("as_json", [False, True])
def test_output_in_another_encoding_replaces_what_it_has_no_character_for_and_json_is_ascii(
    as_json: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("token", "create", "--scope", "read", "--name", "ключ")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert run("token", "list", *(("-o", "json") if as_json else ())).code == 0
    text = written.getvalue().decode("ascii")
    assert json.loads(text)["tokens"][0]["name"] == "ключ" if as_json else "????" in text


def test_a_command_whose_standard_descriptors_are_closed_writes_into_no_file(home: Path) -> None:
    command = [sys.executable, "-m", "oubliette", "token", "list", "--home", str(home / "none")]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&- <&- 2>&-', "sh", *command], timeout=60, check=False
    )
    assert done.returncode == 3


def test_a_full_output_is_one_sentence(home: Path) -> None:
    command = [sys.executable, "-m", "oubliette", "--version"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 2)
    assert done.stderr.startswith("error: No space left on device")


def test_a_full_stderr_changes_no_exit_code(home: Path) -> None:
    command = [sys.executable, "-m", "oubliette", "project", "list", "--home", str(home)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (NotFound.exit_code, b"")


def test_a_limit_of_open_files_that_is_too_low_for_a_server_is_refused_with_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    done = run("serve", "--port", "0", "--runtime", "process")
    assert done.code == 2
    assert "the limit of open files is 24, and a server needs at least 48" in done.err
    assert "ulimit -n 1024" in done.err


def test_input_that_is_no_text_is_wrong_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    done = run("run", "-")
    assert done.code == 2
    assert "not text in utf-8" in done.err
