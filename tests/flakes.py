"""Finds tests that fail now and then, and what makes them fail.

    python -m tests.flakes --rounds 5                           # the core
    python -m tests.flakes --rounds 3 tests/system tests/faults # all of these

Each round is one run in a random order, three at a time, beside programs that keep all processors
busy. A test that failed in some rounds and not in all is then tried further, with the seed of
its first failure:

    order    it fails again without load, in the same order, with the tests of its file
    load     it fails again by itself beside the busy programs
    time     it fails again in neither way: what it depends on is the moment
    always   it failed in every round, and is no flake
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests import outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BURN = "while True: pass"
ROUND_SECONDS = 3600
TRIAL_SECONDS = 600
TRIALS = 3


@dataclass
class Suspect:
    """A test that has failed, the seeds with which it did, and what it said first."""

    test: str
    seeds: list[int] = field(default_factory=list)
    text: str = ""


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep every processor busy, with the priority of the tests."""
    burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in burning:
            each.kill()
            each.wait()


def failed(
    seed: int, arguments: Sequence[str], seconds: float, env: dict[str, str]
) -> dict[str, str]:
    """Run pytest once; the tests that failed, with what they said.

    Raises:
        SystemExit: it ended with neither success nor failed tests; it says why.
    """
    with tempfile.TemporaryDirectory(prefix="oubliette-flakes-") as folder:
        told = Path(folder) / "outcomes"
        command = [sys.executable, "-m", "pytest", "-q", "--color=no", f"--randomly-seed={seed}"]
        command += ["-p", "tests.outcomes", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
            env=os.environ | env | {outcomes.VARIABLE: str(told)},
        )
        tests = map(
            json.loads, told.read_text(encoding="utf-8").splitlines() if told.exists() else ()
        )
        found = {test["test"]: test["text"] for test in tests if test["outcome"] == "failed"}
    if done.returncode not in (0, 1) or (done.returncode and not found):
        sys.exit(f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return found


def look(rounds: int, arguments: Sequence[str], env: dict[str, str]) -> list[Suspect]:
    """Run the rounds; whatever failed in one of them."""
    suspects: dict[str, Suspect] = {}
    for number in range(1, rounds + 1):
        seed = random.randrange(2**32)
        with load():
            found = failed(seed, ["-n", "3", "--dist", "worksteal", *arguments], ROUND_SECONDS, env)
        print(f"round {number} of {rounds}, seed {seed}: {len(found)} failed", *found, flush=True)
        for test, text in found.items():
            suspect = suspects.setdefault(test, Suspect(test, text=text))
            suspect.seeds.append(seed)
    return list(suspects.values())


def cause(suspect: Suspect, rounds: int, env: dict[str, str]) -> str:
    """What makes it fail: `order`, `load`, `time` or `always`."""
    if len(suspect.seeds) == rounds:
        return "always"
    seed = suspect.seeds[0]
    file, _, _ = suspect.test.partition("::")
    if suspect.test in failed(seed, ["-n", "0", file], TRIAL_SECONDS, env):
        return "order"
    with load():
        for _ in range(TRIALS):
            if failed(seed, ["-n", "0", suspect.test], TRIAL_SECONDS, env):
                return "load"
    return "time"


def main() -> int:
    """Print a line for each test that fails now and then; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.flakes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many runs (5)")
    parser.add_argument("paths", nargs="*", help="tests, as pytest takes them; none: the core")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: what fails now and then shows in two rounds or more")
    env = {} if given.paths else {"OUBLIETTE_SUITE": "core"}
    suspects = look(given.rounds, given.paths, env)
    causes: dict[str, list[str]] = defaultdict(list)
    for suspect in suspects:
        causes[cause(suspect, given.rounds, env)].append(
            f"{len(suspect.seeds)}/{given.rounds}  {suspect.seeds[0]:>10}  {suspect.test}"
        )
        print(f"\n{suspect.test}, seed {suspect.seeds[0]}:\n{suspect.text[-3000:]}")
    print("\ncause   rate        seed  test")
    for name, lines in causes.items():
        for line in lines:
            print(f"{name:7} {line}")
    if not suspects:
        print("none")
    return 1 if suspects else 0


if __name__ == "__main__":
    sys.exit(main())
