"""`oubliette call`: every tool, its help, its arguments in every form."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from oubliette.cli import call as command
from oubliette.cli import main
from oubliette.cli.terminal import tool_help
from oubliette.contract import validation
from oubliette.tools.registry import TABLE, input_schema, output_schema
from tests.unit.cli.command_line import Run

HERE = [tool for tool in TABLE.values() if "control" in tool.transports]
ELSEWHERE = [tool.name for tool in TABLE.values() if "control" not in tool.transports]
TOOLS = pytest.mark.parametrize("tool", HERE, ids=lambda tool: tool.name)


FIRST_WORDS = ["call"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would go to the server: tool, arguments and timeout of each call."""
    from oubliette.cli.client import tools

    calls: list[Any] = []

    def call(_: object, tool: str, given: dict[str, Any], timeout: float) -> dict[str, Any]:
        calls.append((tool, given, timeout))
        return {"is": "so\x1b"}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return calls


# ---------------------------------------------------------------------- help


def test_without_a_tool_all_are_listed_with_a_line_each(run: Run) -> None:
    lines = run().out.splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == [tool.name for tool in HERE]
    assert all(line.split("\t")[1].endswith(".") for line in lines[1:])
    listed = json.loads(run("-o", "json").out)["tools"]
    assert listed[0] == {"name": "project_create", "description": HERE[0].description}


@TOOLS
def test_the_help_of_a_tool_has_all_that_it_takes_and_gives(run: Run, tool: Any) -> None:
    done = run(tool.name, "--help")
    assert done.code == 0
    words = " ".join(done.out.split())
    assert tool.description in words
    schema = input_schema(tool)
    for name, part in schema.get("properties", {}).items():
        assert f" {name}: {tool_help.type_of(part)}" in words
        assert " ".join(part["description"].split()) in words
    for name in schema.get("required", ()):
        assert f"{name}: {tool_help.type_of(schema['properties'][name])}, required" in words
    assert ", ".join(output_schema(tool)["properties"]) in words


@TOOLS
def test_the_example_of_a_tool_is_a_call_that_it_takes(
    run: Run, sent: list[Any], tool: Any
) -> None:
    line = json.loads(run(tool.name, "--help", "-o", "json").out)["example"]
    assert line in run(tool.name, "--help").out
    words = shlex.split(line)
    assert words[:2] == ["oubliette", "call"]
    assert run(*words[2:]).code == 0
    ((name, given, _),) = sent
    assert name == tool.name
    validation.decode(tool.params, given, name)  # refuses what the tool would refuse


def test_defaults_and_choices_are_told(run: Run) -> None:
    told = run("project_create", "--help").out
    assert "  init_git: boolean, default true\n" in told
    assert "  autonomy: ask | high | low | medium | off\n" in told


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_speaks_for_a_caller_is_refused_with_the_reason(
    run: Run, sent: list[Any], name: str
) -> None:
    done = run(name, "{}")
    assert (done.code, done.out, sent) == (4, "", [])
    assert "with that caller's key" in done.err
    assert "\nhint: " in done.err


def test_a_tool_that_there_is_not(run: Run) -> None:
    done = run("sesion_get")
    assert (done.code, done.out) == (3, "")
    assert "did you mean session_get?" in done.err


# ---------------------------------------------------------------------- arguments


def test_arguments_are_a_json_object(run: Run, sent: list[Any]) -> None:
    assert json.loads(run("project_list", '{"limit": 3}').out) == {"is": "so\x1b"}
    assert sent == [("project_list", {"limit": 3}, command.CALL_SECONDS)]


def test_the_result_drives_no_terminal(run: Run, sent: list[Any]) -> None:
    assert "\x1b" not in run("project_list").out
    assert sent


def test_arguments_come_from_standard_input(
    run: Run, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"limit": 4}\n'))
    run("project_list", "-")
    assert sent[0][1] == {"limit": 4}


def test_arguments_come_from_a_file(run: Run, sent: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"prompt": "line one\\nline two"}', encoding="utf-8")
    run("session_spawn", f"@{file}", "project_id=proj_1")
    assert sent[0][1] == {"prompt": "line one\nline two", "project_id": "proj_1"}


def test_single_parameters_have_the_type_of_the_schema(run: Run, sent: list[Any]) -> None:
    run(
        "project_create",
        "name=123",
        "init_git=false",
        'limits={"max_depth": 2}',
        "autonomy=off",
        "description=a=b",
    )
    assert sent[0][1] == {
        "name": "123",
        "init_git": False,
        "limits": {"max_depth": 2},
        "autonomy": "off",
        "description": "a=b",
    }


def test_what_is_text_or_a_list_may_be_either(run: Run, sent: list[Any]) -> None:
    run("container_exec", "command=ls -l")
    run("container_exec", 'command=["ls", "-l"]')
    assert [each[1]["command"] for each in sent] == ["ls -l", ["ls", "-l"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{"], "the argument: is no JSON"),
        (["[1]"], "the argument: must be a JSON object"),
        (["@/nowhere/x"], "/nowhere/x: cannot be read"),
        (["limit"], "'limit' is neither a JSON object nor KEY=VALUE"),
        (["limit=1", "{}"], "'{}' is neither"),
    ],
)
def test_arguments_that_are_none(run: Run, sent: list[Any], words: list[str], said: str) -> None:
    done = run("project_list", *words)
    assert (done.code, done.out, sent) == (2, "", [])
    assert said in done.err


def test_what_the_tool_refuses_is_told_as_it_says(run: Run, home: Path) -> None:
    with pytest.raises(SystemExit):
        main.run(["token", "create", "--scope", "read"])
    done = run("project_list", "limit=0")
    assert done.code == 2
    assert "limit: must be at least 1" in done.err
    assert (home / "oubliette.db").exists()


def test_the_wait_for_an_answer_may_be_chosen(run: Run, sent: list[Any]) -> None:
    run("project_list", "--timeout", "5m")
    assert sent[0][2] == 300.0
