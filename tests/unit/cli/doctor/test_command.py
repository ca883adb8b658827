"""The doctor: each check is ok, warn or fail, and names its remedy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oubliette.cli.doctor import agents, checks, command, engines, sandbox
from oubliette.cli.doctor.checks import Check
from oubliette.config.schema import (
    AgentsConfig,
    AppleConfig,
    Config,
    ContainersConfig,
    CredentialConfig,
    DockerConfig,
    OpencodeConfig,
    PodmanConfig,
    ProcessConfig,
    ServerConfig,
    SnapshotsConfig,
)
from oubliette.errors import ConfigError
from oubliette.runtime.containers.process import own_network, unsandboxed
from oubliette.runtime.containers.process.sandbox_probe import Probe
from oubliette.runtime.files import project_users
from oubliette.runtime.files.home import HomeLock
from oubliette.runtime.store import Database
from oubliette.server.control_socket import listening

pytestmark = pytest.mark.sandboxless


def told(check: Check, status: str) -> str:
    assert check.status == status, check
    assert (check.remedy is None) == (status == "ok"), check
    return check.detail


def test_python_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    told(checks.python(), "ok")
    monkeypatch.setattr(checks, "PYTHON", (99, 0))
    told(checks.python(), "fail")


def test_a_home_is_ours_and_closed(home: Path) -> None:
    told(checks.home(home), "ok")
    home.chmod(0o755)
    check = checks.home(home)
    told(check, "warn")
    assert check.remedy == f"chmod 700 {home}"
    told(checks.home(home / "nowhere"), "warn")
    (home / "file").touch()
    told(checks.home(home / "file"), "fail")
    told(checks.home(home / "file" / "below"), "fail")


@pytest.mark.requires("root")
def test_a_home_of_somebody_else_is_no_good(home: Path) -> None:
    os.chown(home, 4321, 4321)
    assert "belongs to user 4321" in told(checks.home(home), "fail")


def test_root_without_users_for_agents_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(project_users, "_MAP", tmp_path / "map")
    (tmp_path / "map").write_text("0 0 4294967295\n")
    assert list(checks.users(home, Config())) == []
    (tmp_path / "map").write_text("0 1000 1\n")
    assert list(checks.users(home / "nowhere", Config())) == []
    (check,) = checks.users(home, Config())
    assert "no user ids for agents" in told(check, "fail")


@pytest.mark.parametrize(
    ("free", "status"), [(10 << 20, "fail"), (500 << 20, "warn"), (5 << 30, "ok")]
)
def test_room_on_the_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    told(checks.disk(home / "not" / "yet"), status)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = Config(server=ServerConfig(port=taken.getsockname()[1]))
        check = checks.port(config, running=False)
        told(check, "fail")
        assert "--port" in (check.remedy or "")
        told(checks.port(config, running=True), "ok")
    told(checks.port(Config(server=ServerConfig(port=0)), running=False), "ok")
    told(checks.port(Config(server=ServerConfig(host="host.invalid")), running=False), "fail")


def test_the_lock_tells_whether_a_server_runs(home: Path) -> None:
    check, running = checks.server(home)
    assert not running
    told(check, "ok")
    assert not (home / "lock").exists()
    with HomeLock(home):
        check, running = checks.server(home)
        assert running
        assert f"this process ({os.getpid()})" in told(check, "fail")
    check, running = checks.server(home)
    assert not running


def test_a_server_that_starts_is_no_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ANSWER_SECONDS", 0.05)
    with HomeLock(home), listening(home):
        check, running = checks.server(home)
    assert running
    assert f"process {os.getpid()} is starting" in told(check, "warn")


def test_a_database_is_looked_at_and_not_changed(home: Path) -> None:
    path = home / "oubliette.db"
    assert "none yet" in told(checks.database(path), "ok")
    from oubliette.runtime.store.migrations import released

    Database(path)
    assert told(checks.database(path), "ok") == f"schema {released()[-1].version}"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    assert "this release knows up to" in told(checks.database(path), "fail")
    assert path.read_bytes() == before
    path.write_bytes(b"rubbish" * 1000)
    told(checks.database(path), "fail")


def test_a_damaged_database_is_found_with_its_remedy(home: Path) -> None:
    path = home / "oubliette.db"
    Database(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    for page in range(5 * 4096, len(data), 4096):
        data[page : page + 512] = b"\xaa" * 512
    path.write_bytes(data)
    check = checks.database(path)
    told(check, "fail")
    assert "put a backup in their place" in (check.remedy or "")
    path.write_bytes(b"no database" * 1000)
    assert "backup" in (checks.database(path).remedy or "")


def test_somebody_elses_database_is_told(home: Path) -> None:
    path = home / "oubliette.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    assert "some other program" in told(checks.database(path), "fail")


def test_the_zipapp_starts() -> None:
    check, path = checks.zipapp()
    told(check, "ok")
    assert path is not None


def test_a_zipapp_that_does_not_start_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oubliette.runtime import zipapp

    broken = home / "broken.pyz"
    broken.write_text("raise SystemExit('no')")
    monkeypatch.setattr(zipapp, "zipapp_path", lambda: broken)
    check, path = checks.zipapp()
    told(check, "fail")
    assert path is None


def test_a_configuration_that_does_not_load_is_told() -> None:
    def load() -> Config:
        raise ConfigError("server.port: is odd", hint="make it even")

    check, config = checks.settings(load)
    assert (check.status, check.detail, check.remedy) == (
        "fail",
        "server.port: is odd",
        "make it even",
    )
    assert config is None


FAKE_GIT = """\
#!/bin/sh
test "$1" != --version || echo git version 2.39.0
test "$#" != 6 || printf '[oubliette]\\n\\tpath = path\\r\\n' > "$4"
test "$#" != 5 || exec {git} "$@"
"""
"""Writes a setting as git did before CVE-2025-48384 was mended."""


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_git_with_a_known_vulnerability_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    (found,) = checks.git()
    assert told(found, "ok").startswith("git version ")
    fake = tmp_path / "git"
    fake.write_text(FAKE_GIT.format(git=real))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = checks.git()
    assert "CVE-2025-48384" in told(found, "warn")
    assert found.remedy is not None
    assert "2.43.7" in found.remedy
    fake.write_text("#!/bin/sh\nexit 1\n")
    (found,) = checks.git()
    assert "does not work" in told(found, "fail")


def test_git_that_is_missing_is_told_unless_snapshots_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = checks.snapshots(Config())
    assert told(missing, "warn") == "none, as git is missing"
    assert missing.remedy == "install git"
    off = Config(snapshots=SnapshotsConfig(mode="off"))
    assert told(checks.snapshots(off), "ok") == "off, as configured"


def test_a_folder_for_sockets_that_is_too_long_is_told(home: Path) -> None:
    config = Config(containers=ContainersConfig(runtime_dir=str(home / ("d" * 90))))
    several, usable = sandbox.sandbox(config)
    assert not usable
    told(several[0], "fail")


def test_best_effort_is_a_warning(home: Path) -> None:
    config = Config(
        containers=ContainersConfig(runtime_dir=str(home)),
        process=ProcessConfig(sandbox="best-effort"),
    )
    several, _ = sandbox.sandbox(config)
    assert {each.name: each.status for each in several}["bubblewrap"] == "warn"


@pytest.mark.requires("bubblewrap")
def test_a_word_goes_through_a_throw_away_container_and_nothing_is_left(home: Path) -> None:
    config = Config(containers=ContainersConfig(runtime_dir=str(home)))
    _, zipapp = checks.zipapp()
    assert zipapp is not None
    assert "round trip" in told(sandbox.relay(config, zipapp), "ok")
    left = [path.name for path in (home / f"oubliette-{os.geteuid()}").iterdir()]
    assert [name for name in left if not name.startswith("kit-")] == []


def test_the_command_tells_all_of_it(home: Path) -> None:
    environ = {**os.environ, "OUBLIETTE_SERVER__PORT": "0", "OUBLIETTE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "oubliette.cli.main", "doctor", "--quick", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=30,
        env=environ,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    names = [check["name"] for check in found["checks"]]
    assert names[:10] == [
        "python",
        "home",
        "configuration",
        "disk",
        "server",
        "port",
        "database",
        "snapshots",
        "git",
        "zipapp",
    ]
    assert {"opencode", "droid", "scripted"} <= {agent["name"] for agent in found["agents"]}
    assert found["credentials"] == []
    for check in found["checks"]:
        assert (check["remedy"] is None) == (check["status"] == "ok")


def test_one_failure_is_exit_code_1(home: Path) -> None:
    (home / "oubliette.toml").write_text("[server]\nprot = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "oubliette.cli.main", "doctor", "--quick", "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "fail  configuration" in done.stdout
    assert "→ did you mean server.port?" in done.stdout


def test_every_engine_is_told_whichever_is_chosen(tmp_path: Path) -> None:
    for runtime in ("auto", "process", "docker", "podman", "apple"):
        config = Config(
            containers=ContainersConfig(runtime=runtime),
            docker=DockerConfig(host=f"unix://{tmp_path}/a.sock"),
            podman=PodmanConfig(host=f"unix://{tmp_path}/b.sock"),
            apple=AppleConfig(path=f"{tmp_path}/none"),
        )
        found = engines.engines(config)
        assert [check.name for check in found] == ["apple", "docker", "podman"]
        assert [check.name for check in found if check.status == "fail"] == (
            [] if runtime in ("auto", "process") else [runtime]
        )


@pytest.mark.whole
def test_apple_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    program = tmp_path / "container"
    program.write_text(
        """#!/bin/sh\ncase $2 in version) echo '[{"version":"1.2.2"}]';; *) exit 1;; esac\n"""
    )
    program.chmod(0o755)
    config = Config(
        containers=ContainersConfig(runtime="apple"), apple=AppleConfig(path=str(program))
    )
    found = {check.name: check for check in engines.engines(config)}
    assert "services of container do not run" in told(found["apple"], "fail")
    assert found["apple"].remedy == "container system start --enable-kernel-install"


@pytest.mark.parametrize(
    ("detail", "status", "mark"),
    [("not used: none", "ok", "-  "), ("works", "ok", "ok "), ("not used", "warn", "warn ")],
)
def test_what_is_there_and_not_used_has_a_mark_of_its_own(
    capsys: pytest.CaptureFixture[str], detail: str, status: str, mark: str
) -> None:
    command._print(Check(name="podman", status=status, detail=detail))  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith(mark)


def test_a_sandbox_that_nobody_asks_for_is_no_failure() -> None:
    broken = Check(name="bubblewrap", status="fail", detail="not installed", remedy="apt install")
    assert told(sandbox.not_asked_for(broken), "ok") == (
        "not used: not installed; to use it: apt install"
    )
    folder = Check(name="runtime folder", status="fail", detail="a link", remedy="remove it")
    assert sandbox.not_asked_for(folder) is folder


@pytest.mark.parametrize(
    ("asked", "there", "status", "detail"),
    [
        ("auto", True, "ok", "own, by pasta"),
        ("auto", False, "warn", "host: .*; pasta is not installed"),
        ("own", False, "fail", "pasta is not installed"),
        ("host", False, "ok", "host: .* closes it"),
        ("none", True, "ok", "none: "),
    ],
)
def test_the_network_of_sandboxes_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, asked: str, there: bool, status: str, detail: str
) -> None:
    reason = None if there else "pasta is not installed"
    monkeypatch.setattr(own_network, "why_not", lambda: reason)
    check = sandbox._network(asked, Probe(ok=True, network_none=True))
    assert re.search(detail, told(check, status))
    assert ("install passt" in (check.remedy or "")) == (status != "ok")


@pytest.mark.whole
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_that_is_not_there_fails_only_where_it_is_asked_for(
    tmp_path: Path, name: str
) -> None:
    away = f"unix://{tmp_path}/away.sock"
    part = {name: (DockerConfig if name == "docker" else PodmanConfig)(host=away)}
    found = {check.name: check for check in engines.engines(Config(**part))}
    assert "to use it: start" in told(found[name], "ok")
    asked = Config(containers=ContainersConfig(runtime=name), **part)
    found = {check.name: check for check in engines.engines(asked)}
    assert "away.sock" in told(found[name], "fail")


def agent_program(folder: Path) -> str:
    program = folder / "opencode"
    program.write_text("#!/bin/sh\necho 1.2.3; echo $KEY $HOME >&2\n")
    program.chmod(0o755)
    return str(program)


def test_an_agent_is_told_with_its_place_version_model_and_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("MODEL_KEY", "very-secret")
    config = Config(
        opencode=OpencodeConfig(
            path=agent_program(home), model="a/b", api_key="env:MODEL_KEY", env=("X=file:/none",)
        )
    )
    found = {check.name: check for check in agents.agents(config, versions=True)}
    check = found["agent opencode"]
    assert f"{home}/opencode, version 1.2.3" in told(check, "fail")
    assert "model a/b" in check.detail
    assert "opencode.api_key (env:MODEL_KEY) is there" in check.detail
    assert "opencode.env: X: /none cannot be read" in check.detail
    assert "very-secret" not in repr(found)
    assert found["agent opencode-acp"].status == "warn", "it is not what sessions get"
    facts = (check.facts or {})["agent"]
    assert (facts["default"], facts["version"], facts["model"]) == (True, "1.2.3", "a/b")
    assert [each["there"] for each in facts["secrets"]] == [True, False]


@pytest.mark.parametrize(("runtime", "status"), [("auto", "fail"), ("docker", "ok")])
def test_a_program_that_the_agents_of_root_cannot_reach_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, status: str
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(unsandboxed.os, "geteuid", lambda: 0)
    config = Config(
        opencode=OpencodeConfig(path=agent_program(home), model="a/b"),
        containers=ContainersConfig(runtime=runtime),
        process=ProcessConfig(sandbox="best-effort"),
    )
    found = {check.name: check for check in agents.agents(config, versions=False)}
    check = found["agent opencode"]
    said = told(check, status)
    assert (f"user 65534, who may not pass {home}" in said) == (status == "fail")
    assert (check.facts or {})["agent"]["usable"] == (status == "ok")


def test_an_agent_that_is_missing_fails_only_where_it_is_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    found = {check.name: check for check in agents.agents(Config(), versions=False)}
    assert "which is for tests" in told(found["agents"], "warn")
    assert "to use it: npm install -g" in told(found["agent opencode"], "ok")
    for name in ("opencode", "opncode"):
        config = Config(agents=AgentsConfig(default=name))
        found = {check.name: check for check in agents.agents(config, versions=False)}
        told(found["agents"], "fail")


def test_a_credential_is_told_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER", "very-secret")
    monkeypatch.delenv("NOT_SET", raising=False)
    config = Config(
        credentials={
            "a": CredentialConfig(value="env:TRACKER", projects=("shop",)),
            "b": CredentialConfig(value="env:NOT_SET"),
        }
    )
    there, away = agents.credentials(config)
    assert told(there, "ok") == "env:TRACKER is there; given to shop"
    assert "NOT_SET is not set; given to no project" in told(away, "warn")
    assert "very-secret" not in repr((there, away))
