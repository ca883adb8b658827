"""`oubliette.pyz bridge [SOCKET]`: one link to the relay over standard input and output.

For engines that do not carry Unix sockets to the server's side: the server runs this by the
engine's exec, once for each link (`incontainer.bridges.exec_frames`). If input ends without an end
frame, the server is gone, and the bridge exits.
"""

from __future__ import annotations

import errno
import os
import select
import socket

from .. import wire
from ..io import linux
from . import exec_frames

SOCKET = "/mcp/relay.sock"
PIECE = 256 * 1024  # bytes moved at a time; also all that is buffered in one direction
GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


class ExecBridge:
    """Both directions of one link, until either side is gone or both have ended."""

    def __init__(self, source: int, target: int, relay: socket.socket) -> None:
        for fd in (source, target):
            os.set_blocking(fd, False)
        relay.setblocking(False)
        self._source = source
        self._target = target
        self._relay = relay
        self._unpacker = exec_frames.Unpacker()
        self._up = memoryview(b"")  # to the relay, not taken yet
        self._down = memoryview(b"")  # to the server, not taken yet
        self._up_over = False  # the end was sent to the relay, or it takes no more
        self._down_over = False  # the end was sent to the server
        self._relay_gone = False
        self._server_gone = False

    def run(self) -> None:
        """Move bytes; returns when both directions are over."""
        while not self._is_over():
            poll = select.poll()
            if not self._up:
                poll.register(self._source, select.POLLIN)
            # Without a mask only the closing of the other side is reported.
            poll.register(self._target, select.POLLOUT if self._down else 0)
            mask = select.POLLIN if not self._down and not self._down_over else 0
            mask |= select.POLLOUT if self._up else 0
            if mask or not self._down:
                poll.register(self._relay, mask)
            for fd, events in poll.poll():
                if fd == self._target:
                    self._target_ready(events)
                elif fd == self._source:
                    self._read_source()
                else:
                    self._relay_ready(events)

    def _is_over(self) -> bool:
        end_sent = self._down_over and not self._down
        return self._server_gone or (end_sent and (self._relay_gone or self._up_over))

    # From the server

    def _read_source(self) -> None:
        try:
            data = os.read(self._source, PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._server_gone = True
            return
        self._up = memoryview(self._unpacker.feed(data))
        self._write_relay()

    def _write_relay(self) -> None:
        if self._up_over:
            self._up = memoryview(b"")  # dropped, as a closed socket does
            return
        try:
            if self._up:
                self._up = self._up[self._relay.send(self._up) :]
            if self._unpacker.ended and not self._up:
                self._up_over = True
                self._relay.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            # Bytes sent before the relay closed are still read and passed on.
            self._up_over = True
            self._up = memoryview(b"")

    # From the relay

    def _relay_ready(self, events: int) -> None:
        if events & (select.POLLOUT | GONE):
            self._write_relay()
        if events & (select.POLLIN | GONE) and not self._down and not self._down_over:
            self._read_relay()
        if events & GONE and self._down_over:
            self._relay_gone = True

    def _read_relay(self) -> None:
        try:
            data = self._relay.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._down_over = not data
        self._down = memoryview(exec_frames.head(len(data)) + data)
        self._target_ready(select.POLLOUT)

    def _target_ready(self, events: int) -> None:
        if self._down and events & select.POLLOUT:
            try:
                self._down = self._down[os.write(self._target, self._down) :]
            except BlockingIOError:
                pass
            except OSError:
                self._server_gone = True
        elif events & GONE:
            self._server_gone = True


def main(arguments: list[str]) -> int:
    """Run the bridge until either side is gone; returns the exit code."""
    linux.hide_from_tracers()
    path = arguments[0] if arguments else SOCKET
    relay = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        relay.connect(path)
    except OSError as error:
        reason = error.strerror or errno.errorcode.get(error.errno or 0, "unknown")
        os.write(1, wire.error_line(f"{path}: {reason}"))
        return 1
    with relay:
        os.write(1, exec_frames.HELLO)
        ExecBridge(0, 1, relay).run()
    return 0
