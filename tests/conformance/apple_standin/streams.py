"""The streams of a process that an engine runs: its frames to our output, our input to it."""

import os
import signal
import struct
import sys
import threading


def demultiplex(read):
    """(stream, data) for each frame; `read(n)` gives exactly n bytes, or fewer at the end."""
    while True:
        head = read(8)
        if len(head) < 8:
            return
        stream, size = struct.unpack(">BxxxL", head)
        yield stream, read(size)


def exactly(link, begun):
    """A `read(n)` on a socket of which `begun` was read before."""
    kept = bytearray(begun)

    def read(count):
        while len(kept) < count:
            try:
                piece = link.recv(65536)
            except OSError:
                piece = b""
            if not piece:
                break
            kept.extend(piece)
        data = bytes(kept[:count])
        del kept[:count]
        return data

    return read


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def pump(link, begun, *, stdin, forward):
    """Carry the streams until the process closes its own. `forward(signal)` passes signals on."""
    ends = []

    def on_signal(number, _frame):
        if number in (signal.SIGTERM, signal.SIGINT):
            ends.append(number)
        if len(ends) >= 3:
            sys.stderr.write("Error: interrupted\n")
            sys.stderr.flush()
            os._exit(1)
        threading.Thread(target=forward, args=(number,), daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, on_signal)
    if stdin:
        threading.Thread(target=_feed, args=(link,), daemon=True).start()
    for stream, data in demultiplex(exactly(link, begun)):
        write_all(2 if stream == 2 else 1, data)


def _feed(link):
    try:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            link.sendall(data)
        link.shutdown(1)
    except OSError:
        pass  # the process has ended
