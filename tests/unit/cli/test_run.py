"""`oubliette run`: its options that need no server."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from oubliette.api.errors import ResultInvalid
from oubliette.cli.client import tools
from oubliette.cli.run import command, conversation
from oubliette.cli.run.named_parts import result_described, tool_named
from oubliette.cli.run.run_task import RunTask
from oubliette.errors import Forbidden, InvalidParameter, NotFound
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["run"]
SESSION = "gogol_01m8dbmeqzrs00000000000001"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "task", "of", "words"], "unexpected extra argument"),
        (["here", "task", "--repo", "there"], "DIR and --repo"),
        (["task", "--continue", "--session", SESSION], "--continue and --session"),
        (["task", "--session", SESSION, "--dirty"], "--session and a repository"),
        (["task", "--session", SESSION, "--max-cost", "0"], "--max-cost and"),
        (["task", "--continue", "--agent", "scripted"], "--agent and"),
        (["task", "--events", "-o", "json"], "--events and"),
        (["task", "--tool", "calc.add"], "python:MODULE.FUNCTION"),
        (["task", "--returns", "/no/schema.json"], "/no/schema.json"),
    ],
)
def test_what_cannot_be_given_together_is_refused_before_a_server_starts(
    run: Run, home: Path, words: list[str], named: str
) -> None:
    done = run(*words)
    assert done.code == 2
    assert named in done.err
    assert list(home.iterdir()) == []


def test_a_tool_is_a_function_of_a_module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # takes away later what is added
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_of_a_test.py").write_text("def sell() -> str:\n    return 'sold'\n")
    (tmp_path / "broken_of_a_test.py").write_text("1 / 0\n")
    assert tool_named("python:shop_of_a_test.sell")() == "sold"
    for given, named in (
        ("shop_of_a_test.sell", "python:MODULE.FUNCTION"),
        ("python:sell", "python:MODULE.FUNCTION"),
        ("python:shop_of_a_test.sel", "did you mean sell"),
        ("python:no_such_module_at_all.f", "cannot be imported"),
        ("python:broken_of_a_test.f", "ZeroDivisionError"),
    ):
        with pytest.raises(InvalidParameter) as refused:
            tool_named(given)
        assert named in str(refused.value)


def test_a_result_is_valid_by_the_schema_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps({"type": "object", "properties": {"sum": {"type": "integer"}}}))
    kind = result_described(str(file))
    assert '"integer"' in kind.prompt("Add it up")
    assert kind.read('It is\n```json\n{"sum": 3}\n```') == {"sum": 3}
    with pytest.raises(ResultInvalid) as invalid:
        kind.read('{"sum": "3"}')
    assert "$.sum" in invalid.value.reason
    for text in ("{", '{"type": "no type"}', "[]"):
        file.write_text(text)
        with pytest.raises(InvalidParameter) as refused:
            result_described(str(file))
        assert str(file) in str(refused.value)


@pytest.mark.parametrize(("session", "error"), [(SESSION, Forbidden), (None, NotFound)])
def test_a_session_of_another_principal_is_called_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session: str | None, error: type[Exception]
) -> None:
    async def refused(*_: object) -> None:
        raise NotFound("there is no such session")

    monkeypatch.setattr(conversation, "converse", refused)
    monkeypatch.setattr(conversation, "key_of_operator", lambda *_: nullcontext("oub_1"))
    monkeypatch.setattr(tools.HomeServer, "call", lambda *_: {})
    with pytest.raises(error):
        command._with_key(tmp_path, "http://127.0.0.1:1/mcp", RunTask("proj_1", "Go", {}, session))
