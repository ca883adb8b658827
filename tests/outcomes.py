"""What became of each test, a line of JSON each: for the gate, `.ci/all` and `tests.flakes`.

    OUBLIETTE_OUTCOMES=/tmp/outcomes python -m pytest -p tests.outcomes

A line is {"test", "outcome", "seconds", "text", "seed", "hard"}, appended when the test is over:
`outcome` is passed, failed or skipped, `text` the traceback of the first part of it that failed.
`hard` says that what failed is never a matter of luck: a leak, or a worker that crashed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "OUBLIETTE_OUTCOMES"
HARD = (
    "the test left ",
    "PytestUnraisableExceptionWarning",
    "PytestUnhandledThread",
    "' crashed while running ",
)
"""What is said of leaks (`conftest`, and pytest of descriptors, tasks and threads) and crashes."""


class Outcomes:
    """Adds up the parts of each test and appends them to a file."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one part of a test: its setup, its call or its end."""
        seed = self._config.getoption("randomly_seed", None)
        test = self._tests.setdefault(
            report.nodeid,
            {"test": report.nodeid, "outcome": "passed", "seconds": 0.0, "text": "", "seed": seed, "hard": False},
        )  # fmt: skip
        test["seconds"] += report.duration
        if report.failed:
            text = str(report.longrepr)
            test["hard"] = test["hard"] or any(words in text for words in HARD)
            test["text"] = test["text"] or text
        if report.failed or (report.skipped and test["outcome"] == "passed"):
            test["outcome"] = report.outcome
        # A worker that crashes tells of no end.
        if report.when == "teardown" or HARD[-1] in test["text"]:
            self._write(self._tests.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a module that cannot be imported: none of its tests will be heard of."""
        if report.failed:
            self._write(
                {"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "text": str(report.longrepr), "seed": None, "hard": True}
            )  # fmt: skip

    def _write(self, test: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(test) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Write from one process alone: workers of xdist report to it."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config, Path(path)))
