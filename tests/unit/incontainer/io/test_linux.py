"""What the host reads of its control group, in both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.incontainer.io import linux

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_processes_that_were_ended_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    assert linux.oom_kills(str(tmp_path)) is None
    assert linux.memory_limit(str(tmp_path)) is None
    (tmp_path / "memory").mkdir()
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    (tmp_path / "memory" / "memory.oom_control").write_text(text)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2147483648\n")
    assert (linux.oom_kills(str(tmp_path)), linux.memory_limit(str(tmp_path))) == (2, 2 << 30)
    (tmp_path / "memory.events").write_text("low 0\nmax 9\noom 3\noom_kill 1\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert (linux.oom_kills(str(tmp_path)), linux.memory_limit(str(tmp_path))) == (1, 1 << 20)


def test_no_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert linux.memory_limit(str(tmp_path)) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert linux.memory_limit(str(tmp_path)) is None


def test_processes_are_listed_with_parents_before_children_whatever_their_numbers() -> None:
    tasks = [linux.Task(pid, parent, 40, 40) for pid, parent in ((8, 40), (9, 1), (40, 1), (41, 8))]
    assert linux.trees([8, 9, 40, 41], tasks) == [9, 40, 8, 41]
    assert linux.trees([41, 8], tasks) == [8, 41]


def test_a_tree_has_all_that_is_below_its_root_and_nothing_beside_it() -> None:
    tasks = [linux.Task(pid, parent, 0, 0) for pid, parent in ((9, 8), (8, 4), (5, 4), (7, 5))]
    assert linux.trees([8], tasks) == [8, 9]
    assert linux.trees([7, 8], tasks) == [7, 8, 9]
    assert linux.trees([4], tasks) == [4, 8, 5, 9, 7]


def test_numbers_given_again_during_a_scan_make_no_endless_tree() -> None:
    tasks = [linux.Task(8, 9, 0, 0), linux.Task(9, 8, 0, 0), linux.Task(5, 1, 0, 0)]
    assert linux.trees([8, 9, 5], tasks) == [5]


def test_descendants_are_found_with_parents_before_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = [linux.Task(pid, parent, 0, 0) for pid, parent in ((8, 40), (9, 8), (40, 7), (41, 1))]
    monkeypatch.setattr(linux, "tasks", lambda: tasks)
    assert linux.descendants(7) == [40, 8, 9]
    assert linux.descendants(9) == []
