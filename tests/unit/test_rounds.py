"""The gate tells failures from luck, crashes and slowness, and runs the same parts each time."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import rounds, selection
from tests.rounds import Line


def line(name: str, command: str | None = None, seconds: int = 60, **more: object) -> Line:
    return Line(name, (), seconds, command, **more)  # type: ignore[arg-type]


def outcome(tmp_path: Path, *lines: Line, seconds: float = 100.0) -> tuple:
    """What is red, flaky and too slow of the lines, by name, and the text of each failure."""
    until = time.monotonic() + seconds
    _, red, flaky, slow = rounds.run_table(list(lines), until, tmp_path)
    named = [[failure.name.rpartition("/")[2] for failure in each] for each in (red, flaky)]
    return *named, slow, "\n".join(failure.text for failure in (*red, *flaky))


def test_what_passes_when_it_runs_again_is_flaky_and_what_fails_again_is_red(tmp_path: Path):
    once = f"test -e {tmp_path}/ran || {{ touch {tmp_path}/ran; echo not yet; exit 1; }}"
    red, flaky, slow, text = outcome(
        tmp_path, line("luck", once), line("defect", "echo broken; exit 1"), line("good", "true")
    )
    assert (red, flaky, slow) == (["defect"], ["luck"], [])
    assert "not yet" in text
    assert "broken" in text


def test_what_takes_too_long_is_too_slow_and_no_failure(tmp_path: Path):
    red, flaky, slow, _ = outcome(tmp_path, line("slow", "exec tail -f /dev/null", 1))
    assert (red, flaky, slow) == ([], [], ["slow"])


def test_what_is_not_begun_in_time_is_too_slow(tmp_path: Path):
    assert outcome(tmp_path, line("late", "true"), seconds=-1) == ([], [], ["late"], "")


def suite(tmp_path: Path, text: str) -> Line:
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    tests = ("-p", "no:anyio", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py"))
    return line("suite", tests=tests)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\ndef test_it():\n    os._exit(139)\n", "pytest ended with 139"),
        ("def test_it():\n    assert not 'the test left the thread x'\n", "the test left"),
        ("import no_such_module\n", "no_such_module"),
        ("import pytest\ndef test_it():\n    pytest.skip('no engine')\n", "no test ran"),
        ("", "pytest ended with 5"),
    ],
    ids=["crash", "leak", "import", "skip", "nothing"],
)
def test_what_is_never_luck_is_red_at_once(tmp_path: Path, text: str, said: str):
    red, flaky, slow, told = outcome(tmp_path, suite(tmp_path, text))
    assert (len(red), flaky, slow) == (1, [], [])
    assert said in told


def test_the_parts_are_disjoint_complete_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch):
    items = [SimpleNamespace(nodeid=f"tests/test_x.py::test_{number}") for number in range(100)]
    parts = []
    for part in ("1/3", "2/3", "3/3"):
        monkeypatch.setenv(selection.PART, part)
        parts.append([item.nodeid for item in selection.part(items)])  # type: ignore[arg-type]
    assert sorted(sum(parts, [])) == sorted(item.nodeid for item in items)
    assert all(20 < len(part) < 50 for part in parts)
    assert parts[0][0] == "tests/test_x.py::test_2"


def test_tests_that_share_a_server_are_in_one_part(monkeypatch: pytest.MonkeyPatch):
    names = [
        f"tests/system/test_{name}.py::test_{number}" for name in "abcd" for number in range(9)
    ]
    items = [SimpleNamespace(nodeid=name) for name in names]
    shared = []
    for part in ("1/3", "2/3", "3/3"):
        monkeypatch.setenv(selection.PART, part)
        chosen = selection.part(items)  # type: ignore[arg-type]
        shared.append({item.nodeid.partition("::")[0][-4] for item in chosen})
    assert shared == [{"a", "d"}, {"b"}, {"c"}]


@pytest.mark.parametrize("part", ["0/3", "4/3", "x", "1/"])
def test_a_part_that_is_none_is_refused_with_an_example(monkeypatch, part):
    monkeypatch.setenv(selection.PART, part)
    with pytest.raises(pytest.UsageError, match="such as 2/3, not"):
        selection.part([])
