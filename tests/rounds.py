"""Runs a table of lines and says what became of them: `.ci/run` the gate, `.ci/all` the whole.

    python -m tests.rounds gate

as root, in the ordinary user's clone, once the machine has all that is needed.

What fails is run once more by itself when all is over. If it passes then, it is told as FLAKY at
the very end. Up to three of them do not make the gate red: it is to be red for defects of the
change. A crash or a leak is never flaky. What has no end in its time is TOO SLOW.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

USER = (".ci/as_user",)
BARE = (".ci/without_bubblewrap", ".ci/as_user")
ROOT: tuple[str, ...] = ()
FLAKY_ALLOWED = 3
RERUNS = 12
"""So many failures are run again; where there are more, nobody needs to know whether by luck."""
RERUN_SECONDS = 240
SHOWN = 40
"""Lines of a failure's text, and of the output of a line that is no run of pytest."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table.

    Args:
        who: what runs the command as the right user.
        command: a shell command; None: pytest on `tests`.
        seconds: the time after which it is TOO SLOW, about three times what it takes.
        tests: arguments of pytest.
        env: variables of the environment.
        engines: whether docker and podman are to run.
    """

    name: str
    who: tuple[str, ...]
    seconds: int
    command: str | None = None
    tests: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    engines: bool = False


CORE = {"OUBLIETTE_SUITE": "core", "OUBLIETTE_REQUIRE": "bubblewrap"}


def smoke(name: str, test: str, needs: str, *, seconds: int = 300) -> Line:
    """Return a line for one real part, shown by one test of the whole suite, as root."""
    return Line(name, ROOT, seconds, tests=(test,), env={"OUBLIETTE_REQUIRE": needs}, engines=True)


GATE: list[Line | tuple[Line, ...]] = [
    (
        Line("lint", USER, 300, "make lint"),
        # Compiles all tests once, on the processor that lint leaves idle: each part of the core
        # collects all tests, and would compile them for itself.
        Line("collection", USER, 300, "OUBLIETTE_SUITE=core .venv/bin/python -m pytest "
             "--collect-only -q --color=no -p no:cacheprovider -p no:randomly"),
    ),
    # `make test` in a fixed order and in three fixed parts, at the same time.
    tuple(
        Line(f"core {part}/3", USER, 840, env=CORE | {"OUBLIETTE_PART": f"{part}/3"})
        for part in (1, 2, 3)
    ),
    Line("demo with bubblewrap", USER, 120, "make demo"),
    Line("demo without bubblewrap", BARE, 120, "make demo"),
    Line(
        "tests without bubblewrap",
        BARE,
        400,
        tests=("-m", "sandboxless"),
        env={"OUBLIETTE_SUITE": "core"},
    ),
    Line("pykka's own tests", USER, 240, tests=("tests/unit/kit/test_pykka_suite.py",),
         env={"OUBLIETTE_REQUIRE": "pykka-sdist", "OUBLIETTE_PYKKA_SUITE_RUNS": "1"}),
    Line("docker with OpenCode", ROOT, 300, "make demo RUNTIME=docker AGENT=opencode", engines=True),
    Line("docker with Droid", ROOT, 300, "make demo RUNTIME=docker AGENT=droid", engines=True),
    Line("podman", ROOT, 300, "make demo RUNTIME=podman", engines=True),
    smoke(
        "Apple's stand-in",
        "tests/system/test_engines.py::"
        "test_an_agent_in_a_container_outlives_its_killed_server_in_the_middle_of_a_call[apple]",
        "apple-standin",
    ),
    smoke("PostgreSQL", "tests/faults/test_postgres_server.py", "postgres"),
    Line("cluster", ROOT, 300, "make demo CLUSTER=3"),
]  # fmt: skip

CHEAP = "bubblewrap,pasta,pykka-sdist,node,root,git-lfs"
EVERYTHING = f"{CHEAP},docker,podman,apple-standin,opencode,droid,postgres,ray"

RAY = "tests/cluster"
CHAOS = (
    "tests/cluster/test_chaos.py::test_nothing_is_lost_with_the_process_of_a_node_and_the_database"
)


def whole(seed: int) -> list[Line]:
    """Return the rounds of `.ci/all`, in the order that the seed gives."""
    order = ("-n", "3", "--dist", "worksteal", f"--randomly-seed={seed}")
    # The start of a Ray takes all that two processors have: it is none of what shares them.
    shared = (*order, f"--ignore={RAY}")

    def share(name: str, which: str, who: tuple[str, ...] = ROOT, needs: str = EVERYTHING) -> Line:
        env = {"OUBLIETTE_SUITE": which, "OUBLIETTE_REQUIRE": needs}
        return Line(name, who, 1200, tests=shared, env=env, engines="docker" in needs)

    return [
        Line("lint", USER, 300, "make lint"),
        share("bare", "core", BARE, ""),
        share("sandbox", "core", USER, "bubblewrap"),
        Line("demo", USER, 300, "make demo"),
        share("root", "core", needs=CHEAP),
        *(share(name, name) for name in ("beyond", "agents", "docker", "podman")),
        Line("cluster", ROOT, 1200, tests=(RAY, "-n", "1", *order[2:]),
             env={"OUBLIETTE_REQUIRE": EVERYTHING}, engines=True),
        Line("nodes", ROOT, 1500, "make test-cluster", engines=True),
        Line("chaos", ROOT, 900, tests=(CHAOS,), env={"OUBLIETTE_SOAK": "1"}),
    ]  # fmt: skip


# ---------------------------------------------------------------- one line
@dataclasses.dataclass
class Failure:
    """A test, or a whole line, that failed."""

    line: Line
    name: str
    text: str
    seed: object = None
    hard: bool = False
    """Never a matter of luck: a crash, a leak, what cannot be collected."""


@dataclasses.dataclass
class Run:
    """A line at work, and what became of it."""

    line: Line
    process: subprocess.Popen[bytes]
    output: Path
    outcomes: Path
    began: float
    seconds: float = 0.0
    slow: bool = False
    failures: list[Failure] = dataclasses.field(default_factory=list)
    tests: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def told(self) -> str:
        """How it ended, in a few words."""
        if self.slow:
            return "TOO SLOW"
        return f"FAILED ({len(self.failures)})" if self.failures else "passed"


def start(line: Line, folder: Path, tests: tuple[str, ...] | None = None) -> Run:
    """Start a line, or `tests` of it alone."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    folder.chmod(0o777)  # the ordinary user appends to a file of root's folder
    outcomes = folder / "outcomes"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= line.env | {"OUBLIETTE_OUTCOMES": str(outcomes)}
    plugins = ["-p", "tests.outcomes", "-p", "no:cacheprovider"]
    if "--dist" not in line.tests:
        env |= {"HYPOTHESIS_PROFILE": "gate", "PYTHONHASHSEED": "0"}
        plugins += ["-p", "no:randomly"]
    if tests is not None:
        env.pop("OUBLIETTE_PART", None)
    pytest = (sys.executable, "-m", "pytest", "-q", "--color=no", "-r", "fE", *plugins)
    command = ("bash", "-c", line.command) if line.command else (*pytest, *(tests or line.tests))
    output = folder / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            # What a shell starts in the background ignores the interrupt that may end it here.
            ["env", "--default-signal=INT", *line.who, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            process_group=0,
        )
    return Run(line, process, output, outcomes, time.monotonic())


def finish(run: Run, until: float) -> Run:
    """Wait for its end, which comes at the latest when its time is over, and read what it left."""
    left = min(run.began + run.line.seconds, until) - time.monotonic()
    try:
        run.process.wait(max(left, 0))
    except subprocess.TimeoutExpired:
        run.slow = True
        _end(run.process)
    run.seconds = time.monotonic() - run.began
    if run.outcomes.exists():
        lines = run.outcomes.read_text(encoding="utf-8").splitlines()
        run.tests = [json.loads(each) for each in lines]
    for test in run.tests:
        if test["outcome"] == "failed":
            run.failures.append(
                Failure(run.line, test["test"], test["text"], test["seed"], hard=test["hard"])
            )
    _judge(run)
    return run


def _judge(run: Run) -> None:
    """Find what the tests themselves do not tell: crashes, and lines that show nothing."""
    code = run.process.returncode
    said = run.output.read_text(encoding="utf-8", errors="replace")
    tail = "\n".join(said.splitlines()[-SHOWN:])
    if run.slow:
        return
    if run.line.command:
        if code != 0:
            run.failures.append(Failure(run.line, run.line.name, tail))
    elif code not in (0, 1, 2) or (code != 0 and not run.failures):
        text = f"pytest ended with {code}:\n{tail}"
        run.failures.append(Failure(run.line, run.line.name, text, hard=True))
    elif not any(test["outcome"] == "passed" for test in run.tests) and not run.failures:
        run.failures.append(Failure(run.line, run.line.name, f"no test ran:\n{tail}", hard=True))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt it, so that pytest tells what it was at; kill it if it does not end."""
    for number, seconds in ((signal.SIGINT, 60.0), (signal.SIGKILL, 20.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


@contextlib.contextmanager
def at_work(runs: list[Run]) -> Iterator[list[Run]]:
    """End them with the context, if whoever waits for them is interrupted."""
    try:
        yield runs
    finally:
        for run in runs:
            if run.process.poll() is None:
                _end(run.process)


@contextlib.contextmanager
def engines() -> Iterator[Callable[[], None]]:
    """Give a function that starts docker and podman; they are stopped with the context."""
    holder: list[subprocess.Popen[bytes]] = []

    def ensure() -> None:
        if holder:
            return
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [".ci/engines", "sh", "-c", "echo ready; exec cat"], stdin=pipe, stdout=pipe
        )
        holder.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # the script gives up on its engines in time

    try:
        yield ensure
    finally:
        for process in holder:
            process.communicate(timeout=180)


# ---------------------------------------------------------------- a table
def say(text: str) -> None:
    """Print at once, for whoever watches."""
    print(text, flush=True)


def rerun(
    failures: list[Failure], folder: Path, until: float
) -> tuple[list[Failure], list[Failure]]:
    """Run each failure once more by itself.

    Returns:
        those that failed again or are hard, and those that passed.
    """
    red: list[Failure] = []
    flaky: list[Failure] = []
    for failure in failures:
        if failure.hard or len(failures) > RERUNS:
            red.append(failure)
            continue
        line = dataclasses.replace(failure.line, seconds=min(failure.line.seconds, RERUN_SECONDS))
        with at_work([start(line, folder, (failure.name,))]) as (started,):
            run = finish(started, until)
        (red if run.slow or run.failures else flaky).append(failure)
    return red, flaky


def run_table(
    table: list[Line | tuple[Line, ...]], until: float, folder: Path
) -> tuple[list[Run], list[Failure], list[Failure], list[str]]:
    """Run all lines, and again what failed; returns the runs, what is red, flaky and too slow."""
    runs: list[Run] = []
    unbegun: list[str] = []
    with engines() as ensure:
        for entry in table:
            lines = entry if isinstance(entry, tuple) else (entry,)
            if time.monotonic() >= until:
                unbegun += [line.name for line in lines]
                continue
            if any(line.engines for line in lines):
                ensure()
            with at_work([start(line, folder) for line in lines]) as started:
                ended = [finish(run, until) for run in started]
            for run in ended:
                runs.append(run)
                passed = sum(test["outcome"] == "passed" for test in run.tests)
                counted = f", {passed} tests" if run.tests else ""
                say(f"=== {run.line.name}: {run.told()}, {run.seconds:.0f} s{counted}")
                if run.slow:
                    say("\n".join(run.output.read_text(errors="replace").splitlines()[-SHOWN:]))
        slow = [run.line.name for run in runs if run.slow] + unbegun
        red, flaky = rerun([each for run in runs for each in run.failures], folder, until)
    return runs, red, flaky, slow


def tell(failure: Failure, kind: str) -> None:
    """Print a failure with the first traceback of it."""
    lines = failure.text.splitlines()
    cut = lines if len(lines) <= SHOWN else [f"({len(lines) - SHOWN} lines above)", *lines[-SHOWN:]]
    seed = "fixed order" if failure.seed is None else f"seed {failure.seed}"
    say(f"{kind} {failure.name} ({failure.line.name}, {seed})")
    say("\n".join(f"    {line}" for line in cut))


def slowest(runs: list[Run], count: int) -> None:
    """Print the tests that took longest."""
    tests = sorted((test for run in runs for test in run.tests), key=lambda test: -test["seconds"])
    for test in tests[:count]:
        say(f"{test['seconds']:8.1f} s  {test['test']}")


def gate() -> int:
    """Run the gate; 0 if the change may land."""
    began = time.monotonic()
    until = began + float(os.environ["OUBLIETTE_GATE_UNTIL"]) - time.time()
    folder = Path(tempfile.mkdtemp(prefix="oubliette-gate-"))
    folder.chmod(0o755)
    try:
        _, red, flaky, slow = run_table(GATE, until, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    for failure in red:
        tell(failure, "FAILED")
    for name in slow:
        say(f"TOO SLOW: {name}")
    for failure in flaky:
        tell(failure, "FLAKY")
    passed = not red and not slow and len(flaky) <= FLAKY_ALLOWED
    if passed:
        note_passed(minutes)
    counted = f"{len(red)} failed, {len(flaky)} flaky, {len(slow)} too slow"
    say(f"=== gate {'passed' if passed else 'FAILED'} after {minutes:.1f} min: {counted}")
    return 0 if passed else 1


def note_passed(minutes: float) -> None:
    """Write down the tree that has passed, with the user who called the gate."""
    git = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD^{tree}"]
    tree = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    passed = Path(os.environ["OUBLIETTE_GATE_PASSED"])
    made = [each for each in (passed, *passed.parents) if not each.exists()]
    passed.parent.mkdir(parents=True, exist_ok=True)
    with passed.open("a", encoding="utf-8") as file:
        file.write(f"{tree} {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {minutes:.1f}\n")
    if "SUDO_UID" in os.environ:
        for each in made:
            os.chown(each, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


def everything(seed: int, names: tuple[str, ...]) -> int:
    """Run the whole, or of it the lines that are named; 0 if nothing failed."""
    folder = Path(tempfile.mkdtemp(prefix="oubliette-all-"))
    folder.chmod(0o755)
    table = {line.name: line for line in whole(seed)}
    if unknown := set(names) - table.keys():
        sys.exit(
            f"no lines of the whole: {', '.join(sorted(unknown))}; there are {', '.join(table)}"
        )
    lines: list[Line | tuple[Line, ...]] = [
        line for name, line in table.items() if name in names or not names
    ]
    runs, red, flaky, slow = run_table(lines, time.monotonic() + 3 * 3600, folder)
    for kind, failures in (("FAILED", red), ("FLAKY", flaky)):
        for failure in failures:
            tell(failure, kind)
    say("=== slowest")
    slowest(runs, 10)
    say("=== result")
    for run in runs:
        say(f"{run.line.name:10} {run.told():14} {run.seconds:6.0f} s")
    for kind, failures in (("failed", red), ("flaky", flaky)):
        say(f"{kind}: {', '.join(each.name for each in failures) or 'none'}")
    say(f"too slow: {', '.join(slow) or 'none'}")
    say(f"all that was said is in {folder}; the same again: .ci/all {seed}")
    return 1 if red or flaky or slow else 0


def main(which: str, seed: str | None = None, *names: str) -> int:
    """Run that table; a request to end is heeded as an interrupt is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if which == "gate":
        return gate()
    return everything(random.randrange(2**32) if seed is None else int(seed), names)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
