"""Values that a shell completes: ids, names and choices, from what the home has stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from oubliette import ids
from oubliette.cli.client import completion
from oubliette.cli.terminal import choices, documents
from oubliette.contract.agent_options import Autonomy
from oubliette.contract.session_tools import SessionStatus
from oubliette.records import Project, Session
from oubliette.runtime.store import Database, Writer
from oubliette.runtime.store.operations import PutProject, PutSession
from oubliette.tools import registry
from oubliette.tools.auth import scopes
from tests.unit.cli.command_line import Done, Run

Complete = Callable[[str], list[str]]
HOSTILE = '"; $(touch x) \\`id` [bold]'


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash is offered at the end of a line."""

    def offered(line: str) -> list[str]:
        words = ["oubliette", *line.split(" ")]
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv(completion.VARIABLE, "complete_bash")
        done: Done = run()
        assert (done.code, done.err) == (0, "")
        return done.out.split()

    return offered


@pytest.fixture
def stored(home: Path) -> tuple[Project, Session]:
    """A project with a session, whose names an agent has chosen; another with a plain name."""
    odd, plain = (
        Project(
            id=ids.new_id(ids.PROJECT),
            name=name,
            created_at=1.0,
            default_workspace_id=ids.new_uuid(),
            uid=uid,
        )
        for uid, name in enumerate(("$(touch x)", "shop"), 1)
    )
    session = Session(
        id=ids.new_id(ids.SESSION),
        project_id=odd.id,
        workspace_id=ids.new_uuid(),
        agent="scripted",
        principal="p",
        status="idle",
        exploration_id=ids.new_id(ids.EXPLORATION),
        title=HOSTILE,
        created_at=1.0,
        updated_at=1.0,
    )
    writer = Writer(Database(home / "oubliette.db"))
    writer.start()
    writer.submit((PutProject(odd), PutProject(plain), PutSession(session))).result(10)
    writer.close().result(10)
    return odd, session


def test_sessions_and_projects_are_offered_as_they_are_short_and_whole_if_asked(
    complete: Complete, stored: tuple[Project, Session]
) -> None:
    odd, session = stored
    assert complete("diff ") == [session.id[-6:]]
    assert complete("session show gogol_") == [session.id]
    assert complete("audit --session ") == [session.id[-6:]]
    assert complete("session spawn ") == ["shop", odd.id[-6:]]
    assert complete("session list --project sh") == ["shop"]
    assert f"project:{odd.id}" in complete("token create --scope project:")


def test_a_description_has_no_characters_that_a_shell_would_run(
    run: Run, stored: tuple[Project, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "oubliette diff ")
    monkeypatch.setenv(completion.VARIABLE, "complete_zsh")
    shown = run().out
    assert f'"{stored[1].id[-6:]}":"' in shown
    assert "touch x" in shown
    assert not set("$`\\[;") & set(shown)


def test_choices_are_those_of_the_usage_line(complete: Complete) -> None:
    assert complete("session list --status c") == ["created", "completed"]
    assert complete("run --autonomy ") == list(get_args(Autonomy))
    assert complete("token create --scope ")[:3] == ["admin", "write", "read"]
    assert complete("project create --answers t") == ["team"]
    assert complete("stop --agents ") == ["keep", "end"]
    assert "droid" in complete("serve --agent ")
    assert complete("call session_sp") == ["session_spawn"]
    assert "connecting" in complete("docs conn")


def test_the_choices_are_those_that_are_taken() -> None:
    assert choices.AUTONOMY.split("|") == list(get_args(Autonomy))
    assert choices.STATUS.split("|") == list(get_args(SessionStatus))
    for scope in choices.SCOPE.replace("ID", ids.new_id(ids.PROJECT)).split("|"):
        assert scopes.parse(scope)
    assert sorted(documents.tools()) == sorted(registry.TABLE)


def test_commands_are_still_completed(complete: Complete) -> None:
    assert complete("sess") == ["session"]
    assert complete("session wh") == ["why"]


@pytest.mark.parametrize("line", ["diff ", "session spawn ", "token revoke "])
def test_where_nothing_is_stored_nothing_is_offered_or_made(
    complete: Complete, home: Path, line: str
) -> None:
    assert complete(line) == []
    assert list(home.iterdir()) == []


def test_a_home_that_cannot_be_used_offers_nothing(complete: Complete, home: Path) -> None:
    (home / "oubliette.toml").write_text("[", encoding="utf-8")
    assert complete("diff ") == []
    (home / "oubliette.toml").unlink()
    (home / "oubliette.db").write_text("no database", encoding="utf-8")
    assert complete("diff ") == []
