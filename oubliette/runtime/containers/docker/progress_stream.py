"""Long calls of an engine, pull and build: requests whose answer is a stream of JSON objects.

The SDK would need a thread for it, which cannot be ended while an engine waits silently for a
registry. So this one request is written here, over a connection of its own: HTTP/1.1, whose answer
has an explicit end, so that an engine that fails halfway is distinguished from one that is done. An
engine whose client has disconnected stops the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from oubliette.runtime.containers.docker.client import EngineRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from oubliette.runtime.containers.docker.client import Engine

_LINE_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 16


async def work(
    engine: Engine,
    path: str,
    query: Mapping[str, str | Sequence[str]],
    *,
    headers: Mapping[str, str],
    body: BinaryIO | None = None,
) -> AsyncGenerator[dict[str, Any]]:
    """POST `body` to `path`, and yield the engine's objects until it is done.

    Raises:
        EngineMissing: the engine does not answer.
        EngineRefused: the engine refused, or disconnected halfway.
    """
    version = await engine.version()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = await engine.open(lambda: protocol)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    try:
        length = 0 if body is None else body.seek(0, 2)
        asked = urllib.parse.urlencode(query, doseq=True)
        lines = [f"POST /{version}{path}?{asked} HTTP/1.1", "Host: engine"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {length}", "", ""]
        writer.write("\r\n".join(lines).encode())
        if body is not None:
            await _send(writer, body)
        rest = b""
        async for data in _body(reader, await _head(reader)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
        if rest.strip():
            yield json.loads(rest)
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise EngineRefused(f"{engine.flavour} broke off: {error}") from error
    finally:
        transport.abort()


async def _send(writer: asyncio.StreamWriter, body: BinaryIO) -> None:
    body.seek(0)
    while data := await asyncio.to_thread(body.read, _CHUNK):
        writer.write(data)
        try:
            await writer.drain()
        except ConnectionError:
            return  # its answer has the reason


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Read the header fields of a successful answer."""
    words = (await reader.readline()).split(None, 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    fields: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip().lower()
    if status in {200, 201}:
        return fields
    body = b""
    async for data in _body(reader, fields):
        body = (body + data)[:_CHUNK]
    text = body.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    raise EngineRefused(text or "no answer", status=status or 500)


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncGenerator[bytes]:
    """Yield the body after the head, as it arrives.

    Raises:
        EOFError: the connection closed before the end.
    """
    if fields.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif fields.get("content-length", "").isdigit():
        yield await reader.readexactly(int(fields["content-length"]))
    else:
        while data := await reader.read(_CHUNK):
            yield data
