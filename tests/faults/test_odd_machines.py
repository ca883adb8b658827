"""A server under random combinations of odd conditions works, or ends with one sentence.

`python -m tests.faults.test_odd_machines 7 100-199` tries seeds, and `"umask 077"` a condition by its
name; the exit code is 1 if a server neither worked nor ended with a sentence.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from oubliette.api.control import ControlClient
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"
START_SECONDS = 120.0
TURN_SECONDS = 120.0
STOP_SECONDS = 60.0
MOST = 4
"""Conditions at the same time."""
SIGNALS = (
    "import os, signal, sys\n"
    "for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
NAMESPACE = (
    "import ctypes, os, sys\n"
    "own, go = os.pipe()\n"
    "pid, libc = os.getpid(), ctypes.CDLL(None, use_errno=True)\n"
    "if child := os.fork():\n"
    "    failed = libc.unshare(0x10000000)\n"  # CLONE_NEWUSER
    "    os.write(go, b'x' if failed else b'.')\n"
    "    if failed or os.waitpid(child, 0)[1]:\n"
    "        sys.exit(99)\n"
    "    os.execvp(sys.argv[1], sys.argv[1:])\n"
    "if os.read(own, 1) == b'.':\n"
    "    for each in ('uid_map', 'gid_map'):\n"
    "        with open(f'/proc/{pid}/{each}', 'w') as file:\n"
    "            file.write('0 0 65536')\n"
)
"""A program that goes on as root of a user namespace, as in a container without root."""
IN_NAMESPACE = 'set -- "$PYTHON" -c "$NAMESPACE" '


class Condition(NamedTuple):
    """What is odd: variables, lines of a shell before the start, flags of the interpreter."""

    variables: dict[str, str] = {}
    before: str = ""
    flags: tuple[str, ...] = ()
    namespace: bool = False
    """Whether it needs file systems of its own, which root alone can have."""


CONDITIONS = {
    **{
        f"umask {mask}": Condition(before=f"umask {mask}") for mask in ("000", "027", "077", "0177")
    },
    **{f"open files {n}": Condition(before=f"ulimit -n {n}") for n in (12, 24, 48, 96, 200)},
    "small stack": Condition(before="ulimit -s 512"),
    "small address space": Condition(before="ulimit -v 600000"),
    "files of 64 KiB": Condition(before="ulimit -f 128"),
    "no pending signals": Condition(before="ulimit -i 0"),
    "no locked memory": Condition(before="ulimit -l 0"),
    "no processes": Condition(before="ulimit -u 1"),
    "signals": Condition(before='set -- "$PYTHON" -c "$SIGNALS" "$@"'),
    "niced": Condition(before='set -- nice -n 19 "$@"'),
    "locale C": Condition({"LC_ALL": "C"}),
    "locale that is not there": Condition({"LC_ALL": "xx_YY.ISO-8859-1", "PYTHONUTF8": "0"}),
    "output in ASCII": Condition({"PYTHONIOENCODING": "ascii:strict"}),
    "zone far away": Condition({"TZ": "Pacific/Kiritimati"}),
    "zone that is not there": Condition({"TZ": ":/nonexistent"}),
    "no HOME": Condition(before="unset HOME"),
    "HOME that is not there": Condition({"HOME": "/nonexistent/home"}),
    "relative HOME": Condition({"HOME": "home"}),
    "no cache": Condition({"XDG_CACHE_HOME": "/proc/nothing"}),
    "working directory removed": Condition(
        before='mkdir "$PLACE/gone" && cd "$PLACE/gone" && rmdir ../gone'
    ),
    "working directory is the root": Condition(before="cd /"),
    "proxies": Condition({"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}),
    "certificates": Condition({"SSL_CERT_FILE": "/nonexistent", "SSL_CERT_DIR": "/nonexistent"}),
    "no TMPDIR": Condition({"TMPDIR": "/nonexistent"}),
    "long TMPDIR": Condition(
        before='TMPDIR="$PLACE/$(printf %0150d 0)"; export TMPDIR; mkdir "$TMPDIR"'
    ),
    "no XDG_RUNTIME_DIR": Condition({"XDG_RUNTIME_DIR": "/nonexistent"}),
    "relative XDG_RUNTIME_DIR": Condition({"XDG_RUNTIME_DIR": "run"}),
    "empty PATH": Condition({"PATH": ""}),
    "PATH without git and bubblewrap": Condition({"PATH": "/nonexistent"}),
    "stdin closed": Condition(before="exec <&-"),
    "stdout closed": Condition(before="exec >&-"),
    "-O": Condition(flags=("-O",)),
    "-OO": Condition(flags=("-OO",)),
    "-I": Condition(flags=("-I",)),
    "-X dev": Condition(flags=("-X", "dev")),
    "-B": Condition(flags=("-B",)),
    "-X utf8=0": Condition(flags=("-X", "utf8=0")),
    "no bytecode": Condition(
        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/nonexistent"}
    ),
    "hash seed": Condition({"PYTHONHASHSEED": "0", "PYTHONMALLOC": "debug"}),
    "warnings are errors": Condition(flags=("-W", "error")),
    "bytes are no text": Condition(flags=("-bb",)),
    "output in UTF-16": Condition({"PYTHONIOENCODING": "utf-16"}),
    "keys of TLS are logged": Condition({"SSLKEYLOGFILE": "/nonexistent/keys"}),
    "within a hook of git": Condition(
        {
            "GIT_DIR": "/nonexistent/.git",
            "GIT_WORK_TREE": "/",
            "GIT_INDEX_FILE": "/nonexistent/index",
        }
    ),
    "git tells what it does": Condition({"GIT_TRACE": "1", "GIT_CONFIG_GLOBAL": "/nonexistent"}),
    "library that is not there": Condition({"LD_PRELOAD": "/nonexistent/library.so"}),
    "variables of systemd": Condition(
        {
            "NOTIFY_SOCKET": "/nonexistent",
            "LISTEN_FDS": "3",
            "LISTEN_PID": "1",
            "WATCHDOG_USEC": "1",
        }
    ),
    "variables of shells": Condition(
        {"BASH_ENV": "/nonexistent", "ENV": "/nonexistent", "IFS": "/", "CDPATH": "/", "SHELL": ""}
    ),
    "no terminal": Condition({"TERM": "", "COLUMNS": "0", "LINES": "-1", "NO_COLOR": "1"}),
    "stderr full": Condition(before="exec 2>/dev/full"),
    "HOME is a file": Condition({"HOME": "/dev/null"}),
    "TMPDIR is a file": Condition({"TMPDIR": "/dev/null"}),
    "XDG_RUNTIME_DIR is a file": Condition({"XDG_RUNTIME_DIR": "/dev/null"}),
    "most open files": Condition(before='ulimit -n "$(ulimit -H -n)"'),
    "stack without limit": Condition(before='ulimit -s "$(ulimit -H -s)"'),
    "no core dumps": Condition(before="ulimit -c 0"),
    "no priority": Condition(before="ulimit -e 0; ulimit -r 0"),
    "no message queues": Condition(before="ulimit -q 0"),
    "home not writable": Condition(before='mkdir "$PLACE/home" && chmod 0555 "$PLACE/home"'),
    "home is a file": Condition(before='touch "$PLACE/home"'),
    "home is a link to nothing": Condition(before='ln -s nowhere "$PLACE/home"'),
    "no IPv6": Condition(before="export OUBLIETTE_SERVER__HOST=::ffff:192.0.2.1"),
    "home read-only": Condition(
        before='mkdir "$PLACE/home" && mount -t tmpfs -o ro none "$PLACE/home"', namespace=True
    ),
    "home on 1 MiB": Condition(
        before='mkdir "$PLACE/home" && mount -t tmpfs -o size=1m,mode=0700 none "$PLACE/home"',
        namespace=True,
    ),
    "small /dev/shm": Condition(before="mount -t tmpfs -o size=4k none /dev/shm", namespace=True),
    "no /tmp": Condition(before="mount -t tmpfs -o ro none /var/tmp", namespace=True),
    "no /proc": Condition(before="mount -t tmpfs none /proc", namespace=True),
    "no /sys": Condition(before="mount -t tmpfs none /sys", namespace=True),
    "hangup ignored": Condition(before='set -- nohup "$@"'),
    "root of a user namespace": Condition(before='set -- unshare -Ur "$@"'),
    "root of a container": Condition(before=IN_NAMESPACE + '"$@"'),
    **{
        f"no {name}": Condition(
            before=f'{IN_NAMESPACE}/bin/sh -c \'echo 0 > /proc/sys/user/{limit}; exec "$@"\' sh "$@"'
        )
        for name, limit in (
            ("inotify", "max_inotify_instances"),
            ("user namespaces", "max_user_namespaces"),
            ("namespaces of processes", "max_pid_namespaces"),
        )
    },
}


class Outcome(NamedTuple):
    """How it went: `works`, or the refusal; else what is wrong."""

    said: str
    wrong: str | None = None


def has_namespaces() -> bool:
    """Whether this user may have file systems of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


def chosen(seed: int) -> list[str]:
    """The names of the conditions of a seed."""
    dice = random.Random(seed)
    possible = [name for name, each in CONDITIONS.items() if not each.namespace or has_namespaces()]
    return dice.sample(possible, dice.randint(1, MOST))


@contextlib.contextmanager
def new_place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    place.chmod(0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def attempt(names: list[str], place: Path) -> Outcome:
    """Start a server under these conditions, run a turn if it works, and stop it."""
    odd = [CONDITIONS[name] for name in names]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OUBLIETTE_", "PYTHON"))},
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(place / "run"),
        "OUBLIETTE_PROCESS__SANDBOX": "bubblewrap" if shutil.which("bwrap") else "best-effort",
        "OUBLIETTE_SERVER__ON_STOP": "end",
        "PLACE": str(place),
        "PYTHON": sys.executable,
        "SIGNALS": SIGNALS,
        "NAMESPACE": NAMESPACE,
    }
    plain = dict(environment)
    for each in odd:
        environment |= each.variables
    flags = [flag for each in odd for flag in each.flags]
    home = str(place / "home")
    serve = ["-m", "oubliette", "serve", "--home", home, "--port", "0", "-o", "json"]
    # Mounts first, with the programs of PATH; the limits last, for they hold for the shell too.
    lines = [
        each.before for each in sorted(odd, key=lambda each: not each.namespace) if each.before
    ]
    script = "\n".join([*(f"{line} || exit 99" for line in lines), 'exec "$@"'])
    command = [
        shutil.which("bash") or "/bin/sh",
        "-c",
        script,
        "sh",
        sys.executable,
        *flags,
        *serve,
    ]
    if any(each.namespace for each in odd):
        command = [str(shutil.which("unshare")), "-m", *command]
    if environment.get("PATH") in {"", "/nonexistent"}:
        script_path = os.environ["PATH"]
        lines.insert(0, f"PATH={script_path}")
        lines.append(f"PATH={environment['PATH']}; export PATH")
        command[command.index("-c", 1) + 1] = "\n".join(
            [*(f"{line} || exit 99" for line in lines), 'exec "$@"']
        )
    log = place / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    try:
        outcome = _watched(process, log, home, plain, closed="stdout closed" in names)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
    if "stderr full" in names and outcome.wrong and process.returncode in {1, 2}:
        return Outcome("refused; its sentence cannot be seen")
    return outcome


def _watched(
    process: subprocess.Popen[bytes], log: Path, home: str, plain: dict[str, str], *, closed: bool
) -> Outcome:
    assert process.stdout is not None
    if closed:  # its end, or its socket, is all there is to see
        works = _appears(process, Path(home))
    else:
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        if not ready:
            return Outcome("", f"neither started nor ended:\n{_end(log)}")
        works = b'"ready"' in process.stdout.readline()
    if not works:
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome("", f"not ready, and not ended:\n{_end(log)}")
        return _refusal(code, log)
    failed = _turn(home, plain, process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome("", f"does not stop:\n{_end(log)}")
    text = log.read_text(errors="replace")
    if "Traceback" in text:
        return Outcome("", f"a traceback:\n{_end(log)}")
    if code != 0:
        return Outcome("", f"ended with {code}:\n{_end(log)}")
    return Outcome("works" if failed is None else f"a turn was refused: {failed}")


def _appears(process: subprocess.Popen[bytes], home: Path) -> bool:
    """Wait until the server answers, or ends instead."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with ControlClient(home) as client:
                if client.answers(1.0):
                    return True
        except (OublietteError, OSError):
            time.sleep(0.1)  # nothing tells when the socket is made
    return False


def _turn(home: str, plain: dict[str, str], server: int) -> str | None:
    """Run a turn, among the file systems of the server; return the error if it was refused."""
    enter = ["nsenter", f"--target={server}", "--mount", f"--wd={Path.cwd()}"]
    python = [*(enter if has_namespaces() else ()), sys.executable]
    for words in (
        ["project", "create", "demo", "--agent", "scripted"],
        ["session", "spawn", "demo", "exec pwd\nsay done", "--follow"],
    ):
        done = subprocess.run(
            [*python, "-m", "oubliette", *words, "--home", home],
            env=plain, capture_output=True, text=True, timeout=TURN_SECONDS, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr + done.stdout, done.stderr + done.stdout
        if done.returncode != 0:
            return (done.stderr + done.stdout)[-600:]
    assert "done" in done.stdout
    return None


def _refusal(code: int, log: Path) -> Outcome:
    text = log.read_text(errors="replace")
    errors = [
        line for line in text.splitlines() if '"error": {' in line or line.startswith("error:")
    ]
    if code == 99:
        return Outcome("the condition cannot be made here")
    if "Traceback" in text or code not in {1, 2} or len(errors) != 1:
        return Outcome("", f"ended with {code}:\n{_end(log)}")
    return Outcome(errors[0])


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


@pytest.mark.parametrize("seed", range(100 if SOAK else 12))
def test_a_server_under_odd_conditions_works_or_ends_with_a_sentence(seed: int) -> None:
    names = chosen(seed)
    with new_place() as place:
        outcome = attempt(names, place)
    assert outcome.wrong is None, f"{names}: {outcome.wrong}"


PROGRAM = """
import asyncio, sys, threading
import oubliette

class Loop(asyncio.SelectorEventLoop):
    pass

class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        return Loop()

async def main():
    async with oubliette.open(sys.argv[1], config={"containers.runtime": "process"}) as ob:
        turn = await (await ob.project("one", agent="scripted")).run("exec git --version\\nsay done")
        print(turn.text)

asyncio.set_event_loop_policy(Policy())
thread = threading.Thread(target=lambda: asyncio.run(main(), debug=True))
thread.start()
thread.join()
"""
"""A program with its own kind of event loop, in a thread of its own, that looks for mistakes."""


def test_a_program_with_an_event_loop_of_its_own_in_a_thread_runs_turns() -> None:
    with new_place() as place:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")}
        environment["OUBLIETTE_CONTAINERS__RUNTIME_DIR"] = str(place / "run")
        if not shutil.which("bwrap"):
            environment["OUBLIETTE_PROCESS__SANDBOX"] = "best-effort"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(place / "home")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
            check=False,
        )
    assert done.stdout == "done\n", done.stderr


def tried(word: str) -> list[list[str]]:
    """The combinations that a word of the command line names."""
    if word in CONDITIONS:
        return [[word]]
    first, _, last = word.partition("-")
    return [chosen(seed) for seed in range(int(first), int(last or first) + 1)]


if __name__ == "__main__":
    wrong = 0
    for names in [each for word in sys.argv[1:] for each in tried(word)]:
        with new_place() as folder:
            outcome = attempt(names, folder)
        wrong += outcome.wrong is not None
        print(names, *filter(None, outcome), sep="\n    ", flush=True)
    sys.exit(wrong > 0)
