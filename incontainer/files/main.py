"""Files program: reads requests from stdin and answers each on stdout, one after the other.

The guest starts it as the agents' user, so it may do no more than they, and it ends when it has had
nothing to do for a while. An operation that takes too long ends it with SIGALRM.
"""

from __future__ import annotations

import os
import select
import signal

from . import reading, writing
from .frames import BadFrame, FileFrames, encode, name_bytes
from .places import FileProblem, find, problem_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .places import Place

    Fields = dict[str, Any]
    Answer = tuple[Fields, bytes]

IDLE_SECONDS = 60.0  # without a request; the server ends it earlier, unless it is gone
PIECE = 256 * 1024  # bytes read at a time


def main() -> int:
    """Answer requests until stdin ends or nothing has come for a while; returns the exit code."""
    frames = FileFrames()
    while True:
        if not select.select([0], [], [], IDLE_SECONDS)[0]:
            if frames.pending == 0:
                return 0
            continue
        piece = os.read(0, PIECE)
        if not piece:
            return 0
        try:
            requests = frames.feed(piece)
        except BadFrame:
            return 3
        for fields, data in requests:
            _send(_answer(fields, data))


def _answer(fields: Fields, data: bytes) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, float(fields["seconds"]))
    try:
        answer, content = _OPERATIONS[fields["verb"]](fields, data)
    except FileProblem as problem:
        answer, content = {"problem": problem.reason, "detail": problem.detail}, b""
    except OSError as error:
        problem = problem_of(error)
        answer, content = {"problem": problem.reason, "detail": problem.detail}, b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return encode(answer, content)


def _send(answer: bytes) -> None:
    left = memoryview(answer)
    while left:
        left = left[os.write(1, left) :]


def _at(
    fields: Fields, act: Callable[[Place], Answer], *, follow: bool = True, make: bool = False
) -> Answer:
    """Find the path of a request, and do something there."""
    root, path = name_bytes(fields["root"]), name_bytes(fields["path"])
    place = find(root, path, follow=follow, make=make)
    try:
        return act(place)
    finally:
        place.close()


def _list(fields: Fields, _data: bytes) -> Answer:
    after, limit = name_bytes(fields["after"]), fields["limit"]
    return _at(fields, lambda place: (reading.list_folder(place, after, limit), b""))


def _read(fields: Fields, _data: bytes) -> Answer:
    offset, length = fields["offset"], fields["length"]
    return _at(fields, lambda place: reading.read_range(place, offset, length))


def _write(fields: Fields, data: bytes) -> Answer:
    if fields["folder"]:
        return _at(fields, lambda place: (writing.make_folder(place), b""), make=True)
    contents = writing.Contents(
        data,
        expected=fields["expected"],
        executable=fields["executable"],
        upload=fields["upload"],
        offset=fields["offset"],
        final=fields["final"],
    )
    return _at(fields, lambda place: (writing.write_file(place, contents), b""), make=True)


def _delete(fields: Fields, _data: bytes) -> Answer:
    recursive = fields["recursive"]
    return _at(
        fields, lambda place: (writing.delete(place, recursive=recursive), b""), follow=False
    )


_OPERATIONS = {"list": _list, "read": _read, "write": _write, "delete": _delete}
