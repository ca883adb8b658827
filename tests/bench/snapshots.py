"""What a snapshot of a workspace costs, beside `git add -A && git commit` of the same tree.

Run as `python -m tests.bench.snapshots [--files N…] [--rounds N] [-o json]`. For each size: the first
snapshot, one after a file has changed, one after nothing has. Both sides are measured in turns, with
the change made anew before each; the figures are medians, in milliseconds, and their ratio: of the time
until it is done, and of the processors' time, which other programs of the machine distort less.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel, SnapshotLimits
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (500, 5000, 50_000)
LIMITS = SnapshotLimits(seconds=120.0)


def fill(workspace: Path, files: int) -> None:
    """Write so many source-like files of about 3 kB, 50 to a folder."""
    words = random.Random(1)
    for number in range(files):
        folder = workspace / f"part{number // 2500}" / f"folder{number // 50 % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"line {words.random()}\n" for _ in range(120))
        (folder / f"file{number}.py").write_text(text)


class Cost(NamedTuple):
    """Seconds until it was done, and seconds of processors."""

    waited: float
    used: float


class Floor:
    """`git add -A && git commit`, as a user runs it, in a repository beside the tree."""

    def __init__(self, base: Path, workspace: Path) -> None:
        self._git = ["git", f"--git-dir={base / 'floor.git'}", f"--work-tree={workspace}"]
        for words in (
            ["init", "-q"],
            ["config", "user.name", "x"],
            ["config", "user.email", "x"],
            ["config", "gc.auto", "0"],
        ):
            subprocess.run([*self._git, *words], check=True)

    def take(self) -> Cost:
        began, used = time.perf_counter(), os.times()
        subprocess.run([*self._git, "add", "-A"], check=True)
        subprocess.run([*self._git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        seconds, now = time.perf_counter() - began, os.times()
        return Cost(seconds, sum(now[:4]) - sum(used[:4]))


class Ours:
    """Snapshots of the same tree."""

    def __init__(self, base: Path, workspace: Path, jobs: WorkspaceJobs) -> None:
        git = GitProgram.find()
        assert git is not None, "needs git"
        self._repository = ShadowRepository(base / "ours.git", workspace, git, jobs, LIMITS)
        self._jobs = jobs
        self._turn = 0

    def _used(self) -> float:
        """Seconds of processors that we, the process that reads workspaces, and git have used."""
        reader = self._jobs._process
        theirs = 0.0 if reader is None else sum(psutil.Process(reader.pid).cpu_times()[:4])
        return sum(os.times()[:4]) + theirs

    async def take(self) -> Cost:
        self._turn += 1
        label = SnapshotLabel(session_id="ses_1", turn=self._turn, when=1.0)
        began, used = time.perf_counter(), self._used()
        await self._repository.take(label)
        return Cost(time.perf_counter() - began, self._used() - used)


@contextlib.contextmanager
def tree(files: int) -> Iterator[tuple[Path, Path]]:
    base = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        workspace = base / "workspace"
        fill(workspace, files)
        yield base, workspace
    finally:
        shutil.rmtree(base)


async def measured(files: int, rounds: int) -> dict[str, tuple[Cost, Cost]]:
    """Costs of ours and of the floor, for each kind of turn."""
    found: dict[str, tuple[list[Cost], list[Cost]]] = {}
    async with contextlib.aclosing(WorkspaceJobs()) as jobs:
        with tree(files) as (base, workspace):
            await Ours(base / "warm", workspace / "part0" / "folder0", jobs).take()
            ours, floor = Ours(base, workspace, jobs), Floor(base, workspace)

            async def both(kind: str) -> None:
                time.sleep(0.02)  # files that have just changed are read twice by both
                sides = found.setdefault(kind, ([], []))
                sides[1].append(floor.take())
                sides[0].append(await ours.take())

            await both("first")
            for number in range(rounds):
                changed = workspace / "part0" / "folder0" / "file7.py"
                changed.write_text(changed.read_text() + f"turn {number}\n")
                await both("one changed")
            for _ in range(rounds):
                await both("none changed")
    return {kind: (_medians(ours), _medians(floor)) for kind, (ours, floor) in found.items()}


def _medians(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(each) for each in zip(*costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", choices=("text", "json"), default="text")
    given = parser.parse_args()
    report = {
        f"{files} files, {kind}": {
            "ms": round(1000 * ours.waited, 1),
            "git_ms": round(1000 * floor.waited, 1),
            "ratio": round(ours.waited / floor.waited, 2),
            "cpu_ms": round(1000 * ours.used),
            "cpu_git_ms": round(1000 * floor.used),
            "cpu_ratio": round(ours.used / floor.used, 2),
        }
        for files in given.files
        for kind, (ours, floor) in asyncio.run(measured(files, given.rounds)).items()
    }
    if given.o == "json":
        print(json.dumps(report))
        return
    for name, figures in report.items():
        print(f"{name:<28}", "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
