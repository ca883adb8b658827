"""The commands: what they print, where, and how they exit (docs/command-line.md)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oubliette import ids
from oubliette.cli.client import tools
from oubliette.cli.client.following import ExitCode
from oubliette.records import Project, Session
from oubliette.runtime.audit_log import AuditEntry, AuditLog
from oubliette.runtime.files.home import HomeLock
from oubliette.runtime.store import Database, Writer
from oubliette.runtime.store.operations import PutProject, PutSession
from oubliette.server.control_socket import listening
from tests.unit.cli.command_line import Run
from tests.unit.cli.exit_codes import exit_codes

OUBLIETTE = [sys.executable, "-m", "oubliette.cli.main"]


@pytest.fixture
def server(home: Path) -> Iterator[Callable[[dict[str, Any] | None], None]]:
    """A control socket that gives one canned answer to everything."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home / "control.sock"))
    listener.listen()
    answer: list[dict[str, Any] | None] = [None]
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link, link.makefile("rwb") as lines:
                for line in lines:
                    if answer[0] is None:
                        over.wait(5)  # says nothing
                        break
                    lines.write(
                        json.dumps({"id": json.loads(line)["id"], **answer[0]}).encode() + b"\n"
                    )
                    lines.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield lambda given: answer.__setitem__(0, given)
    over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "PROMPT_SECONDS", 0.05)
    monkeypatch.setattr(tools, "WAIT_SECONDS", 0.1)


def problem(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "it is so", "hint": "do this"}}


# ---------------------------------------------------------------------- exit codes


def test_exit_code_0_is_success(run: Run) -> None:
    assert run("token", "create", "--scope", "read").code == 0


def test_exit_code_8_is_a_home_on_which_no_server_runs(run: Run) -> None:
    done = run("session", "end", ids.new_id(ids.SESSION))
    assert done.code == 8
    assert done.out == ""
    assert done.err.startswith("error: no server runs on ")
    assert "\nhint: oubliette serve --home " in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["token"],
        ["token", "create"],
        ["token", "create", "--scope", "all"],
        ["token", "create", "--scope", "read", "--expires-in", "soon"],
        ["token", "create", "--scope", "read", "--expires-in", "-5"],
        ["session", "logs", "01k0", "--since", "5"],
        ["audit", "--since", "yesterday"],
        ["token", "create", "--scope", "read", "--name", "a\nb"],
        ["token", "list", "--nope"],
        ["token", "list", "-o", "yaml"],
        ["serve", "--port", "70000"],
        ["serve", "--log-level", "loud"],
        ["session", "show", "../x"],
    ],
)
def test_exit_code_2_is_wrong_usage(run: Run, arguments: list[str]) -> None:
    run("token", "create", "--scope", "read")
    done = run(*arguments)
    assert done.code == 2
    if arguments != ["token"]:
        assert done.out == ""
        assert done.err


def test_exit_code_2_is_a_wrong_configuration(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "oubliette.toml").write_text("[server]\nprot = 1\n")
    done = run("config", "show")
    assert (done.code, done.out) == (2, "")
    assert "hint: did you mean server.port?" in done.err


def test_exit_code_3_is_not_found(run: Run) -> None:
    run("token", "create", "--scope", "read")
    assert run("token", "revoke", ids.new_id(ids.TOKEN)).code == 3
    assert run("session", "show", ids.new_id(ids.SESSION)).code == 3


def test_exit_code_3_is_a_home_without_a_database(run: Run) -> None:
    done = run("token", "list")
    assert (done.code, done.out) == (3, "")
    assert "has no database yet" in done.err


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("conflict", 1),
        ("already_exists", 7),
        ("invalid_parameter", 2),
        ("not_found", 3),
        ("forbidden", 4),
        ("unauthenticated", 4),
        ("deadline_exceeded", 5),
        ("ask_timeout", 5),
        ("limit_exceeded", 6),
        ("something new", 1),
    ],
)
def test_an_error_of_the_server_exits_with_the_code_of_its_kind(
    run: Run, server: Any, code: str, wanted: int
) -> None:
    server(problem(code))
    done = run("project", "list")
    assert (done.code, done.out) == (wanted, "")
    assert done.err == "error: it is so\nhint: do this\n"


def test_exit_code_5_is_a_server_that_says_nothing(
    run: Run, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    done = run("session", "end", ids.new_id(ids.SESSION))
    assert done.code == 5
    assert "did not answer within" in done.err


def test_every_error_has_an_exit_code() -> None:
    assert exit_codes() == {1, 2, 3, 4, 5, 6, 7, 8}
    assert set(ExitCode) - exit_codes() == {0, 9, 124, 130}


# ---------------------------------------------------------------------- names


def test_a_project_is_named_in_a_scope_and_in_a_call(run: Run, home: Path) -> None:
    project = Project(
        id=ids.new_id(ids.PROJECT),
        name="demo",
        created_at=1.0,
        default_workspace_id=ids.new_uuid(),
        uid=1,
    )
    writer = Writer(Database(home / "oubliette.db"))
    writer.start()
    writer.submit((PutProject(project),)).result(10)
    writer.close().result(10)
    for given, kept in (("demo", ""), ("demo:ro", ":ro"), (project.id[-6:], "")):
        done = run("token", "create", "--scope", f"project:{given}", "-o", "json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["scope"] == f"project:{project.id}{kept}"
    done = run("call", "project_get", "project_id=demo", "-o", "json")
    assert json.loads(done.out)["id"] == project.id, done.err
    unknown = run("token", "create", "--scope", "project:shop")
    assert (unknown.code, "none has this name" in unknown.err) == (3, True)
    assert "project_id" in run("call", "project_get", "project_id=shop").err


def test_workspaces_are_listed_with_their_folders(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = dict.fromkeys(("last_session_at", "external_id", "source"), None)
    workspace |= {"id": ids.new_uuid(), "is_default": True, "created_at": 1.0}

    def call(*_: object, **__: object) -> dict[str, Any]:
        return {"workspaces": [workspace], "next_cursor": None}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    project = ids.new_id(ids.PROJECT)
    cells = run("workspace", "list", project).out.splitlines()[1].split("\t")
    assert cells[0] == workspace["id"]
    assert cells[-1] == str(home / "projects" / project / "workspaces" / cells[0])


# ---------------------------------------------------------------------- output


def test_results_for_programs_are_one_json_document_on_stdout(run: Run) -> None:
    made = json.loads(run("token", "create", "--scope", "write", "-o", "json").out)
    assert set(made) == {"token", "token_id", "scope", "principal", "expires_at", "users"}
    listed = run("token", "list", "-o", "json")
    assert listed.err == ""
    assert [each["token_id"] for each in json.loads(listed.out)["tokens"]] == [made["token_id"]]
    revoked = json.loads(run("token", "revoke", made["token_id"], "-o", "json").out)
    assert revoked == {"token_id": made["token_id"], "revoked": True}


def test_errors_for_programs_are_json_on_stderr(run: Run, server: Any) -> None:
    server(problem("not_found"))
    done = run("project", "list", "-o", "json")
    assert done.out == ""
    assert json.loads(done.err) == problem("not_found")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["token", "list", "--nope"], "--nope"),
        (["token", "create"], "--scope"),
        (["token", "create", "--scope", "read", "--expires-in", "soon"], "--expires-in"),
        (["token", "nope"], "nope"),
        (["nope"], "nope"),
        (["session", "show"], "session_id"),
        (["session", "show", "a", "b"], "b"),
        (["session", "show", "../x"], "../x"),
        (["session", "logs", "abcd", "--after"], "--after"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--port", "many"], "--port"),
        (["serve", "--log-level", "loud"], "--log-level"),
        (["audit", "--since", "yesterday"], "--since"),
        (["token", "create", "--scope", "all"], "scope"),
    ],
)
@pytest.mark.parametrize("option", [("-o", "json"), ("-ojson",), ("--output=json",)])
def test_wrong_usage_for_programs_is_json_on_stderr(
    run: Run, arguments: list[str], named: str, option: tuple[str, ...]
) -> None:
    split = next((at for at, word in enumerate(arguments) if word[0] == "-"), len(arguments))
    done = run(*arguments[:split], *option, *arguments[split:])
    assert (done.code, done.out) == (2, "")
    error = json.loads(done.err)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert named in error["message"]
    assert error["code"] in {"usage", "invalid_parameter"}


def test_the_error_of_a_taken_name_has_the_id_of_its_owner_for_programs(
    run: Run, server: Callable[[dict[str, Any] | None], None]
) -> None:
    taken = problem("already_exists")
    taken["error"]["existing_id"] = "proj_1"
    server(taken)
    done = run("project", "create", "demo", "-o", "json")
    assert (done.code, json.loads(done.err)) == (7, taken)


def test_wrong_usage_names_the_help_that_tells_it(run: Run) -> None:
    told = json.loads(run("session", "logs", "-fo", "json", "x", "--nope").err)["error"]
    assert told["code"] == "usage"
    assert told["hint"] == "oubliette session logs --help"


def test_what_stands_after_two_dashes_is_no_option(run: Run) -> None:
    done = run("session", "show", "--nope", "--", "-o", "json")
    assert (done.code, done.out) == (2, "")
    assert not done.err.startswith("{")


def test_exit_codes_for_programs_are_those_for_people(run: Run) -> None:
    run("token", "create", "--scope", "read")
    assert run("token", "list", "-o", "json").code == 0
    assert run("doctor", "--help", "-o", "json").code == 0
    assert run("token", "revoke", ids.new_id(ids.TOKEN), "-o", "json").code == 3


def test_a_key_in_a_pipe_stands_alone_on_stdout(run: Run) -> None:
    done = run("token", "create", "--scope", "read", "--principal", "ann", "--expires-in", "60")
    assert done.out.startswith("oub_tok_")
    assert done.out.count("\n") == 1
    assert "principal ann" in done.err


def test_lists_in_a_pipe_are_plain_columns(run: Run) -> None:
    run("token", "create", "--scope", "read", "--name", "[bold]x")
    lines = run("token", "list").out.splitlines()
    assert lines[0].split("\t")[:2] == ["ID", "NAME"]
    assert lines[1].split("\t")[1] == "[bold]x"


def test_nothing_that_an_agent_said_drives_the_terminal(run: Run, server: Any) -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jx\r"
    event = {
        "type": "message\x1b[2J",
        "session_id": "s",
        "index": 0,
        "ts": 0.0,
        "seq": 1,
        "version": 1,
        "text": evil,
        "more": {"a": evil},
    }
    page = {
        "status": "completed",
        "events": [event],
        "last_index": 0,
        "more": False,
        "truncated_before": None,
    }
    server({"ok": page})
    out = run("session", "logs", ids.new_id(ids.SESSION)).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\r" not in out
    assert "message\N{REPLACEMENT CHARACTER}[2J " in out


def test_logs_for_programs_are_one_event_a_line(run: Run, server: Any) -> None:
    event = {"type": "message", "session_id": "s", "index": 3, "ts": 1.0, "text": "\x1b"}
    page = {
        "status": "idle",
        "events": [event, event],
        "last_index": 3,
        "more": False,
        "truncated_before": 2,
    }
    server({"ok": page})
    done = run("session", "logs", ids.new_id(ids.SESSION), "-o", "json")
    assert [json.loads(line) for line in done.out.splitlines()] == [event, event]
    assert "the first that is kept is 2" in done.err


# ---------------------------------------------------------------------- with and without a server


def test_tokens_need_no_server(run: Run, home: Path) -> None:
    made = json.loads(run("token", "create", "--scope", "admin", "-o", "json").out)
    assert made["token_id"] in run("token", "list").out
    assert oct(home.stat().st_mode)[-3:] == "700"
    assert oct((home / "oubliette.db").stat().st_mode)[-3:] == "600"


def test_what_reads_needs_no_lock(run: Run, home: Path) -> None:
    made = json.loads(run("token", "create", "--scope", "read", "-o", "json").out)
    with HomeLock(home):
        assert made["token_id"] in run("token", "list").out
        assert run("session", "list").code == 0


def test_what_reads_does_not_wait_for_a_server_that_says_nothing(
    run: Run, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    run("token", "create", "--scope", "read")
    assert run("token", "list").code == 5, "there is nothing to read yet"


def test_what_reads_beside_a_server_that_says_nothing_is_what_is_stored(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    made = json.loads(run("token", "create", "--scope", "read", "-o", "json").out)
    with listening(home), HomeLock(home):
        done = run("token", "list")
    assert (done.code, done.err) == (0, "")
    assert made["token_id"] in done.out


def test_a_read_leaves_the_audit_log_to_its_server_but_for_its_own_line(
    run: Run, home: Path
) -> None:
    (home / "oubliette.toml").write_text("[audit]\nmax_file_mb = 1\n")
    run("token", "create", "--scope", "read")
    log = home / "audit.jsonl"
    log.write_text("x" * 2_000_000 + "\n")
    with HomeLock(home):
        run("token", "list")
    assert json.loads(log.read_text().splitlines()[-1])["tool"] == "token_list"
    assert not (home / "audit.jsonl.1").exists()


def test_what_writes_waits_for_the_lock_and_says_so(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "PROMPT_SECONDS", 0.05)
    run("token", "create", "--scope", "read")
    lock = HomeLock(home)
    lock.acquire()
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        lock.release()  # once we are waited for

    monkeypatch.setattr(tools, "note", note)
    assert run("token", "create", "--scope", "read").code == 0
    assert said == [
        f"waiting for the server of {home} (process {os.getpid()}), which is starting or stopping …"
    ]
    with HomeLock(home):
        pass  # it was given back


def test_what_writes_gives_up_at_a_deadline(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    run("token", "create", "--scope", "read")
    with HomeLock(home):
        done = run("token", "create", "--scope", "read")
        told = run("token", "create", "--scope", "read", "-o", "json")
    assert (done.code, done.out) == (5, "")
    assert f"process {os.getpid()}" in done.err
    assert "stop it" not in done.err
    assert json.loads(told.err)["error"]["code"] == "deadline_exceeded"


def test_what_needs_a_server_waits_for_one_that_starts(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps: the socket is there, nobody serves it; the command says so; then it is answered."""
    monkeypatch.setattr(tools, "PROMPT_SECONDS", 0.05)
    with listening(home) as listener, HomeLock(home):
        listener.settimeout(10)

        def serve() -> None:
            link, _ = listener.accept()
            with link, link.makefile("rwb") as lines:
                for line in lines:
                    answer = {"id": json.loads(line)["id"], "ok": {"status": "completed"}}
                    lines.write(json.dumps(answer).encode() + b"\n")
                    lines.flush()

        thread = threading.Thread(target=serve, daemon=True)
        monkeypatch.setattr(tools, "note", lambda _: thread.start())
        done = run("session", "end", ids.new_id(ids.SESSION))
        thread.join(10)
    assert done.code == 0
    assert "is completed" in done.err


def test_a_call_that_was_sent_is_not_sent_again(run: Run, home: Path) -> None:
    calls: list[str] = []
    with listening(home) as listener, HomeLock(home):
        listener.settimeout(10)

        def serve() -> None:
            link, _ = listener.accept()
            with link, link.makefile("rwb") as lines:
                for line in lines:
                    request = json.loads(line)
                    calls.append(request["verb"])
                    if request["verb"] == "call":
                        return
                    lines.write(json.dumps({"id": request["id"], "ok": {}}).encode() + b"\n")
                    lines.flush()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = run("token", "create", "--scope", "read")
        thread.join(10)
    assert done.code == 1
    assert "closed the link" in done.err
    assert calls == ["status", "call"]


def test_following_a_log_without_a_server_shows_what_there_is_and_ends(
    run: Run, home: Path
) -> None:
    run("token", "create", "--scope", "read")
    session = ids.new_id(ids.SESSION)
    record = Session(
        id=session,
        project_id=ids.new_id(ids.PROJECT),
        workspace_id=ids.new_uuid(),
        principal="p",
        agent="scripted",
        status="idle",
        created_at=1.0,
        updated_at=1.0,
        exploration_id=ids.new_id(ids.EXPLORATION),
    )
    writer = Writer(Database(home / "oubliette.db"))
    writer.start()
    writer.submit((PutSession(record),)).result(10)
    writer.close().result(10)
    done = run("session", "logs", "-f", session)
    assert done.code == 8
    assert "no server runs on" in done.err


def test_listings_work_without_a_server(run: Run) -> None:
    run("token", "create", "--scope", "read")
    assert json.loads(run("project", "list", "-o", "json").out) == {"projects": []}
    assert json.loads(run("session", "list", "-o", "json").out) == {"sessions": []}


def test_the_home_may_be_named(run: Run, home: Path) -> None:
    other = home / "other"
    run("token", "create", "--scope", "read", "--home", str(other))
    assert (other / "oubliette.db").exists()
    assert not (home / "oubliette.db").exists()


def test_the_audit_log_tells_names_beside_ids(run: Run, home: Path) -> None:
    key = json.loads(run("token", "create", "--scope", "read", "--name", "ci", "-o", "json").out)
    project = Project(
        id=ids.new_id(ids.PROJECT),
        name="shop",
        created_at=1.0,
        default_workspace_id=ids.new_uuid(),
        uid=1,
    )
    writer = Writer(Database(home / "oubliette.db"))
    writer.start()
    writer.submit((PutProject(project),)).result(10)
    writer.close().result(10)
    log = AuditLog(home, max_bytes=1 << 20, files=1)
    for project_id in (project.id, ids.new_id(ids.PROJECT)):
        log.write(
            AuditEntry(
                ts=1.0,
                tool="project_get",
                transport="http",
                token_id=key["token_id"],
                principal="p",
                project_id=project_id,
            )
        )
    log.close()
    told = [json.loads(line) for line in run("audit", "-o", "json").out.splitlines()]
    assert [each["project_name"] for each in told if each["tool"] == "project_get"] == [
        "shop",
        None,
    ]
    assert told[-1]["token_name"] == "ci"
    assert f"{key['token_id']}\tci\t" in run("audit").out
    for given in ("shop", project.id, project.id[-8:]):
        only = run("audit", "--project", given, "--token-id", key["token_id"][-8:]).out
        assert only.count("project_get") == 1
    assert run("audit", "--project", "nowhere").code == 3


# ---------------------------------------------------------------------- the configuration


def test_the_configuration_is_shown_as_the_file_would_have_it(run: Run, home: Path) -> None:
    import tomllib

    (home / "oubliette.toml").write_text("[server]\nport = 1234\n")
    shown = tomllib.loads(run("config", "show").out)
    assert shown["server"]["port"] == 1234
    assert json.loads(run("config", "show", "-o", "json").out)["server"]["port"] == 1234


def test_sources_of_the_configuration(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "oubliette.toml").write_text("[server]\nport = 1234\n")
    monkeypatch.setenv("OUBLIETTE_TREES__MAX_DEPTH", "5")
    sources = json.loads(run("config", "show", "--sources", "-o", "json").out)
    assert sources["server.port"] == {"value": 1234, "source": str(home / "oubliette.toml")}
    assert sources["trees.max_depth"] == {
        "value": 5,
        "source": "environment (OUBLIETTE_TREES__MAX_DEPTH)",
    }
    assert sources["trees.max_agents"]["source"] == "default"
    assert "trees.max_depth\t5\tenvironment (" in run("config", "show", "--sources").out


def test_secrets_in_the_tables_of_packages_are_not_shown(run: Run, home: Path) -> None:
    (home / "oubliette.toml").write_text(
        "[package_agents.parrot]\n"
        'apiKey = "in-clear"\ntoken = "env:PARROT_TOKEN"\nmodel = "grey"\n'
        'env = ["PASSWORD=in-clear", "MODE=fast"]\n'
        '[package_runtimes.cage]\nurl = "https://me:in-clear@cage.example"\n'
    )
    for words in ((), ("--sources",), ("-o", "json"), ("--sources", "-o", "json")):
        shown = run("config", "show", *words).out
        assert "in-clear" not in shown
        for kept in ("env:PARROT_TOKEN", "grey", "MODE=fast", "https://me:(hidden)@cage.example"):
            assert kept in shown


def test_the_schema_of_the_configuration(run: Run) -> None:
    schema = json.loads(run("config", "schema").out)
    assert schema == json.loads(run("config", "schema", "-o", "json").out)
    assert schema["properties"]["server"]["properties"]["port"]["maximum"] == 65535


# ---------------------------------------------------------------------- the program


def test_the_version(run: Run) -> None:
    from oubliette import __version__

    assert run("--version").out == f"oubliette {__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["doctor"],
        ["token"],
        ["token", "create"],
        ["session", "logs"],
        ["config", "show"],
        ["project", "list"],
    ],
)
def test_every_command_explains_itself(run: Run, command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    assert "Usage: oubliette" in done.out


def test_help_imports_nothing_heavy() -> None:
    """Completion runs the program at every key press."""
    source = (
        "import sys, oubliette.cli.main as m\n"
        "heavy = ('mcp', 'starlette', 'uvicorn', 'pykka', 'structlog', 'sqlite3', 'msgspec',"
        " 'pydantic', 'oubliette.actors', 'oubliette.tools', 'rich.console')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == "[]\n"


def test_completion_is_offered(run: Run) -> None:
    assert "--install-completion" in run("--help").out
