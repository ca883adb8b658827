"""GitProgram, git as the server runs it: on its own repositories, with nothing of a user's.

Neither the system's configuration nor a user's is read, no hook or helper is run, and the network
cannot be reached. No repository that it opens was written by an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import DeadlineExceeded, LimitExceeded, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_BLOCK: Final = 1 << 16
"""Bytes that are read at a time."""
_SHOWN: Final = 500
"""Characters of a program's standard error, in an error."""
_FOLLOWED: Final = 8000
"""Bytes of it that are kept if it is followed while the program runs."""
_CONFIG: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\tfilemode = true
\thooksPath = /dev/null
\tfsmonitor = false
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tlogAllRefUpdates = false
\tcompression = 1
\tfsync = {fsync}
[gc]
\tauto = 0
[maintenance]
\tauto = false
[receive]
\tautogc = false
[fastimport]
\tunpackLimit = 1
[fetch]
\tunpackLimit = 1
[transfer]
\tunpackLimit = 1
[pack]
\tthreads = 1
[credential]
\thelper =
"""
_ATTRIBUTES: Final = "* !text !diff -filter -ident -merge -working-tree-encoding\n"
"""Override all others, of which a bare repository has none anyway."""
_CAUSES: Final = (
    (
        r"No space left on device|Disk quota exceeded",
        "the server's disk is full",
        "free some space in the home, then try again",
    ),
    (
        r"invalid path '(?P<what>[^']*)'",
        "no checkout can have the path {what}, which git takes for one of its own files",
        "rename it in the repository, or begin at a branch without it",
    ),
    (
        r"unable to create (?:file|symlink) (?P<what>.+?): File name too long",
        "the name {what} is too long for the file system of the home",
        "rename it in the repository, or begin at a branch without it",
    ),
    (
        r"[Pp]ermission denied|Read-only file system|Operation not permitted",
        "the server may not write there",
        "give the home and all in it to the server's user",
    ),
    (
        r"Too many open files|Cannot allocate memory|out of memory|Cannot fork",
        "the machine has no room for it",
        "try again when less is done there, or raise its limits (ulimit)",
    ),
    (
        (
            r"object file \S+ is empty|corrupt|missing (?:blob|tree|commit)|bad (?:object|tree)"
            r"|unable to read|could not read|inflate|does not point to a valid object|loose object"
        ),
        "an object in the repository is missing or damaged",
        "take what is missing from a copy of the home",
    ),
)
"""Pattern of what git writes, and sentence and remedy of the error that it means."""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """Exit code and output of a program that has ended."""

    code: int
    output: bytes
    errors: str


async def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    folder: Path,
    given: bytes = b"",
    seconds: float,
    onto: Path | None = None,
    follow: Callable[[bytes], object] | None = None,
) -> ProgramOutput:
    """Run a program to its end; with all that it started, it is killed at its deadline.

    Args:
        command: Program and arguments.
        environment: All of its environment.
        folder: Its working directory.
        given: Its standard input.
        seconds: Its time.
        onto: File to which its output is appended, instead of being returned.
        follow: Gets its standard error while it runs, of which more is then returned.

    Raises:
        DeadlineExceeded: the time was too short.
        RuntimeFailure: it cannot be started.
    """
    with _appended(onto) as output_to:
        async with streaming(
            command, environment=environment, folder=folder, seconds=seconds, stdout=output_to
        ) as process:
            if follow is None:
                output, errors = await process.communicate(given)
            else:
                output, errors = await _followed(process, given, follow)
    text = errors.decode(errors="replace").strip()
    shown = _SHOWN if follow is None else _FOLLOWED
    return ProgramOutput(process.returncode or 0, output or b"", text[-shown:])


async def _followed(
    process: asyncio.subprocess.Process, given: bytes, follow: Callable[[bytes], object]
) -> tuple[bytes, bytes]:
    """The output of a program and the end of its standard error, once it has ended."""
    assert process.stdin is not None
    assert process.stderr is not None
    output = asyncio.create_task(process.stdout.read() if process.stdout else _nothing())
    try:
        with contextlib.suppress(ConnectionError):  # it may have ended without reading it
            process.stdin.write(given)
            process.stdin.close()
            await process.stdin.wait_closed()
        errors = b""
        while data := await process.stderr.read(1 << 16):
            errors = (errors + data)[-_FOLLOWED:]
            follow(data)
        await process.wait()
        return await output, errors
    finally:
        output.cancel()
        await asyncio.wait((output,))


async def last_of(stream: asyncio.StreamReader, most: int = _SHOWN) -> bytes:
    """Read a stream to its end, however long it is; return its last bytes."""
    kept = b""
    while data := await stream.read(_BLOCK):
        kept = (kept + data)[-most:]
    return kept


async def _nothing() -> bytes:
    return b""


@contextlib.contextmanager
def _appended(file: Path | None) -> Generator[int]:
    """Return where a program's output goes: to the end of a file, or to its reader."""
    if file is None:
        yield asyncio.subprocess.PIPE
        return
    try:
        output_to = os.open(file, _APPEND)
    except OSError as error:
        raise RuntimeFailure(f"{file}: {error.strerror}") from error
    try:
        yield output_to
    finally:
        os.close(output_to)


@contextlib.asynccontextmanager
async def streaming(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    folder: Path,
    seconds: float,
    stdin: int = asyncio.subprocess.PIPE,
    stdout: int = asyncio.subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a program whose input, output and errors the block writes and reads by pipes.

    After the block, or at its deadline, it is killed with all that it has started. It has the
    descriptors `pass_fds`, too.

    Raises:
        DeadlineExceeded: the block took longer.
        RuntimeFailure: it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,  # a group of its own, which is killed as a whole
        )
    except OSError as error:
        raise RuntimeFailure(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(seconds):
            yield process
    except TimeoutError:
        raise DeadlineExceeded(f"{Path(command[0]).name} took more than {seconds:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a program that was killed; what it has written still is dropped.

    `Process.wait` returns once all pipes are read to their ends, and asyncio pauses a pipe whose
    reader has as much as it buffers.
    """
    pipes = [each for each in (process.stdout, process.stderr) if each is not None]
    await asyncio.gather(process.wait(), *map(_dropped, pipes))


async def _dropped(pipe: asyncio.StreamReader) -> None:
    with contextlib.suppress(RuntimeError):  # another task reads it to its end
        while await pipe.read(_BLOCK):
            continue


class GitProgram:
    """The program `git`; does nothing until it is used."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def find(cls) -> GitProgram | None:
        path = shutil.which("git")
        return None if path is None else cls(path)

    def environment(self, repository: Path) -> dict[str, str]:
        return {
            "PATH": f"{Path(self.path).parent}:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_DIR": str(repository),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_PAGER": "cat",
            "GIT_EDITOR": "/bin/false",
            "GIT_ALLOW_PROTOCOL": "file",
        }

    async def run(
        self,
        repository: Path,
        *arguments: str,
        given: bytes = b"",
        seconds: float,
        onto: Path | None = None,
        environment: Mapping[str, str] | None = None,
        accepted: Sequence[int] = (0,),
    ) -> bytes:
        """Run a command of git on a repository; return its output, or append it to a file.

        Args:
            repository: Folder of the repository.
            arguments: The command and its arguments.
            given: Standard input.
            seconds: Time that it has.
            onto: File to which the output is appended.
            environment: Variables beside those that it always has.
            accepted: Exit codes that are no failure.

        Raises:
            DeadlineExceeded: the time was too short.
            RuntimeFailure: git failed, or cannot be started.
        """
        done = await run(
            [self.path, *arguments],
            environment={**self.environment(repository), **(environment or {})},
            folder=repository,
            given=given,
            seconds=seconds,
            onto=onto,
        )
        if done.code not in accepted:
            raise git_failure(arguments[0], done)
        return done.output

    async def refs(self, repository: Path, *names: str, seconds: float) -> dict[str, str]:
        """Return the commits of these refs, and of those below them, by their whole names.

        Raises:
            DeadlineExceeded: the time was too short.
            RuntimeFailure: git failed, or cannot be started.
        """
        form = "--format=%(objectname) %(refname)"
        listed = await self.run(repository, "for-each-ref", form, *names, seconds=seconds)
        lines = (line.partition(" ") for line in listed.decode().splitlines())
        return {name: commit for commit, _, name in lines}

    async def commit_of(self, repository: Path, ref: str, *, seconds: float) -> str | None:
        """Return the commit of a ref of exactly this name, as `refs` does; None: there is none."""
        return (await self.refs(repository, ref, seconds=seconds)).get(ref)

    async def piece(
        self, repository: Path, *arguments: str, offset: int, most: int, seconds: float
    ) -> tuple[bytes, bool]:
        """Run a command of git for a piece of its output; return it, and whether there is more.

        What comes before the piece is read and dropped, so the output must be the same each time.
        Git is killed once the piece is there.

        Args:
            repository: Folder of the repository.
            arguments: The command and its arguments.
            offset: Byte of the output at which the piece begins.
            most: Maximum bytes of the piece.
            seconds: Time that it has.

        Raises:
            DeadlineExceeded: the time was too short.
            RuntimeFailure: git failed, or cannot be started.
        """
        piece = bytearray()
        async with self._writing(repository, arguments, seconds) as process:
            assert process.stdout is not None
            while block := await process.stdout.read(_BLOCK):
                dropped = min(offset, len(block))
                offset -= dropped
                piece += block[dropped:]
                if len(piece) > most:
                    return bytes(piece[:most]), True
            await _succeeded(process, arguments[0])
        return bytes(piece), False

    async def write_file(
        self, repository: Path, *arguments: str, file: Path, most: int, seconds: float
    ) -> None:
        """Have a command of git write a new file, which is incomplete if this fails.

        Raises:
            LimitExceeded: the file would be larger.
            DeadlineExceeded: the time was too short.
            RuntimeFailure: git failed or cannot be started, or the file cannot be written.
        """
        written = 0
        async with self._writing(repository, arguments, seconds) as process:
            assert process.stdout is not None
            try:
                with file.open("xb") as opened:
                    while block := await process.stdout.read(_BLOCK):
                        written += len(block)
                        if written > most:
                            name = Path(self.path).name
                            raise LimitExceeded(f"the output of {name} has more than {most} bytes")
                        await asyncio.to_thread(opened.write, block)
            except OSError as error:
                raise RuntimeFailure(f"{file}: {error.strerror}") from error
            await _succeeded(process, arguments[0])

    def _writing(
        self, repository: Path, arguments: Sequence[str], seconds: float
    ) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """Run a command of git whose output the block reads."""
        return streaming(
            [self.path, *arguments],
            environment=self.environment(repository),
            folder=repository,
            seconds=seconds,
            stdin=asyncio.subprocess.DEVNULL,
        )


async def _succeeded(process: asyncio.subprocess.Process, command: str) -> None:
    """Raise RuntimeFailure unless a command of git, whose output was read, ends with success."""
    assert process.stderr is not None
    errors = await process.stderr.read(_SHOWN)
    code = await process.wait()
    if code != 0:
        text = errors.decode(errors="replace").strip()
        raise git_failure(command, ProgramOutput(code, b"", text))


def git_failure(command: str, done: ProgramOutput) -> RuntimeFailure:
    """The error that the end of a command of git means, on a repository of the server."""
    for pattern, sentence, remedy in _CAUSES:
        found = re.search(pattern, done.errors)
        if found is not None:
            what = found.groupdict().get("what", "")
            first = done.errors[found.start() :].partition("\n")[0]
            return RuntimeFailure(
                f"git {command}: {sentence.format(what=what)} ({first})", hint=remedy
            )
    reason = done.errors or f"it ended with {done.code} and gave no reason"
    return RuntimeFailure(
        f"git {command}: {reason}",
        hint="oubliette doctor shows whether git and the home work",
    )


def make_repository(repository: Path, *, durable: bool) -> None:
    """Make a bare repository, if it is missing, without running git. Blocks.

    Args:
        repository: Its folder.
        durable: Whether what it has must survive a power failure.
    """
    if (repository / "HEAD").exists():
        return
    for folder in ("objects/info", "objects/pack", "refs/heads", "info"):
        (repository / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    repository.chmod(0o700)
    text = _CONFIG.format(fsync="committed" if durable else "none")
    (repository / "config").write_text(text)
    (repository / "info" / "attributes").write_text(_ATTRIBUTES)
    head = repository / "HEAD.new"
    head.write_text("ref: refs/heads/none\n")
    head.rename(repository / "HEAD")
