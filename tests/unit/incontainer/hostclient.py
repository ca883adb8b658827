"""A small blocking client of the relay protocol, and a host to speak to, for tests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oubliette.incontainer import wire

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 5.0  # seconds any single wait may take


_open: list[Link] = []  # what tests leave open is closed with the host it goes to


class Closed(AssertionError):
    """The host closed the link while something was still expected of it."""


class HostProcess:
    """A host in its own process, in a folder of its own."""

    def __init__(
        self,
        *options: str,
        python: str = sys.executable,
        command: str = "host",
        target: list[str] | None = None,
        env: dict[str, str] | None = None,
        keep: list[int] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
        self.socket = str(self.folder / "relay.sock")
        self.key = os.urandom(32)
        key_file = self.folder / "key"
        key_file.write_bytes(self.key)
        self.stderr_path = self.folder / "stderr"
        ready_in, ready_out = os.pipe()
        with self.stderr_path.open("wb") as stderr:
            key = ["--key", str(key_file)] if command == "host" else []
            self.process = subprocess.Popen(
                [
                    python,
                    "-X",
                    "faulthandler",
                    *(target or ["-m", "oubliette.incontainer"]),
                    command,
                    "--socket",
                    self.socket,
                    *key,
                    "--spool",
                    str(self.folder / "spool"),
                    "--ready-fd",
                    str(ready_out),
                    *options,
                ],
                cwd=ROOT,
                pass_fds=[ready_out, *(keep or [])],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env=env,
            )
        os.close(ready_out)
        with open(ready_in, "rb") as ready:
            self.ready = _readable(ready, TIMEOUT * 2) and ready.readline() == b"ready\n"
        self.epoch = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def dial(self) -> Link:
        return Link(self.socket)

    def control(self, epoch: int | None = None) -> Control:
        """A proven control link; by default of a newer server than the last one."""
        if epoch is None:
            self.epoch += 1
            epoch = self.epoch
        return Control(self.socket, self.key, epoch)

    def __enter__(self) -> HostProcess:
        if not self.ready:
            trouble = self.stderr()
            self.__exit__(AssertionError)
            raise AssertionError(trouble)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for link in [link for link in _open if link.path == self.socket]:
                link.close()
            self.process.terminate()
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            trouble = self.stderr()
            shutil.rmtree(self.folder)
        assert kind is not None or "Traceback" not in trouble, trouble


def _readable(file: object, timeout: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)  # type: ignore[arg-type]
        return bool(selector.select(timeout))


class Link:
    """A connection with deadlines."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _open.append(self)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(path)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def line(self) -> bytes:
        while b"\n" not in self.buffer:
            data = self.sock.recv(1 << 16)
            if not data:
                raise Closed(f"closed after {self.buffer!r}")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def rest(self) -> bytes:
        """Everything up to the peer's end."""
        pieces = [self.buffer]
        self.buffer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self.sock.recv(1 << 18):
                pieces.append(data)
        return b"".join(pieces)

    def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = self.sock.recv(1 << 18)
            if not data:
                raise Closed(f"closed {size - len(self.buffer)} bytes early")
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def is_silent(self) -> bool:
        """Nothing to read and not closed, now."""
        self.sock.setblocking(False)
        try:
            return not self.buffer and self.sock.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return not self.buffer
        finally:
            self.sock.settimeout(TIMEOUT)

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()
        if self in _open:
            _open.remove(self)


class Refusal(AssertionError):
    """The host answered a request with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Control(Link):
    """A proven control link."""

    def __init__(self, path: str, key: bytes, epoch: int) -> None:
        super().__init__(path)
        nonce = os.urandom(16).hex()
        self.send(wire.ControlHeader(nonce).line())
        first = json.loads(self.line())
        assert first["proof"] == wire.host_proof(key, nonce, first["challenge"])
        proof = wire.server_proof(key, first["challenge"], nonce)
        self.send(wire.encode_json({"proof": proof, "epoch": epoch, "versions": [1, 2]}))
        line = self.line()
        reason = wire.parse_error(line)
        if reason is not None:
            raise Refusal("refused", reason)
        self.hello = json.loads(line)
        self.events: list[dict] = []
        self._last = 0

    def ask(self, verb: str, **fields: object) -> dict:
        ident = self.request(verb, **fields)
        return self.answer(ident)

    def settle(self) -> dict:
        """Wait until what other links sent before is worked off; returns the host's figures.

        Each answer ends a turn of the host's loop: one accepts, one reads the header, one what was
        sent behind it, one notices that the peer is gone again, and one more is after all of these.
        """
        return [self.ask("stats") for _ in range(5)][-1]

    def fds(self) -> int:
        """How many descriptors the host holds, by its own word: only root may look into it."""
        return self.settle()["fds"]

    def request(self, verb: str, **fields: object) -> int:
        self._last += 1
        self.send(wire.encode_json({"id": self._last, "verb": verb, **fields}))
        return self._last

    def answer(self, ident: int | None) -> dict:
        while True:
            message = json.loads(self.line())
            if "event" in message:
                self.events.append(message)
            elif message["id"] == ident:
                if "error" in message:
                    raise Refusal(message["error"]["code"], message["error"]["message"])
                return message["ok"]

    def event(self, kind: str, **match: object) -> dict:
        """The next event of that kind, remembered or to come."""
        seen = 0
        deadline = time.monotonic() + TIMEOUT * 2
        while time.monotonic() < deadline:
            while seen < len(self.events):
                event = self.events[seen]
                if event["event"] == kind and all(event.get(k) == v for k, v in match.items()):
                    return self.events.pop(seen)
                seen += 1
            message = json.loads(self.line())
            assert "event" in message, message
            self.events.append(message)
        raise AssertionError(f"no {kind} event; had {self.events}")

    def ticket(self, purpose: str) -> str:
        return self.ask("ticket", purpose=purpose)["tickets"][0]

    def start(self, proc: str, *argv: str, **fields: object) -> int:
        request = {"argv": list(argv), "env": {"PATH": os.environ["PATH"]}, "cwd": "/tmp", **fields}
        return self.ask("start", proc=proc, **request)["pid"]

    def pty(self, proc: str, *argv: str, rows: int = 24, cols: int = 80, **fields: object) -> int:
        request = {"argv": list(argv), "env": {"PATH": os.environ["PATH"]}, "cwd": "/tmp", **fields}
        return self.ask("pty", proc=proc, rows=rows, cols=cols, **request)["pid"]

    def attach(self, proc: str, out: int = 0, err: int = 0) -> Attached:
        return Attached(self.path, wire.Attach(proc, out, err, self.ticket("attach")))

    def upstream(self, session: str, project: str = "p", depth: int = 0) -> Link:
        link = Link(self.path)
        link.send(wire.Upstream(session, project, depth, self.ticket("upstream")).line())
        return link

    def bare_upstream(self, session: str, project: str = "p", depth: int = 0) -> Link:
        """The server's half of a link for clients without a secret."""
        link = Link(self.path)
        link.send(wire.Upstream(session, project, depth, self.ticket("bare")).line())
        return link

    def expect(self, session: str, secret: str, project: str = "p", depth: int = 0) -> None:
        digest = hashlib.sha256(secret.encode()).hexdigest()
        self.ask("expect", session=session, project=project, digest=digest, depth=depth)


class Attached(Link):
    """An attached process's streams, collected."""

    def __init__(self, path: str, header: wire.Attach) -> None:
        super().__init__(path)
        self.out = b""
        self.err = b""
        self.out_from = header.out_offset
        self.err_from = header.err_offset
        self.stdin_ok = -1
        self.ended: set[int] = set()
        self.exit: dict | None = None
        self.gaps: list[dict] = []
        self._decoder = wire.FrameDecoder()
        self._frames: list[wire.Frame] = []
        self.send(header.line())

    def frame(self) -> wire.Frame:
        """The next frame, kept account of."""
        while not self._frames:
            data = self.sock.recv(1 << 18)
            if not data:
                raise Closed(f"closed; {self._decoder.pending} bytes pending")
            self._frames += self._decoder.feed(data)
        frame = self._frames.pop(0)
        if frame.kind == wire.STDOUT:
            assert frame.n == self.out_from + len(self.out), "stdout is not continuous"
            self.out += frame.payload
        elif frame.kind == wire.STDERR:
            assert frame.n == self.err_from + len(self.err), "stderr is not continuous"
            self.err += frame.payload
        elif frame.kind == wire.STDIN_OK:
            self.stdin_ok = frame.n
        elif frame.kind == wire.EOF:
            self.ended.add(frame.n)
        elif frame.kind == wire.GAP:
            gap = json.loads(frame.payload)
            self.gaps.append(gap)
            if gap["stream"] == 1:
                self.out_from, self.out = gap["next"], b""
            else:
                self.err_from, self.err = gap["next"], b""
        elif frame.kind == wire.EXIT:
            self.exit = json.loads(frame.payload)
        return frame

    def until(self, condition) -> None:
        while not condition():
            self.frame()

    def until_exit(self) -> dict:
        self.until(lambda: self.exit is not None)
        assert self.ended == {1, 2}
        assert self.sock.recv(1) == b""
        assert self.exit is not None
        return self.exit

    def stdin(self, seq: int, data: bytes) -> None:
        self.send(wire.encode_frame(wire.STDIN, seq, data))

    def stdin_eof(self, seq: int) -> None:
        self.send(wire.encode_frame(wire.EOF, seq))
