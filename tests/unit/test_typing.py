"""Types of both APIs as a user's type checker sees them: pyright, strict, on tests/typing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "typing"
EXPECTED = re.compile(r"# expected: (\w+)$")


@pytest.fixture(scope="module")
def errors() -> list[dict[str, Any]]:
    """What pyright finds in the programs."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
         "--project", str(PROGRAMS)],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= 3, done.stderr
    found: list[dict[str, Any]] = report["generalDiagnostics"]
    return found


def shown(errors: list[dict[str, Any]], name: str) -> list[str]:
    return [
        f"{each['range']['start']['line'] + 1}: {each['rule']}: {each['message']}"
        for each in errors
        if Path(each["file"]).name == name
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asynchronous.py", "blocking.py"])
def test_programs_get_the_types_that_they_need(errors: list[dict[str, Any]], name: str) -> None:
    assert shown(errors, name) == []


@pytest.mark.slow
def test_mistakes_are_found(errors: list[dict[str, Any]]) -> None:
    lines = (PROGRAMS / "mistakes.py").read_text(encoding="utf-8").splitlines()
    expected = {
        (number, found[1])
        for number, line in enumerate(lines, 1)
        if (found := EXPECTED.search(line)) is not None
    }
    assert len(expected) >= 8
    strict = {"reportUnknownVariableType", "reportUnknownMemberType", "reportUnknownArgumentType"}
    found = {
        (each["range"]["start"]["line"] + 1, each["rule"])
        for each in errors
        if Path(each["file"]).name == "mistakes.py" and each["rule"] not in strict
    }
    assert found == expected, shown(errors, "mistakes.py")
