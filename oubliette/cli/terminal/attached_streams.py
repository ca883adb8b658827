"""The streams of this process as those of a command in a container, and its terminal.

Input and output are carried by two threads, as either may have to wait for its other end. In raw
mode all keys go to the command: Ctrl-C is a byte of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.errors import from_wire
from oubliette.errors import Unavailable
from oubliette.incontainer import wire

if TYPE_CHECKING:
    from collections.abc import Generator

PIECE: Final = 64 * 1024  # bytes; of input, the largest frame that a server accepts
OUTPUTS: Final = {wire.STDOUT: 1, wire.STDERR: 2}
_ENDED: Final = 0
"""No signal has this number: the thread of the output has ended."""


def window() -> tuple[int, int]:
    """Rows and columns of the terminal, or what is usual where there is none."""
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.lines and size.columns:
                return min(size.lines, wire.MAX_WINDOW), min(size.columns, wire.MAX_WINDOW)
    return 24, 80


@contextlib.contextmanager
def raw_mode(fd: int) -> Generator[None]:
    """Pass all keys on as they are typed; the mode of before is restored in any case."""
    import termios
    import tty

    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSANOW)  # which keeps what was typed before
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


class AttachedStreams:
    """Carries the streams of a command until it has ended.

    Args:
        link: to the server; carries frames.
        first: bytes of it that were read already.
        terminal: whether the command has a terminal, whose size is kept that of ours.
    """

    def __init__(self, link: socket.socket, first: bytes, *, terminal: bool) -> None:
        self._link = link
        self._first = first
        self._terminal = terminal
        self._ended: dict[str, Any] | None = None
        self._failed: OSError | wire.WireError | None = None
        self._wake_in, self._wake_out = os.pipe()

    def run(self, stdin: int | None) -> int:
        """Return the command's exit code; 128 and the number for one that a signal has ended.

        Args:
            stdin: descriptor of its input; None: it has none.

        Raises:
            OublietteError: the server has ended it; contains why.
            Unavailable: the link has ended before the command.
            BrokenPipeError: the output has no reader any more.
            KeyboardInterrupt: by SIGINT, SIGTERM or SIGHUP.
        """
        output = threading.Thread(target=self._carry_output, name="output", daemon=True)
        raw = raw_mode(stdin) if self._terminal and stdin is not None else contextlib.nullcontext()
        try:
            with self._signals(), raw:
                output.start()
                self._carry_input(stdin)
                output.join()
        finally:  # also when interrupted: then it is the end of the command, and of the thread
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
        if isinstance(self._failed, BrokenPipeError):
            raise self._failed
        if self._ended is None:
            raise Unavailable(
                f"the link to the server has ended before the command: {self._failed or 'closed'}",
                hint="the command was ended with it",
            )
        if "error" in self._ended:
            raise from_wire(self._ended["error"])
        code, number = self._ended["code"], self._ended["signal"]
        return int(code) if number is None else 128 + int(number)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        os.set_blocking(self._wake_out, False)
        before = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, _wake_only),
            signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler),
            signal.SIGHUP: signal.signal(signal.SIGHUP, signal.default_int_handler),
        }
        wakes = signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakes)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _carry_input(self, stdin: int | None) -> None:
        watched = [self._wake_in] if stdin is None else [self._wake_in, stdin]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._wake_in in ready:
                woken = os.read(self._wake_in, PIECE)
                if signal.SIGWINCH in woken and self._terminal:
                    rows, columns = window()
                    self._send(wire.RESIZE, rows << 16 | columns)
                if _ENDED in woken:
                    return
            if stdin is not None and stdin in ready:
                data = os.read(stdin, PIECE)
                if not data:
                    watched = [self._wake_in]
                self._send(wire.STDIN if data else wire.EOF, payload=data)

    def _send(self, kind: int, n: int = 0, payload: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # the thread of the output learns why
            self._link.sendall(wire.encode_frame(kind, n, payload))

    def _carry_output(self) -> None:
        decoder = wire.FrameDecoder()
        try:
            data = self._first or self._link.recv(PIECE)
            while data and self._ended is None:
                for frame in decoder.feed(data):
                    if frame.kind in OUTPUTS:
                        _write(OUTPUTS[frame.kind], frame.payload)
                    elif frame.kind == wire.EXIT:
                        self._ended = json.loads(frame.payload)
                if self._ended is None:
                    data = self._link.recv(PIECE)
        except (OSError, wire.WireError) as error:
            self._failed = error
        finally:
            with contextlib.suppress(BlockingIOError):  # it is full of signals, and wakes anyway
                os.write(self._wake_out, bytes((_ENDED,)))


def _wake_only(number: int, frame: object) -> None:
    """Do nothing: Python requires a handler, and the wake-up descriptor has the number."""
    del number, frame


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another program has made it so
            select.select([], [fd], [])
