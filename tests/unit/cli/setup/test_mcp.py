"""`oubliette mcp setup`: an entry in a client's own file, with a key of its own."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from oubliette.api import control
from oubliette.cli.setup import client_file
from oubliette.cli.setup.commented_json import parsed
from tests.unit.cli.command_line import Run

URL = "http://127.0.0.1:8080/mcp"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "claude": (".claude.json", {"mcpServers": {"type": "http", "url": URL, "headers": {}}}),
    "opencode": (
        ".config/opencode/opencode.json",
        {"mcp": {"type": "remote", "oauth": False, "url": URL, "headers": {}}},
    ),
    "cursor": (".cursor/mcp.json", {"mcpServers": {"url": URL, "headers": {}}}),
    "vscode": (
        ".config/Code/User/mcp.json",
        {"servers": {"type": "http", "url": URL, "headers": {}}},
    ),
    "codex": (".codex/config.toml", {"mcp_servers": {"url": URL, "http_headers": {}}}),
    "gemini": (".gemini/settings.json", {"mcpServers": {"httpUrl": URL, "headers": {}}}),
}


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME of a user who has none of these programs yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("oubliette.cli.setup.clients.sys.platform", "linux")
    return tmp_path


def tree_of(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text()) if file.suffix == ".toml" else parsed(file.read_text())


def keys(run: Run) -> dict[str, dict[str, Any]]:
    """Keys of the home by id."""
    listed = json.loads(run("token", "list", "-o", "json").out)["tokens"]
    return {each["token_id"]: each for each in listed}


@pytest.mark.parametrize("client", FORMS)
def test_a_client_gets_an_entry_in_its_own_form_with_a_key_of_the_operator(
    run: Run, user: Path, client: str
) -> None:
    name, form = FORMS[client]
    done = run("mcp", "setup", client)
    assert (done.code, done.out) == (0, "")
    file = user / name
    ((section, wanted),) = form.items()
    entry = dict(tree_of(file)[section]["oubliette"])
    headers = "http_headers" if client == "codex" else "headers"
    key = entry[headers].pop("Authorization").removeprefix("Bearer ")
    assert entry == wanted
    ((token_id, token),) = keys(run).items()
    assert key.startswith(f"oub_{token_id}_")
    assert (token["name"], token["scope"]) == (f"mcp setup {client}", "write")
    assert token["principal"] == "operator"
    assert key not in done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


CODEX = '# mine\nmodel = "o"  # big\n\n[mcp_servers.other]\ncommand = "x"\n'
OPENCODE = '{\n  // mine\n  "mcp": {\n    "other": {"type": "local"}, // it\n  },\n}\n'


@pytest.mark.parametrize(
    ("client", "name", "text"),
    [
        ("codex", ".codex/config.toml", CODEX),
        ("opencode", ".config/opencode/opencode.jsonc", OPENCODE),
        ("claude", ".claude.json", '{"numStartups": 3, "mcpServers": {"a": {"url": "b"}}}'),
    ],
)
def test_what_a_file_has_stays_and_only_ours_goes(
    run: Run, user: Path, client: str, name: str, text: str
) -> None:
    file = user / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o644)
    before = tree_of(file)
    assert run("mcp", "setup", client).code == 0
    for comment in ("# mine", "# big", "// mine", "// it"):
        assert (comment in text) == (comment in file.read_text())
    (section,) = FORMS[client][1]
    after = tree_of(file)
    assert after[section].pop("oubliette")
    assert after == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    done = run("mcp", "setup", client, "--remove", "-o", "json")
    ((token_id, token),) = keys(run).items()
    assert json.loads(done.out)["token_id"] == token_id
    assert token["revoked_at"] is not None
    assert "".join(file.read_text().split()) == "".join(text.split())


def test_a_second_time_the_key_is_replaced_and_the_old_one_revoked(run: Run, user: Path) -> None:
    first = json.loads(run("mcp", "setup", "cursor", "-o", "json").out)["token_id"]
    second = json.loads(run("mcp", "setup", "cursor", "--scope", "read", "-o", "json").out)
    known = keys(run)
    assert known[first]["revoked_at"] is not None
    assert known[second["token_id"]]["revoked_at"] is None
    assert known[second["token_id"]]["scope"] == second["scope"] == "read"
    assert f"oub_{second['token_id']}_" in (user / ".cursor/mcp.json").read_text()


def test_an_entry_may_have_another_name(run: Run, user: Path) -> None:
    run("mcp", "setup", "cursor")
    run("mcp", "setup", "cursor", "--name", "work")
    assert set(tree_of(user / ".cursor/mcp.json")["mcpServers"]) == {"oubliette", "work"}
    run("mcp", "setup", "cursor", "--name", "work", "--remove")
    assert set(tree_of(user / ".cursor/mcp.json")["mcpServers"]) == {"oubliette"}


@pytest.mark.parametrize("words", [(), ("--remove",)])
@pytest.mark.parametrize(
    "entry", ['{"url": "http://else"}', '{"headers": {"Authorization": "Bearer KEY"}}', "5"]
)
def test_an_entry_that_is_not_ours_is_left_alone(
    run: Run, user: Path, words: tuple[str, ...], entry: str
) -> None:
    key = run("token", "create", "--scope", "write", "--name", "by hand").out.strip()
    text = f'{{"mcpServers": {{"oubliette": {entry.replace("KEY", key)}}}}}'
    (user / ".claude.json").write_text(text)
    done = run("mcp", "setup", "claude", *words)
    assert (done.code, done.out) == (1, "")
    assert "has an entry oubliette" in done.err
    assert "--name" in done.err
    assert (user / ".claude.json").read_text() == text
    assert [each["revoked_at"] for each in keys(run).values()] == [None]


def test_an_entry_that_is_not_there_cannot_be_taken_out(run: Run, user: Path) -> None:
    done = run("mcp", "setup", "gemini", "--remove")
    assert (done.code, "has no entry oubliette" in done.err) == (3, True)
    assert not (user / ".gemini").exists()


def test_a_file_that_cannot_be_read_is_named_and_no_key_is_made(run: Run, user: Path) -> None:
    run("token", "create", "--scope", "read")
    for client, name in (("claude", ".claude.json"), ("codex", ".codex/config.toml")):
        file = user / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("[\n")
        done = run("mcp", "setup", client)
        assert (done.code, f"{file}: it is not" in done.err) == (2, True)
        assert file.read_text() == "[\n"
    assert len(keys(run)) == 1


def test_a_key_whose_entry_cannot_be_stored_is_revoked(
    run: Run, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client_file, "replace_file", full)
    done = run("mcp", "setup", "cursor")
    assert (done.code, "No space left" in done.err) == (1, True)
    (token,) = keys(run).values()
    assert token["revoked_at"] is not None


@pytest.mark.parametrize("client", FORMS)
def test_an_entry_that_is_printed_changes_no_file(run: Run, user: Path, client: str) -> None:
    done = run("mcp", "setup", client, "--print")
    read = tomllib.loads if client == "codex" else json.loads
    (section,) = FORMS[client][1]
    assert set(read(done.out)) == {section}
    ((token_id, _),) = keys(run).items()
    assert f"oub_{token_id}_" in done.out
    assert f"oubliette token revoke {token_id}" in done.err
    assert list(user.iterdir()) == []


def test_folders_of_the_clients_own_are_looked_into(
    run: Run, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(user / "c"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(user / "d"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(user / "x"))
    for client in ("codex", "claude", "opencode", "vscode"):
        assert run("mcp", "setup", client).code == 0
    found = {path.relative_to(user).as_posix() for path in user.rglob("*.*") if path.is_file()}
    assert found == {
        "c/config.toml",
        "d/.claude.json",
        "x/opencode/opencode.json",
        "x/Code/User/mcp.json",
    }


def test_a_port_that_changes_with_each_start_is_refused(run: Run, home: Path, user: Path) -> None:
    (home / "oubliette.toml").write_text("[server]\nport = 0\n")
    done = run("mcp", "setup", "claude")
    assert (done.code, done.out) == (1, "")
    assert "oubliette config set server.port 8080" in done.err
    assert list(user.iterdir()) == []


def test_the_address_is_that_of_the_server_that_runs(
    run: Run, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "status_of", lambda _: {"url": "http://127.0.0.1:4711/mcp"})
    done = run("mcp", "setup", "cursor")
    assert "oubliette config set server.port 4711" in done.err
    entry = tree_of(user / ".cursor/mcp.json")["mcpServers"]["oubliette"]
    assert entry["url"] == "http://127.0.0.1:4711/mcp"


def test_printing_and_taking_out_exclude_each_other(run: Run) -> None:
    assert run("mcp", "setup", "claude", "--print", "--remove").code == 2
