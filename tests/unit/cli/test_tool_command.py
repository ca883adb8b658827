"""Commands that call one tool fit what it takes, and what it answers."""

from __future__ import annotations

import shlex
import typing
from typing import Any

import pytest

from oubliette.cli import image, project, session, token
from oubliette.cli.client import tool_command, tools
from oubliette.cli.client.tool_command import CommandParameter, ToolCommand
from oubliette.contract import validation
from oubliette.tools.registry import TABLE, input_schema, output_schema
from tests.unit.cli.command_line import Run

ROWS = {
    each.example: each
    for module in (image, project, session, token)
    for each in vars(module).values()
    if isinstance(each, ToolCommand)
}
EACH = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.tool)
TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}
IDS = {
    "project": "proj_01m8dbmeqzrs00000000000000",
    "session": "gogol_01m8dbmeqzrs00000000000000",
    "token": "tok_01m8dbmeqzrs00000000000000",
    "workspace": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
}


def sample(part: dict[str, Any]) -> Any:
    """A value of this JSON schema, with every field and two of what there may be several."""
    kinds = [each for each in part.get("anyOf", ()) if each.get("type") != "null"]
    if kinds:
        return sample(kinds[0])
    if "enum" in part:
        return part["enum"][0]
    match part.get("type"):
        case "object":
            of = part.get("properties")
            if of is None:
                return {"a": sample(part.get("additionalProperties") or {})}
            return {name: sample(each) for name, each in of.items()}
        case "array":
            return [sample(part.get("items") or {})] * 2
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return "text"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What is asked of a server that takes what its tools take, and has their answers."""
    calls: list[tuple[str, Any]] = []

    def call(_: object, tool: str, given: Any, timeout: float = 60, **__: Any) -> dict[str, Any]:
        told = {name: value for name, value in given.items() if value is not None}
        calls.append((tool, validation.decode(TABLE[tool].params, told, tool)))
        answer = sample(output_schema(TABLE[tool]))
        listed = answer.get("workspaces", ())  # the one that is named is among them
        for each in listed[:1]:
            each["id"] = IDS["workspace"]
        return answer | ({"next_cursor": None} if "next_cursor" in answer else {})

    monkeypatch.setattr(tools.HomeServer, "call", call)
    monkeypatch.setattr(tool_command, "whole_id", lambda _, kind, __: IDS[kind])
    return calls


@EACH
def test_the_tool_takes_the_example_and_its_answer_is_shown(
    run: Run, asked: list[tuple[str, Any]], row: ToolCommand
) -> None:
    words = shlex.split(row.example)[1:]
    done = run(*words)
    assert done.code == 0, done.err
    assert asked[-1][0] == row.tool
    assert done.out or done.err
    plain = asked.copy()
    asked.clear()
    assert run(*words, "-o", "json").out.startswith("{")
    assert asked == plain  # programs ask for the same


@EACH
def test_a_parameter_has_the_type_that_the_tool_takes(row: ToolCommand) -> None:
    schema = input_schema(TABLE[row.tool])
    sent = {each.sent_as: each for each in row.parameters if each.sent_as}
    if row.prepare is None:
        assert set(schema.get("required", ())) <= set(sent) <= set(schema["properties"])
    for name, each in sent.items():
        if name in schema["properties"]:
            assert json_type(each) in types_of(schema["properties"][name]), name


def json_type(parameter: CommandParameter) -> str:
    (kind,) = {*typing.get_args(parameter.kind), parameter.kind} & set(TYPES) or {list}
    return TYPES.get(kind, "array")


def types_of(part: dict[str, Any]) -> set[str]:
    found = {each.get("type", "string") for each in part.get("anyOf", (part,))}
    return found | ({"number"} if "integer" in found else set())
