"""PortExchange: one request of a browser to a program in a container, over a stream of its own.

h11 writes the request and reads the answer. Both bodies are passed on piece by piece, at the pace
of the slower side, and at the same time: a program may answer before it has read all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import h11

from oubliette.mcp_front.ports.headers import to_browser

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from oubliette.actors.ports.messages import GuestStream
    from oubliette.mcp_front.ports.headers import Headers

MAX_HEAD: Final = 64 * 1024  # bytes of the head of an answer
PIECE: Final = 64 * 1024  # bytes
ANSWER_SECONDS: Final = 120.0  # from the last piece of a request to the head of its answer
PORTION: Final = 4  # parts of an answer that are handled before others have their turn
CONSENT_SECONDS: Final = 30.0  # for a program to switch to another protocol
SWITCHING: Final = 101
_BODYLESS: Final = frozenset({204, 304})


class BadAnswer(Exception):
    """The program's answer is not HTTP; `begun` if a part of it was passed on already."""

    def __init__(self, reason: str, *, begun: bool) -> None:
        super().__init__(reason)
        self.begun = begun


class NoAnswer(BadAnswer):
    """The program does not begin to answer in time."""


class BadHead(Exception):
    """The request cannot be written as HTTP."""


class PortExchange:
    """One request and its answer.

    Args:
        stream: connection to the program; the caller closes it.
        scope: of the request.
        receive: the body of the request.
        send: the answer.
    """

    def __init__(self, stream: GuestStream, scope: Scope, receive: Receive, send: Send) -> None:
        self._stream = stream
        self._scope = scope
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._begun = False
        self._parts = 0
        self._wait: asyncio.Timeout | None = None
        """For the beginning of the answer, after the last piece that the program took."""

    async def run(self, headers: Headers) -> None:
        """Pass the request and its answer on; return early if the browser goes away.

        Raises:
            BadAnswer: the program does not answer in HTTP or in time, or ends in the middle.
            BadHead: the request cannot be passed on.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS) as self._wait:
                await self._run(headers)
        except TimeoutError as error:
            raise NoAnswer("no answer in time", begun=self._begun) from error

    async def _run(self, headers: Headers) -> None:
        await self._write(self._request([*headers, (b"connection", b"close")]))
        upload = asyncio.create_task(self._upload())
        download = asyncio.create_task(self._download())
        both = {upload, download}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in both:
            if not task.cancelled():
                task.result()

    async def upgrade(self, headers: Headers, protocol: bytes) -> tuple[bytes, bytes] | None:
        """Ask the program to switch to another protocol.

        Returns:
            The head of its consent, and the bytes that followed; None if it has answered otherwise,
            which was passed on.

        Raises:
            BadAnswer: as for `run`, or it has not consented in time.
            BadHead: as for `run`.
        """
        try:
            async with asyncio.timeout(CONSENT_SECONDS):
                return await self._upgrade(headers, protocol)
        except TimeoutError as error:
            raise NoAnswer("no answer in time", begun=self._begun) from error

    async def _upgrade(self, headers: Headers, protocol: bytes) -> tuple[bytes, bytes] | None:
        asked = [*headers, (b"connection", b"upgrade"), (b"upgrade", protocol)]
        await self._write(self._request(asked))
        await self._write(h11.EndOfMessage())
        event = await self._event()
        while isinstance(event, h11.InformationalResponse) and event.status_code != SWITCHING:
            event = await self._event()
        if not isinstance(event, h11.InformationalResponse):
            await self._pass_on(event)
            await self._download()
            return None
        shown = to_browser(event.headers, port=self._stream.port, bodyless=True)
        lines = [b"HTTP/1.1 101 Switching Protocols", b"connection: upgrade"]
        lines += [b"upgrade: " + protocol, *(b"%b: %b" % pair for pair in shown)]
        return b"\r\n".join(lines) + b"\r\n\r\n", self._http.trailing_data[0]

    def _request(self, headers: Headers) -> h11.Request:
        query: bytes = self._scope["query_string"]
        path: bytes = self._scope["raw_path"]
        try:
            return h11.Request(
                method=self._scope["method"],
                target=path + b"?" + query if query else path,
                headers=headers,
            )
        except h11.LocalProtocolError as error:
            raise BadHead(f"the request cannot be passed on: {error}") from error

    async def _write(self, event: Any) -> None:
        data = cast("bytes | None", self._http.send(event))  # pyright: ignore[reportUnknownMemberType]
        if data:
            self._stream.writer.write(data)
            await self._stream.writer.drain()

    async def _upload(self) -> None:
        """Pass the body on, then return when the browser goes away."""
        more = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if not more:
                continue
            more = message.get("more_body", False)
            try:
                if message.get("body"):
                    await self._write(h11.Data(data=message["body"]))
                if not more:
                    await self._write(h11.EndOfMessage())
                if self._wait is not None and not self._begun:
                    self._wait.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)
            except (ConnectionError, h11.LocalProtocolError):
                more = False  # the program reads no more; its answer may still come

    async def _download(self) -> None:
        while not await self._pass_on(await self._event()):
            pass

    async def _event(self) -> Any:
        """The next part of the answer, of which a block may have thousands."""
        self._parts += 1
        if self._parts % PORTION == 0:
            await asyncio.sleep(0)
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._stream.reader.read(PIECE))
                    continue
            except (h11.RemoteProtocolError, ConnectionError) as error:
                raise BadAnswer(str(error), begun=self._begun) from error
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise BadAnswer("it closed the connection without an answer", begun=self._begun)
            return event

    async def _pass_on(self, event: Any) -> bool:
        """Pass a part of the answer on; return whether it was the last."""
        if isinstance(event, h11.Response):
            self._begun = True
            if self._wait is not None:
                self._wait.reschedule(None)
            bodyless = event.status_code in _BODYLESS
            await self._send(
                {
                    "type": "http.response.start",
                    "status": event.status_code,
                    "headers": to_browser(event.headers, port=self._stream.port, bodyless=bodyless),
                }
            )
        elif isinstance(event, h11.Data):
            await self._send(
                {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
            )
        elif isinstance(event, h11.EndOfMessage):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return True
        return False
