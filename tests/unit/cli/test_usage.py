"""`oubliette usage`: tokens and costs, with a total."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.cli.client import tools
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["usage"]
PROJECT = "proj_01m8dbmeqzrs00000000000001"


def row(key: str | None, name: str | None, measured: float | None, turns: int) -> dict[str, Any]:
    costs = {"measured_cost_usd": measured, "reported_cost_usd": None}
    return {
        "key": key,
        "name": name,
        "input_tokens": 7,
        "output_tokens": None,
        "turns": turns,
        **costs,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The questions that reach the server, which has two rows for each."""
    questions: list[dict[str, Any]] = []

    def call(_: object, tool: str, given: dict[str, Any], *__: object) -> dict[str, Any]:
        assert tool == "usage_report"
        questions.append(given)
        rows = [row(PROJECT, "shop\nsecond line", 0.5, 3), row(None, None, None, 1)]
        total = row(None, None, 0.5, 5)
        return {"by": given["by"], "since": None, "rows": rows, "more": True, "total": total}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return questions


def test_measured_and_reported_costs_have_columns_and_the_last_row_is_the_total(
    run: Run, asked: list[dict[str, Any]]
) -> None:
    done = run()
    assert [line.split("\t") for line in done.out.splitlines()] == [
        ["PROJECT", "TURNS", "INPUT", "OUTPUT", "MEASURED", "REPORTED", "NAME"],
        [PROJECT, "3", "7", "", "$0.5000", "", "shop"],
        ["(unknown)", "1", "7", "", "", "", ""],
        ["total", "5", "7", "", "$0.5000", "", ""],
    ]
    assert "oubliette usage -n 250" in done.err
    assert asked == [{"by": "project", "since": None, "limit": 50}]


@pytest.mark.parametrize(("by", "shown"), [("session", "(removed)"), ("principal", "(others)")])
def test_a_row_without_a_key_says_what_it_is(
    run: Run, asked: list[dict[str, Any]], by: str, shown: str
) -> None:
    assert run("--by", by).out.splitlines()[2].startswith(shown)


def test_it_is_asked_for_a_time_and_a_project(run: Run, asked: list[dict[str, Any]]) -> None:
    words = ("--by", "day", "--since", "2026-01-31T08:00Z", "--project", PROJECT, "-n", "9")
    assert json.loads(run(*words, "-o", "json").out)["more"] is True
    assert asked == [{"by": "day", "since": 1769846400.0, "limit": 9, "project_id": PROJECT}]


def test_a_word_that_it_cannot_sum_up_by_is_refused_with_those_that_it_can(run: Run) -> None:
    done = run("--by", "colour")
    assert (done.code, "'principal'" in done.err) == (2, True)
