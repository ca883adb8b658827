"""Whatever the project's files refer to, a reader of the project has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPERS = re.compile(
    r"\bDESIGN\b|\b[Ss]eeds? 0\d\d|\b[Ii]ssue #?\d|\bshared/(?:design|seeds)\b"
    r"|\breference/\w+\.(?:md|json)|\b[Rr]eference:? \w+\.md|\b\w+\.md (?:section )?\d"
)
"""How the papers are called that the project was made from, and that are no part of it."""


def test_no_file_refers_to_a_paper_that_is_not_in_the_project():
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        pytest.skip("needs a checkout: git lists the project's files")
    found = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or path == Path(__file__) or not path.is_file():
            continue
        text = path.read_bytes().decode(errors="replace")
        found += [
            f"{name}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if PAPERS.search(line)
        ]
    assert found == []
