"""One run of `git upload-pack`, whose input and output are a request and its response.

Nothing is kept as a whole: at any moment there are a few blocks of each in memory. The program and
all that it has started end with the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import TYPE_CHECKING, Final

from oubliette.errors import OublietteError, RuntimeFailure, Unavailable
from oubliette.mcp_front.git_http.git_request import GitRefused
from oubliette.runtime.snapshots.git_program import GitProgram, last_of, streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.types import Message, Receive, Send

    from oubliette.mcp_front.git_http.git_request import GitRequest

MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of a request, decompressed: lists of commits that a client has and wants."""
_BLOCK: Final = 1 << 16
_SHOWN: Final = 2000
"""Bytes of the program's errors that are kept."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_SETTINGS: Final = {
    "uploadpack.allowFilter": "true",
    "uploadpack.allowAnySHA1InWant": "false",
    "uploadpack.keepAlive": "5",
    "pack.threads": "1",
    "pack.windowMemory": "100m",
    "core.hooksPath": "/dev/null",
}
_PROLOGUE: Final = b"001e# service=git-upload-pack\n0000"
"""Before the list of refs, in versions before 2."""


class ClientGone(OublietteError):
    """The client has closed its connection."""

    code = "client_gone"


def environment_of(git: GitProgram, repository: Path, request: GitRequest) -> dict[str, str]:
    """The environment of the program, with no configuration but this."""
    found = git.environment(repository)
    del found["GIT_DIR"]  # it gets the folder as its argument
    found["GIT_CONFIG_COUNT"] = str(len(_SETTINGS))
    for number, (name, value) in enumerate(_SETTINGS.items()):
        found[f"GIT_CONFIG_KEY_{number}"] = name
        found[f"GIT_CONFIG_VALUE_{number}"] = value
    if request.protocol:
        found["GIT_PROTOCOL"] = request.protocol
    return found


def head_of(request: GitRequest) -> Message:
    """The head of the response to a request that is served."""
    kind = b"advertisement" if request.advertise else b"result"
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", b"application/x-git-upload-pack-" + kind),
            (b"cache-control", b"no-cache, max-age=0, must-revalidate"),
        ],
    }


async def upload_pack(
    repository: Path, request: GitRequest, receive: Receive, send: Send, *, seconds: float
) -> None:
    """Answer a request from a repository of the server.

    Raises:
        GitRefused: its body is too large, or not what its head announces.
        ClientGone: the answer has no reader.
        DeadlineExceeded: it took too long.
        RuntimeFailure: git failed, or cannot be started.
        Unavailable: git is not installed.
    """
    git = GitProgram.find()
    if git is None:
        raise Unavailable("git is not installed on the server's machine", hint="install it")
    how = ["--stateless-rpc", *(["--advertise-refs"] if request.advertise else [])]
    try:
        async with (
            streaming(
                [git.path, "upload-pack", *how, "--strict", str(repository)],
                environment=environment_of(git, repository, request),
                folder=repository,
                seconds=seconds,
            ) as process,
            asyncio.TaskGroup() as tasks,
        ):
            assert process.stdin is not None
            assert process.stderr is not None
            answered = asyncio.Event()
            fed = tasks.create_task(_feed(process.stdin, request, receive, answered))
            errors = tasks.create_task(last_of(process.stderr, _SHOWN))
            await _pass_on(process, request, send, errors, answered)
            fed.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _pass_on(
    process: asyncio.subprocess.Process,
    request: GitRequest,
    send: Send,
    errors: asyncio.Task[bytes],
    answered: asyncio.Event,
) -> None:
    """Send the program's output as the response, which begins with its first block."""
    assert process.stdout is not None
    block = await process.stdout.read(_BLOCK)
    if not block and await process.wait() != 0:
        reason = (await errors).decode(errors="replace").strip()
        raise RuntimeFailure(f"git upload-pack: {reason or 'it failed'}")
    await send(head_of(request))
    if request.advertise and not request.version_2:
        block = _PROLOGUE + block
    while block:
        await send({"type": "http.response.body", "body": block, "more_body": True})
        block = await process.stdout.read(_BLOCK)
    answered.set()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _feed(
    stdin: asyncio.StreamWriter, request: GitRequest, receive: Receive, answered: asyncio.Event
) -> None:
    """Write the request's body to the program; then wait until the client is gone."""
    with contextlib.suppress(ConnectionError):  # it may end before it has read everything
        if not request.advertise:
            async for block in _body(request, receive):
                stdin.write(block)
                await stdin.drain()
        stdin.close()
    while (await receive())["type"] != "http.disconnect":
        pass
    if not answered.is_set():  # otherwise it is the end of the answer
        raise ClientGone("the client is gone")


async def _body(request: GitRequest, receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body in blocks of bounded size.

    Raises:
        GitRefused: it is too large, or cannot be decompressed.
        ClientGone: it does not come as a whole.
    """
    opened = zlib.decompressobj(_GZIP) if request.compressed else None
    left, more = MAX_BODY, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client is gone")
        data, more = message.get("body", b""), message.get("more_body", False)
        while data:
            if opened is None:
                block, data = data, b""
            else:
                try:
                    block = opened.decompress(data, _BLOCK)
                except zlib.error as error:
                    raise GitRefused(400, f"the body is not gzip: {error}") from None
                data = opened.unconsumed_tail
            left -= len(block)
            if left < 0:
                raise GitRefused(413, f"the request may have {MAX_BODY} bytes at most")
            if block:
                yield block
    if opened is not None and not opened.eof:
        raise GitRefused(400, "the compressed body ends too early")
