"""The pages name what there is: exit codes, and the tests that keep a promise."""

from __future__ import annotations

import re
from pathlib import Path

from oubliette.cli.client.following import ExitCode
from tests.unit.cli.exit_codes import exit_codes

DOCS = Path(__file__).parents[3] / "docs"


def test_every_exit_code_is_described() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)} == {
        *ExitCode,
        *exit_codes(),
    }


def test_every_promise_of_the_security_page_names_a_test_that_is_there() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 40
    for file, name in named:
        source = (DOCS.parent / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(?:async )?def {name}\(", source, re.M), (file, name)
