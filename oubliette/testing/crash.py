"""CrashRunner, which kills a program at a chosen moment and starts it again on the same home.

For tests of exactly-once behaviour: a program that embeds Oubliette is killed by SIGKILL in the
middle of its work, and its next run has to finish the work without repeating it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec

from oubliette.errors import InvalidParameter
from oubliette.failpoints import VARIABLE
from oubliette.runtime.files.home import DATABASE
from oubliette.testing.remains import end_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SECONDS: Final = 60.0
CHUNK: Final = 1 << 16  # bytes
_FUNCTION: Final = "import sys, {module} as m; sys.exit(m.{name}())"


class AfterOutput(msgspec.Struct, frozen=True):
    """Moment at which a program has printed a line that contains a text."""

    text: str


Moment: TypeAlias = "str | float | AfterOutput"
"""Failpoint (`session.committed`, `session.committed@3` for its third pass), seconds since the
start, or a line of output."""


class ProgramRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a program."""

    exit_code: int
    """Negative for a signal."""
    output: str
    """Standard output."""
    errors: str
    """Standard error."""
    seconds: float
    """Duration."""

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return self.exit_code == -signal.SIGKILL

    @property
    def lines(self) -> list[str]:
        """Lines of the standard output."""
        return self.output.splitlines()


class CrashOutcome(msgspec.Struct, frozen=True):
    """The runs of a program on one home: all but the last one were killed."""

    runs: tuple[ProgramRun, ...]

    @property
    def last(self) -> ProgramRun:
        """The run that was left to its end."""
        return self.runs[-1]

    @property
    def output(self) -> str:
        """Standard output of all runs."""
        return "".join(run.output for run in self.runs)


class ProgramFailed(AssertionError):
    """A program was not killed where it should have been, failed, or did not end."""

    def __init__(self, message: str, run: ProgramRun) -> None:
        self.run = run
        super().__init__(f"{message}\n{run.output[-2000:]}\n{run.errors[-4000:]}".rstrip())


class CrashRunner:
    """Home of a program, and its runs there. Use as a context manager, which removes the home.

    The program finds the home in `OUBLIETTE_HOME`, which `oubliette.open()` uses.

    Args:
        seed: Of the random moments; None: a new one.
        environment: Further variables of the programs.
    """

    def __init__(
        self, *, seed: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="obc", dir="/tmp"))
        """Short, because sockets lie below it."""
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self._chance = random.Random(self.seed)  # noqa: S311 - no secret
        sandbox = "bubblewrap" if shutil.which("bwrap") else "best-effort"
        self._environment = {
            "OUBLIETTE_HOME": str(self.home),
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(self.home / "r"),
            "OUBLIETTE_PROCESS__SANDBOX": sandbox,
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _in_thread(lambda: asyncio.run(end_processes(self.home)))
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    @property
    def has_database(self) -> bool:
        """Whether a system has run on the home."""
        return (self.home / DATABASE).exists()

    def moment(self, least: float = 0.1, most: float = 2.0) -> float:
        """Return random seconds, the same for the same `seed`."""
        return self._chance.uniform(least, most)

    def run(
        self,
        program: str | Path | Callable[[], Any],
        *arguments: str,
        at: Moment | Sequence[Moment],
        timeout: float = SECONDS,
    ) -> CrashOutcome:
        """Run a program, kill it at a moment, and run it again to its end.

        Args:
            program: Path of a script, `module:function`, or a function of a module.
            arguments: Of the script.
            at: Moment of the kill; or several, one for each run before the last one.
            timeout: Seconds for each run.

        Raises:
            ProgramFailed: a run ended before its moment, the last one failed, or one took too
                long; has the output.
        """
        moments = [at] if isinstance(at, str | int | float | AfterOutput) else list(at)
        runs: list[ProgramRun] = []
        for moment in moments:
            runs.append(self.start(program, *arguments, at=moment, timeout=timeout))
            if not runs[-1].killed:
                code = runs[-1].exit_code
                raise ProgramFailed(
                    f"the program ended with {code} before it was to be killed, at {moment!r}",
                    runs[-1],
                )
        runs.append(self.start(program, *arguments, timeout=timeout))
        if runs[-1].exit_code != 0:
            code = runs[-1].exit_code
            raise ProgramFailed(f"the last run ended with {code}", runs[-1])
        return CrashOutcome(tuple(runs))

    def start(
        self,
        program: str | Path | Callable[[], Any],
        *arguments: str,
        at: Moment | None = None,
        timeout: float = SECONDS,
    ) -> ProgramRun:
        """Run a program once, until its end or its kill.

        Raises:
            ProgramFailed: it did not end within `timeout` seconds, and was killed.
        """
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")
        }
        environment |= self._environment
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, map(str, sys.path)))
        if isinstance(at, str):
            environment[VARIABLE] = _failpoint(at)
        run = _Run(_command(program, arguments), environment)
        return run.finish(at, timeout)


class _Run:
    """A running program, and the thread that reads its output."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._began = time.monotonic()
        self._child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._bytes: dict[str, bytearray] = {"output": bytearray(), "errors": bytearray()}
        self._awaited: bytes | None = None
        self._over, self._ended = socket.socketpair()
        self._reader = threading.Thread(target=self._read, name="crash output")

    def finish(self, at: Moment | None, timeout: float) -> ProgramRun:
        """Wait for the end, or bring it about."""
        if isinstance(at, AfterOutput):
            self._awaited = at.text.encode()
        self._reader.start()
        late = False
        try:
            self._child.wait(float(at) if isinstance(at, int | float) else timeout)
        except subprocess.TimeoutExpired:
            late = not isinstance(at, int | float)
        finally:
            self._child.kill()  # no effect once it has ended
            self._child.wait()
            # Agents that outlive the program may hold its streams: their end is not awaited.
            self._ended.close()
            self._reader.join()
            self._over.close()
        run = ProgramRun(
            exit_code=self._child.returncode,
            output=self._bytes["output"].decode(errors="replace"),
            errors=self._bytes["errors"].decode(errors="replace"),
            seconds=time.monotonic() - self._began,
        )
        if late:
            raise ProgramFailed(f"the program did not end within {timeout:g} s", run)
        return run

    def _read(self) -> None:
        """Read both streams until the program has ended, and then what is left in them."""
        streams: dict[str, IO[bytes]] = {}
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for name, stream in (("output", self._child.stdout), ("errors", self._child.stderr)):
                assert stream is not None
                streams[name] = stack.enter_context(stream)
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            selector.register(self._over, selectors.EVENT_READ, None)
            over = False
            while not over:
                for key, _ in selector.select():
                    if key.data is None:
                        over = True
                    elif not self._take(key.data, streams[key.data]):
                        selector.unregister(key.fileobj)
            for name, stream in streams.items():
                while self._take(name, stream):
                    pass

    def _take(self, name: str, stream: IO[bytes]) -> bool:
        """Read what is there; False at the end, or if there is nothing."""
        try:
            data = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return False
        kept = self._bytes[name]
        kept += data
        awaited = self._awaited
        if name == "output" and awaited is not None and b"\n" in data:
            whole = bytes(kept[: kept.rindex(b"\n")])
            if awaited in whole:
                self._child.kill()
        return bool(data)


def _command(program: object, arguments: Sequence[str]) -> list[str]:
    if callable(program):
        return _call(program)
    text = str(program)
    module, colon, name = text.partition(":")
    if colon and not Path(text).exists():
        if importlib.util.find_spec(module) is None:
            raise InvalidParameter(f"program: there is no module {module}", field="program")
        return [sys.executable, "-c", _FUNCTION.format(module=module, name=name), *arguments]
    if not Path(text).exists():
        raise InvalidParameter(
            f"program: there is no file {text}",
            field="program",
            hint="give the path of a script, module:function, or a function of a module",
        )
    return [sys.executable, text, *arguments]


def _call(function: Callable[..., Any]) -> list[str]:
    """Return the command that calls a function, from the file of its module."""
    name: str = getattr(function, "__qualname__", "<")
    if "<" in name:
        raise InvalidParameter(
            f"program: {name} cannot be found from another process",
            field="program",
            hint="give a function at the top level of a module",
        )
    file = sys.modules[function.__module__].__file__
    script = (
        "import importlib.util as u, sys;"
        f"s = u.spec_from_file_location('crash_program', {file!r});"
        "m = u.module_from_spec(s); sys.modules['crash_program'] = m;"
        f"s.loader.exec_module(m); m.{name}()"
    )
    return [sys.executable, "-c", script]


def _failpoint(at: str) -> str:
    name, at_sign, number = at.partition("@")
    if not name or "=" in name or "," in name or (at_sign and not number.isdigit()):
        raise InvalidParameter(
            f"at: {at!r} is no failpoint", field="at", hint="such as session.committed@3"
        )
    return f"{name}=kill{at_sign}{number}"


def _in_thread(work: Callable[[], object]) -> None:
    """Do work that needs an event loop of its own, also where one runs."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="crash end")
    thread.start()
    thread.join()
    for error in raised:
        raise error
