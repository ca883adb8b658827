"""`oubliette docs`: the documents of this release, for who has no checkout."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.command_line import Run

ROOT = Path(__file__).parents[3]


def test_the_documents_are_listed_with_their_titles_and_read_by_name(run: Run) -> None:
    listed = run("docs")
    assert listed.code == 0
    assert "command-line\tCommand line\n" in listed.out
    assert len(listed.out.splitlines()) == 1 + len(list((ROOT / "docs").glob("*.md")))
    one = run("docs", "ports")
    assert one.out == (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
    assert json.loads(run("docs", "ports", "-o", "json").out) == {"name": "ports", "text": one.out}


def test_the_nearest_document_is_suggested_for_one_that_is_not_there(run: Run) -> None:
    for name, hint in (("connectin", "did you mean connecting? "), ("../README", "hint: oubli")):
        done = run("docs", name)
        assert (done.code, done.out) == (3, "")
        assert hint in done.err


def test_the_last_line_of_the_help_names_them(run: Run) -> None:
    assert run("--help").out.rstrip().endswith("Documents: oubliette docs.")
