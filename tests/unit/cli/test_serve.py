"""`oubliette serve` as scripts use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oubliette.api.control import ControlClient
from oubliette.cli.client.offline import call_offline
from oubliette.cli.serve import background
from oubliette.server import daemon
from tests.unit.cli.command_line import Run

COMMAND = [sys.executable, "-m", "oubliette.cli.main"]


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    home.chmod(0o711)  # where root has no sandbox, its agents are other users and pass through it
    return {
        **os.environ,
        "OUBLIETTE_HOME": str(home / "home"),
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_PROCESS__SANDBOX": "best-effort",
        "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(home / "run"),
    }


@pytest.fixture
def served(home: Path, environ: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environ,
        )
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


def cli(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
        check=False,
    )


def test_a_runtime_that_is_not_there_is_an_error_with_a_hint(environ: dict[str, str]) -> None:
    other = {**environ, "OUBLIETTE_HOME": environ["OUBLIETTE_HOME"] + "-other"}
    done = cli(other, "serve", "--port", "0", "--runtime", "nspawn")
    assert done.returncode == 2
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_agent_that_is_not_there_ends_the_start_at_once(environ: dict[str, str]) -> None:
    other = {**environ, "OUBLIETTE_HOME": environ["OUBLIETTE_HOME"] + "-agent"}
    done = cli(other, "serve", "--port", "0", "--agent", "opncode", "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr.splitlines()[-1])["error"]
    assert "there is no agent 'opncode'" in told["message"]
    assert "did you mean opencode?" in told["hint"]
    assert not Path(other["OUBLIETTE_HOME"]).exists()


def test_an_agent_that_is_not_there_leaves_a_home_as_it_was(environ: dict[str, str]) -> None:
    home = Path(environ["OUBLIETTE_HOME"])
    home.mkdir(0o711)
    (home / "oubliette.toml").write_text('[agents]\ndefault = "opncode"\n', encoding="utf-8")
    done = cli(environ, "serve", "--port", "0")
    assert done.returncode == 2
    assert "there is no agent 'opncode'" in done.stderr
    assert [each.name for each in home.iterdir()] == ["oubliette.toml"]


@pytest.mark.whole
def test_a_home_that_had_an_engine_gets_no_sandbox_unasked(
    home: Path, environ: dict[str, str]
) -> None:
    away = f"unix://{home}/away.sock"
    environ |= {"OUBLIETTE_DOCKER__HOST": away, "OUBLIETTE_PODMAN__HOST": away}
    place = Path(environ["OUBLIETTE_HOME"])
    place.mkdir(0o711)
    (place / "runtime").write_text("docker\n", encoding="ascii")
    refused = cli(environ, "serve", "--port", "0", "--runtime", "auto", "-o", "json")
    assert (refused.returncode, refused.stdout) == (2, "")
    told = json.loads(refused.stderr.splitlines()[-1])["error"]
    assert "in best-effort from now on, which keeps them in less than docker" in told["message"]
    assert "not docker: " in told["message"]
    assert "--runtime process" in told["hint"]
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as named:
        assert named.stdout is not None
        assert json.loads(named.stdout.readline())["event"] == "ready"
        named.terminate()
        assert named.wait(30) == 0
    assert (place / "runtime").read_text(encoding="ascii") == "best-effort\n"


def test_a_server_says_when_it_is_ready_lets_commands_in_and_stops_in_order(
    home: Path, environ: dict[str, str], served: tuple[subprocess.Popen[str], Any]
) -> None:
    """Steps: ready line; a token beside it; a second server refused; SIGTERM; tokens offline."""
    process, ready = served
    assert set(ready) == {"event", "url", "pid"}
    assert (ready["event"], ready["pid"]) == ("ready", process.pid)
    assert ready["url"].startswith("http://127.0.0.1:")
    assert ready["url"].endswith("/mcp")
    made = json.loads(cli(environ, "token", "create", "--scope", "write", "-o", "json").stdout)
    with ControlClient(home / "home") as link:
        listed = link.call("token_list", {})
        assert link.status()["pid"] == process.pid
    assert [each["token_id"] for each in listed["tokens"]] == [made["token_id"]]
    second = cli(environ, "serve", "--port", "0")
    assert second.returncode == 2
    assert f"another process ({process.pid}) uses" in second.stderr
    port = ready["url"].removesuffix("/mcp").rpartition(":")[2]
    other = {**environ, "OUBLIETTE_HOME": str(home / "other")}
    taken = cli(other, "serve", "--port", port)
    assert taken.returncode != 0
    assert taken.stderr.count("error: ") == 1
    assert port in taken.stderr
    assert "Traceback" not in taken.stderr
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait(10) == 0
    assert time.monotonic() - began < 10
    assert process.stdout is not None
    assert process.stdout.read() == "", "nothing but the one line"
    assert not (home / "home" / "control.sock").exists()
    assert made["token"][-43:] not in (home / "log").read_text()
    after = call_offline(home / "home", "token_list", {})
    assert [each["token_id"] for each in after["tokens"]] == [made["token_id"]]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("agent", "words", "noted"),
    [("scripted", [], True), ("opencode", [], False), ("scripted", ["--agent", "scripted"], False)],
)
def test_a_server_without_a_configured_agent_has_a_note(
    run: Run, monkeypatch: pytest.MonkeyPatch, agent: str, words: list[str], noted: bool
) -> None:
    async def begins(home: Path, _: object, *, ready: Callable[[daemon.Ready], None]) -> None:
        parts = {"url": "http://127.0.0.1:1/mcp", "runtime": "process", "isolation": "none"}
        ready(daemon.Ready(pid=1, home=str(home), agent=agent, **parts))

    monkeypatch.setattr(daemon, "serve", begins)
    done = run("serve", *words)
    assert done.code == 0, done.err
    assert ("No agent with a model is configured" in done.err) is noted


def test_a_detached_server_goes_on_tells_its_status_and_ends_its_agents_if_asked(
    environ: dict[str, str],
) -> None:
    """Steps: detach; a second one is refused; a session; the status; stop with its agents."""
    began = cli(environ, "serve", "--detach", "--port", "0", "-o", "json")
    try:
        assert began.returncode == 0, began.stderr
        ready = json.loads(began.stdout)
        assert "oubliette stop --home " in began.stderr
        second = cli(environ, "serve", "--detach", "--port", "0", "-o", "json")
        refused = json.loads(second.stderr)["error"]
        assert (second.returncode, refused["code"]) == (2, "home_in_use")
        assert f"({ready['pid']})" in refused["message"]
        assert "its log is " in refused["hint"]
        assert cli(environ, "project", "create", "shop").returncode == 0
        assert cli(environ, "session", "spawn", "shop", "say hello", "-f").returncode == 0
        status = json.loads(cli(environ, "status", "-o", "json").stdout)
        assert (status["pid"], status["url"]) == (ready["pid"], ready["url"])
        assert (status["sessions"], status["agents"]) == ({"idle": 1}, {"scripted": 1})
        assert status["since"] <= time.time()
    finally:
        ended = cli(environ, "stop", "--agents", "end", "-o", "json")
        cli(environ, "stop")  # one that a failure above has left
    assert json.loads(ended.stdout) == {"pid": ready["pid"], "stopped": True}
    listed = json.loads(cli(environ, "session", "list", "-o", "json").stdout)["sessions"]
    assert [each["status"] for each in listed] == ["completed"]
    assert cli(environ, "status").returncode == 8


@pytest.mark.parametrize("after", [[], [{"event": "loop was blocked", "error": "code"}]])
def test_the_error_of_a_start_is_found_among_what_another_server_logs(
    tmp_path: Path, after: list[dict[str, str]]
) -> None:
    error = {"error": {"code": "home_in_use", "message": "another has it", "hint": None}}
    log = tmp_path / "server.log"
    log.write_text("".join(json.dumps(each) + "\n" for each in ({"event": "begun"}, error, *after)))
    assert background._failure(log, 0).code == "home_in_use"
    log.write_text("killed\n")
    assert background._failure(log, 0).code == "runtime_failure"


@pytest.mark.whole
def test_a_detached_server_that_does_not_start_tells_why_and_where_its_log_is(
    environ: dict[str, str],
) -> None:
    done = cli(environ, "serve", "--detach", "--port", "0", "--agent", "opncode", "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr)["error"]
    assert "there is no agent 'opncode'" in told["message"]
    assert f"its log is {environ['OUBLIETTE_HOME']}/server.log" in told["hint"]
