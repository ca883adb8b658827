"""`oubliette config get | set | edit`: one key of the file, or all of it in an editor."""

from __future__ import annotations

import io
import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from oubliette.api import control
from oubliette.server.control_socket import listening
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["config"]

FILE = """\
# what I run on my laptop
[trees]
max_depth = 2    # no deeper

[server]
port = 1234      # the proxy knows it
host = "127.0.0.1"
"""


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "oubliette.toml"
    path.write_text(FILE)
    return path


def editor(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Let `change` of the text be what the user does in the editor."""
    program = f"import sys, pathlib; p = pathlib.Path(sys.argv[1]); t = p.read_text(); {change}"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", shlex.join([sys.executable, "-c", program]))


# ---------------------------------------------------------------------- get


def test_the_value_stands_alone_on_stdout_and_its_source_beside_it(run: Run, file: Path) -> None:
    done = run("get", "server.port")
    assert (done.code, done.out, done.err) == (0, "1234\n", f"from: {file}\n")
    assert run("get", "server.host").out == "127.0.0.1\n"
    assert run("get", "trees.max_agents").err == "from: default\n"
    assert run("get", "opencode.model").out == "\n"


def test_a_value_of_the_environment_names_its_variable(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUBLIETTE_SERVER__PORT", "5")
    assert json.loads(run("get", "server.port", "-o", "json").out) == {
        "key": "server.port",
        "value": 5,
        "source": "environment (OUBLIETTE_SERVER__PORT)",
    }


def test_no_secret_is_printed(run: Run, file: Path) -> None:
    file.write_text(
        '[store]\ndatabase = "postgresql://me:in-clear@db/name"\n'
        '[package_agents.parrot]\ntoken = "in-clear"\n'
    )
    for key in ("store.database", "package_agents.parrot.token"):
        done = run("get", key)
        assert (done.code, "in-clear" in done.out, "(hidden)" in done.out) == (0, False, True)


def test_a_key_of_a_table_that_is_not_there_is_not_found(run: Run, file: Path) -> None:
    assert run("get", "credentials.x.value").code == 3


@pytest.mark.parametrize("words", [("get", "server.prt"), ("set", "server.prt", "1")])
def test_an_unknown_key_is_told_with_the_nearest_one(
    run: Run, file: Path, words: tuple[str, ...]
) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err == ("error: there is no key server.prt\nhint: did you mean server.port?\n")
    assert file.read_text() == FILE


# ---------------------------------------------------------------------- set


def test_a_value_is_replaced_and_every_other_character_kept(run: Run, file: Path) -> None:
    done = run("set", "server.port", "9000")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"server.port = 9000 (in {file})\n"
    assert file.read_text() == FILE.replace("1234", "9000")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("server.allowed_hosts", "a:*, b", 'allowed_hosts = ["a:*", "b"]'),
        ("server.allowed_hosts", '["a:*"]', 'allowed_hosts = ["a:*"]'),
        ("relay.accept_bare", "true", "[relay]\naccept_bare = true"),
        ("sessions.idle_timeout_seconds", "30m", 'idle_timeout_seconds = "30m"'),
        ("trees.max_cost_usd", "2.5", "max_cost_usd = 2.5"),
        ("opencode.api_key", "env:A_KEY", 'api_key = "env:A_KEY"'),
        ("credentials.github.value", "file:/x", '[credentials.github]\nvalue = "file:/x"'),
        ("project_containers.a shop.pids", "99", '[project_containers."a shop"]\npids = 99'),
        ("package_agents.parrot.token", "env:A", '[package_agents.parrot]\ntoken = "env:A"'),
    ],
)
def test_each_kind_of_value_is_written_as_the_loader_reads_it(
    run: Run, file: Path, key: str, value: str, line: str
) -> None:
    assert run("set", key, value).code == 0
    assert line in file.read_text()
    assert "# the proxy knows it" in file.read_text()
    assert run("get", key).err == f"from: {file}\n"


def test_the_first_value_makes_the_home_and_its_file(run: Run, home: Path) -> None:
    assert run("set", "server.port", "7").code == 0
    assert (home / "oubliette.toml").read_text() == "[server]\nport = 7\n"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("server.port", "70000", "server.port: expected int <= 65535 (from command line)"),
        ("server.port", "many", "server.port: expected int, got str (from command line)"),
        ("server.on_stop", "die", "server.on_stop: invalid enum value 'die'"),
        ("sessions.idle_timeout_seconds", "soon", "sessions.idle_timeout_seconds: "),
        ("credentials.value", "env:A", "there is no key credentials.value"),
        ("container_types.rust.memroy_mb", "9", "there is no key container_types.rust.memroy_mb"),
    ],
)
def test_a_value_that_the_loader_refuses_is_not_written(
    run: Run, file: Path, key: str, value: str, message: str
) -> None:
    done = run("set", key, value)
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
    assert file.read_text() == FILE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("opencode.api_key", "hunter2"),
        ("credentials.github.value", "hunter2"),
        ("opencode.env", "MODE=fast,ANTHROPIC_API_KEY=hunter2"),
        ("acp_agents.claude.env", "ANTHROPIC_API_KEY=hunter2"),
        ("package_agents.parrot.token", "hunter2"),
        ("package_agents.parrot.env", '["API_KEY=hunter2"]'),
    ],
)
def test_a_secret_is_refused_with_the_remedy_and_not_repeated(
    run: Run, file: Path, key: str, value: str
) -> None:
    done = run("set", key, value)
    assert done.code == 2
    assert key.rpartition(".")[0] in done.err
    assert "hunter2" not in done.err
    assert "env:NAME" in done.err.partition("hint:")[2]
    assert "file:/path" in done.err.partition("hint:")[2]
    assert file.read_text() == FILE


def test_a_key_is_taken_out_and_its_default_holds(run: Run, file: Path) -> None:
    done = run("unset", "server.port")
    assert (done.code, done.out) == (0, "")
    assert "server.port is not set" in done.err
    assert "it is 8080" in done.err
    assert file.read_text() == FILE.replace("port = 1234      # the proxy knows it\n", "")
    again = run("unset", "server.port")
    assert (again.code, "is not in" in again.err) == (3, True)
    assert run("unset", "server.prt").code == 2
    told = json.loads(run("unset", "trees.max_depth", "-o", "json").out)
    assert (told["key"], told["restart"]) == ("trees.max_depth", False)


def test_a_wrong_value_in_the_file_can_be_replaced(run: Run, file: Path) -> None:
    file.write_text("[server]\nport = 'many'  # ?\n")
    assert run("set", "server.port", "5").code == 0
    assert file.read_text() == "[server]\nport = 5  # ?\n"


@pytest.mark.parametrize(
    "text",
    ["[server\n", f"[server]\nport = {'9' * 5000}\n", f"a = {'[' * 3000}{']' * 3000}\n"],
    ids=["open", "digits", "nested"],
)
def test_a_file_that_is_no_toml_is_left_alone(run: Run, file: Path, text: str) -> None:
    file.write_text(text)
    done = run("set", "server.port", "5")
    assert (done.code, file.read_text()) == (2, text)
    assert "oubliette.toml: " in done.err


def test_what_takes_precedence_over_the_file_is_named(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUBLIETTE_SERVER__PORT", "5")
    done = run("set", "server.port", "6")
    assert "environment (OUBLIETTE_SERVER__PORT) takes precedence" in done.err


def test_a_server_that_runs_is_to_be_started_again(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.ControlClient, "answers", lambda *_: True)
    monkeypatch.setattr(control.ControlClient, "status", lambda _: {"pid": 77})
    with listening(file.parent):
        done = run("set", "server.port", "6")
        told = json.loads(run("set", "server.port", "6", "-o", "json").out)
    assert "process 77" in done.err
    assert "oubliette stop, and start it again" in done.err
    assert told == {"key": "server.port", "value": 6, "file": str(file), "restart": True}


def test_a_file_behind_a_link_is_changed_where_it_is(run: Run, file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    file.rename(real)
    file.symlink_to(real)
    assert run("set", "server.port", "6").code == 0
    assert file.is_symlink()
    assert "port = 6" in real.read_text()


# ---------------------------------------------------------------------- edit


def test_what_the_editor_leaves_is_stored(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, "p.write_text(t.replace('1234', '77') + '# more')")
    done = run("edit")
    assert (done.code, done.err) == (0, f"{file} is stored.\n")
    assert file.read_text() == FILE.replace("1234", "77") + "# more"


def test_an_unchanged_text_is_not_written(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, "pass")
    before = file.stat()
    done = run("edit", "-o", "json")
    assert json.loads(done.out) == {"file": str(file), "changed": False, "restart": False}
    assert file.stat() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("t.replace('port', 'prt')", "did you mean server.port?"),
        ("t.replace('port =', 'port ')", "oubliette.toml: "),
        ("t + '[opencode]\\nenv = [\"API_KEY=hunter2\"]'", "opencode.env: API_KEY: a secret"),
    ],
)
def test_a_text_that_is_invalid_is_not_stored(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, change: str, message: str
) -> None:
    editor(monkeypatch, f"p.write_text({change})")
    done = run("edit")
    assert done.code == 2
    assert message in done.err
    assert "hunter2" not in done.err
    assert file.read_text() == FILE


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_a_person_may_mend_an_invalid_text(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, broken = "t.replace('prt', 'port') + '# more'", "t.replace('port', 'prt')"
    editor(monkeypatch, f"p.write_text({mended} if 'prt' in t else {broken})")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = run("edit")
    assert done.code == 0
    assert "did you mean server.port?" in done.err
    assert file.read_text() == FILE + "# more"
    editor(monkeypatch, f"p.write_text({broken})")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    done = run("edit")
    assert (done.code, file.read_text()) == (2, FILE + "# more")
    assert done.err.endswith(f"error: {file} is unchanged\n")


def test_a_change_of_another_program_meanwhile_is_kept(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, f"p.write_text(t + '#'); pathlib.Path({str(file)!r}).write_text('')")
    done = run("edit")
    assert done.code == 1
    assert "was changed meanwhile" in done.err
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("command", "message"), [("/nonexistent/editor", "No such file"), ("false", "exit code 1")]
)
def test_an_editor_that_fails_changes_nothing(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.setenv("VISUAL", command)
    done = run("edit")
    assert (done.code, message in done.err) == (1, True)
    assert file.read_text() == FILE
