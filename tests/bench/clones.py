"""What a clone of a large repository costs, beside `git clone --bare` of the same.

Run as `python -m tests.bench.clones [--megabytes N] [--rounds N] [-o json]`. A round clones a
repository whose objects do not compress, as `project_create` does, and with plain git over the same
transport (`file://`, so that both get a pack); then it makes two workspaces. The sides of a round
change places from one to the next. Figures are medians, in seconds; the first workspace is counted
with the clone before it, as a user waits for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from oubliette.config.schema import RepositoriesConfig
from oubliette.records import Project, ProjectRepository
from oubliette.runtime.repositories.access import Repositories
from tests.git_hosts import ENVIRONMENT, git

PROJECT = "proj_" + "1" * 26
IDS = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
COMMITS = 10
FILES = 20
"""Files of each commit, of one size."""


def make_source(folder: Path, megabytes: int) -> None:
    """Make a checkout with so many megabytes of objects, half of them in its newest commit."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    chance, size = random.Random(1), megabytes * 1_000_000 // (COMMITS * FILES)
    for number in range(COMMITS):
        below = folder / f"part{number % (COMMITS // 2)}"
        below.mkdir(exist_ok=True)
        for file in range(FILES):
            (below / f"file{file}.bin").write_bytes(chance.randbytes(size))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", f"change {number}")
    git(folder, "-c", "core.compression=0", "repack", "-a", "-d", "-q")


def plain(source: Path, target: Path) -> float:
    """Seconds of plain git."""
    began = time.perf_counter()
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", f"file://{source}", str(target)],
        env=ENVIRONMENT,
        check=True,
    )
    return time.perf_counter() - began


async def ours(source: Path, home: Path) -> tuple[float, list[float]]:
    """Seconds of the clone, and of each of two workspaces."""
    access = Repositories(home, RepositoriesConfig())
    record = ProjectRepository(path=str(source))
    access.begin(PROJECT)
    began = time.perf_counter()
    remote = await access.source(record)
    done = await access.of(PROJECT, record).clone(remote, seconds=600.0, report=lambda _: None)
    cloned = time.perf_counter() - began
    access.ended(PROJECT)
    project = Project(
        id=PROJECT, name="shop", created_at=0.0, default_workspace_id=IDS[0], uid=-1,
        repository=done,
    )  # fmt: skip
    made: list[float] = []
    for workspace in IDS:
        began = time.perf_counter()
        clone = await access.new_workspace(project, workspace)
        await clone.make()
        made.append(time.perf_counter() - began)
    return cloned, made


def measured(megabytes: int, rounds: int) -> dict[str, float]:
    """The medians of all rounds."""
    base = Path(tempfile.mkdtemp(prefix="bench"))
    found: dict[str, list[float]] = {"git": [], "clone": [], "first": [], "second": []}
    try:
        make_source(base / "source", megabytes)
        for number in range(rounds + 1):
            home, bare = base / "home", base / "plain.git"

            def theirs(bare: Path = bare) -> None:
                found["git"].append(plain(base / "source", bare))

            if number % 2:
                theirs()
            cloned, made = asyncio.run(ours(base / "source", home))
            if not number % 2:
                theirs()
            found["clone"].append(cloned)
            found["first"].append(cloned + made[0])
            found["second"].append(made[1])
            shutil.rmtree(home)
            shutil.rmtree(bare)
    finally:
        shutil.rmtree(base)
    return {kind: statistics.median(each[1:]) for kind, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", choices=("text", "json"), default="text")
    given = parser.parse_args()
    seconds = measured(given.megabytes, given.rounds)
    report = {
        "clone": {
            "seconds": round(seconds["clone"], 2),
            "git_seconds": round(seconds["git"], 2),
            "ratio": round(seconds["clone"] / seconds["git"], 2),
        },
        "second workspace": {
            "seconds": round(seconds["second"], 2),
            "first_seconds": round(seconds["first"], 2),
            "ratio": round(seconds["second"] / seconds["first"], 2),
        },
    }
    if given.o == "json":
        print(json.dumps(report))
        return
    for name, figures in report.items():
        print(f"{name:<18}", "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
