"""The guest of a container as the server sees it: the far end of the wire, played by a test."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

from oubliette.incontainer import wire

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

CHALLENGE = "c" * 32


class FakeProcess:
    """One agent: the test says what it writes, and sees what it was given."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.output = b""
        self.accepted: list[bytes] = []
        """Frames of its input, in order."""
        self.acked = 0
        self.attached_at: list[tuple[int, int]] = []
        """Offsets of output and standard error that the attachments asked for."""
        self.signals: list[str] = []
        self.stubborn: set[str] = set()
        """Signals that it ignores."""
        self._exit: dict[str, Any] | None = None
        self._writer: StreamWriter | None = None

    @property
    def heard(self) -> list[dict[str, Any]]:
        """What it was given, as the scripted agent reads it."""
        return [json.loads(frame) for frame in self.accepted if frame.strip()]

    def say(self, **message: Any) -> None:
        """Write one line, as the scripted agent does."""
        line, start = json.dumps(message).encode() + b"\n", len(self.output)
        self.output += line
        self._send(wire.STDOUT, start, line)

    def complain(self, text: str) -> None:
        """Write to its standard error, once."""
        self._send(wire.STDERR, 0, text.encode())

    def exit(self, code: int | None = None, signal: int | None = None) -> None:
        self._exit = {"code": code, "signal": signal}
        self._send(wire.EXIT, 0, json.dumps(self._exit).encode())

    def cut(self) -> None:
        """Break the link to its streams; it goes on."""
        assert self._writer is not None
        self._writer.close()
        self._writer = None

    def take_signal(self, name: str) -> None:
        self.signals.append(name)
        if name not in self.stubborn and name != "INT" and self._exit is None:
            self.exit(signal={"TERM": 15}.get(name, 9))

    async def attach(self, header: wire.Attach, reader: StreamReader, writer: StreamWriter) -> None:
        offset, self._writer = header.out_offset, writer
        self.attached_at.append((offset, header.err_offset))
        self._send(wire.STDIN_OK, len(self.accepted))
        if offset < len(self.output):
            self._send(wire.STDOUT, offset, self.output[offset:])
        if self._exit is not None:
            self._send(wire.EXIT, 0, json.dumps(self._exit).encode())
        frames = wire.FrameDecoder()
        while data := await reader.read(1 << 16):
            for frame in frames.feed(data):
                if frame.n == len(self.accepted) + 1:
                    self.take(frame)

    def take(self, frame: wire.Frame) -> None:
        """Accept the next frame of its input."""
        self.accepted.append(frame.payload)

    def accept(self) -> None:
        """Report what it has accepted."""
        self._send(wire.STDIN_OK, len(self.accepted))

    def _send(self, kind: int, n: int, payload: bytes = b"") -> None:
        if self._writer is not None:
            self._writer.write(wire.encode_frame(kind, n, payload))


class FakeGuest:
    """Proves itself with the key of its container, then does as it is asked."""

    def __init__(self, key: bytes, process: type[FakeProcess] = FakeProcess) -> None:
        self.key = key
        self._process = process
        self.absent = False
        """Nobody listens."""
        self.hello: dict[str, Any] = {"event": "hello", "versions": [1, 1], "boot": "b", "pid": 1}
        self.requests: list[dict[str, Any]] = []
        self.refusing: dict[str, dict[str, str]] = {}
        """Verb → the error that it is answered with."""
        self.refusing_attach = ""
        """Reason for which it refuses every attach."""
        self.refused_attaches = 0
        self.epochs: list[int] = []
        """Of the control links, in the order in which they were opened."""
        self.processes: dict[str, FakeProcess] = {}
        self.clients: list[tuple[wire.Upstream, StreamReader, StreamWriter]] = []
        """The far ends of the sessions' links, in the order in which they were opened."""
        self._control: StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ for the test
    def asked(self, verb: str) -> list[dict[str, Any]]:
        return [request for request in self.requests if request["verb"] == verb]

    @property
    def process(self) -> FakeProcess:
        """The only process."""
        (process,) = self.processes.values()
        return process

    def start(self, **request: Any) -> None:
        """A server before this one has started a process."""
        self.processes[request["proc"]] = FakeProcess(request)

    def tell(self, **event: Any) -> None:
        """Send an event over the control link."""
        assert self._control is not None
        self._control.write(wire.encode_json(event))

    def cut(self) -> None:
        """Break the control link."""
        assert self._control is not None
        self._control.close()

    # ------------------------------------------------------------ for the server
    async def dial(self, limit: int) -> tuple[StreamReader, StreamWriter]:
        if self.absent:
            raise ConnectionRefusedError(111, "refused")
        near, far = socket.socketpair()
        task = asyncio.create_task(self.serve(far))
        self._tasks.add(task)
        return await asyncio.open_unix_connection(sock=near, limit=limit)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [error for error in ended if isinstance(error, Exception)]
        assert not failed, repr(failed)

    async def serve(self, far: socket.socket) -> None:
        """Play the far end of one connection until it ends."""
        reader, writer = await asyncio.open_unix_connection(sock=far, limit=1 << 21)
        try:
            if not (line := await reader.readline()):
                return  # the dialling actor ended before it sent a header
            header = wire.parse_header(line)
            if isinstance(header, wire.ControlHeader):
                await self._serve_control(header, reader, writer)
            elif isinstance(header, wire.Attach):
                process = self.processes.get(header.proc)
                if self.refusing_attach:
                    self.refused_attaches += 1
                    writer.write(wire.error_line(self.refusing_attach))
                elif process is None:
                    writer.write(wire.error_line(wire.UNKNOWN_PROCESS))
                else:
                    await process.attach(header, reader, writer)
            else:
                assert isinstance(header, wire.Upstream)
                self.clients.append((header, reader, writer))
                await asyncio.Event().wait()
        except ConnectionError:
            return  # it was us, or the server, who cut the link
        finally:
            writer.close()

    async def _serve_control(
        self, header: wire.ControlHeader, reader: StreamReader, writer: StreamWriter
    ) -> None:
        proof = wire.host_proof(self.key, header.nonce, CHALLENGE)
        writer.write(wire.encode_json({"challenge": CHALLENGE, "proof": proof, "boot": "b"}))
        if not (line := await reader.readline()):
            return
        said = json.loads(line)
        assert said["proof"] == wire.server_proof(self.key, CHALLENGE, header.nonce)
        self.epochs.append(said["epoch"])
        self._control = writer
        writer.write(wire.encode_json(self.hello))
        while line := await reader.readline():
            request = json.loads(line)
            self.requests.append(request)
            error = self.refusing.get(request["verb"])
            answer = {"error": error} if error else {"ok": self._do(request)}
            writer.write(wire.encode_json({"id": request["id"], **answer}))

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self.processes.get(request.get("proc", ""))
        match request["verb"]:
            case "ticket":
                return {"tickets": ["t" * 32] * request["count"]}
            case "start":
                if process is None:
                    self.processes[request["proc"]] = self._process(request)
                return {"pid": 7}
            case "signal":
                if process is not None:
                    process.take_signal(request["signal"])
                return {"delivered": process is not None}
            case "ack" if process is not None:
                process.acked = request["out"]
            case "forget":
                self.processes.pop(request["proc"], None)
        return {}
