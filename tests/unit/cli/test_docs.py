"""`oubliette docs`: the documents of this release, for who has no checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oubliette.cli.terminal.man_page import man_page
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


def test_a_document_is_a_page_for_man_too(run: Run) -> None:
    page = run("docs", "--man").out.splitlines()
    assert page[0].startswith('.TH "OUBLIETTE" "1" ""')
    assert page[1:3] == [".SH NAME", r"oubliette \- Command line"]
    assert [".SH run", ".SH permit"] == [each for each in page if each in {".SH run", ".SH permit"}]
    assert r"\fBserve\fR" in page
    requests = {each.partition(" ")[0] for each in page if each.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".PP", ".IP", ".TP", ".RS", ".RE", ".nf", ".fi"}
    assert run("docs", "ports", "--man").out.startswith('.TH "OUBLIETTE-PORTS" "7"')
    assert json.loads(run("docs", "ports", "--man", "-o", "json").out)["name"] == "ports"
    assert run("docs", "no such", "--man").code == 3


@pytest.mark.parametrize(
    ("markdown", "roff"),
    [
        ("A `code` and *it*, [text](x.md)\nagain.", [".PP", r"A \fBcode\fR and \fIit\fR, text again."]),
        (".dot\n\n'quote", [".PP", r"\&.dot", ".PP", r"\&'quote"]),
        ("```sh\n.a \\n-b\n\n'c\n```", [".PP", ".RS 4", ".nf", r"\&.a \en\-b", r"\&", r"\&'c", ".fi", ".RE"]),
        ("* one\n* two", [r".IP \(bu 2", "one", r".IP \(bu 2", "two"]),
        ("1. one\n2. two", [".IP 1. 4", "one", ".IP 2. 4", "two"]),
        ("## Two\n\n### Three", [".SH Two", ".SS Three"]),
        ("| a | b |\n|---|---|\n| `x` | y |", [".TP", r"\fBx\fR", "y"]),
        ("![An image](x.svg)", [".PP", r"\&"]),
    ],
)  # fmt: skip
def test_each_kind_of_text_is_roff(markdown: str, roff: list[str]) -> None:
    page = man_page("x", f"# Title\n\n{markdown}\n")
    assert page.splitlines()[4:] == roff


def test_the_last_line_of_the_help_names_them(run: Run) -> None:
    assert run("--help").out.rstrip().endswith("Documents: oubliette docs.")
