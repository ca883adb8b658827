"""Server whose actors and connections can be made to fail while it runs.

`python -m oubliette.testing.fault_injection serve …` starts it.

It is the ordinary program, with two hooks that production code does not need. Every message that an
actor is about to handle passes the failpoint `<Class>.<Message>`, so that an actor of any kind can
be failed at any message. And each line on stdin replaces the active failpoints (see
`oubliette.failpoints`), or is `cut`, which resets every connection to a relay, or `fail CLASS`,
which fails every actor of that class, or `fails PART…`, by which actors with one of these in their
names fail, 50 times a second at most, as they start or handle a message, until `fails`, or `tasks`,
which logs the stack of every task and thread, or `census`, which collects garbage and answers with
the counts of live objects, or `actors`, which answers with the class and the parent of every live
actor, or `await <Class>.<Message>`, which an actor is soon to handle; it is answered by
`{"armed": line}` on stdout, an `await` when that message comes.
"""

from __future__ import annotations

import asyncio
import collections
import faulthandler
import functools
import gc
import heapq
import json
import os
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from oubliette import failpoints
from oubliette.kit import Actor, System
from oubliette.kit.pykka_actor import AsyncioActor
from oubliette.runtime.containers.base import RELAY_SOCKET
from oubliette.testing import protocol_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

ENCODE: Final = "OUBLIETTE_TEST_ENCODE"
"""Set to 1 in the environment of a server whose actors shall share nothing but their context."""
CUT: Final = "cut"
FAIL: Final = "fail "
FAILS: Final = "fails"
FAILS_EVERY: Final = 0.02  # seconds
TASKS: Final = "tasks"
CENSUS: Final = "census"
ACTORS: Final = "actors"
AWAIT: Final = "await "
AWAIT_SECONDS: Final = 60.0

_awaited: dict[str, threading.Event] = {}


class _Failing:
    """Actors that fail again and again."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        """Of their names."""
        self.failures = 0
        self._next = 0.0

    def hit(self, actor: Actor) -> None:
        if time.monotonic() >= self._next and any(part in actor.name for part in self.parts):
            self._next = time.monotonic() + FAILS_EVERY
            self.failures += 1
            raise failpoints.FailpointError(f"failpoint {type(actor).__name__}")


_failing = _Failing()


def seam() -> None:
    """Make every message pass a failpoint before it is handled."""
    handle: Any = vars(Actor)["_actor_receive"]

    def faulty(self: Any, envelope: Any) -> Any:
        self.envelope = envelope  # the sender must get the error
        name = f"{type(self).__name__}.{type(envelope.message).__name__}"
        failpoints.failpoint(name)
        _failing.hit(self)
        if name in _awaited:
            _awaited[name].set()
        return handle(self, envelope)

    set_up: Any = vars(AsyncioActor)["_actor_set_up"]

    async def faulty_start(self: Any) -> None:
        _failing.hit(self)
        await set_up(self)

    # Not by assignment on purpose: nothing else may know of it.
    setattr(Actor, "_actor_receive", faulty)  # noqa: B010
    setattr(Actor, "_actor_set_up", faulty_start)  # noqa: B010


def encode_messages() -> None:
    """Make every message arrive as it would on another machine: encoded and decoded."""
    import oubliette.server.startup

    encoding = functools.partial(System, roundtrip_messages=True)
    oubliette.server.startup.System = cast("Any", encoding)


def _arm() -> None:
    for line in map(str.strip, sys.stdin):
        more: dict[str, Any] = {}
        if line == CUT:
            cut()
        elif line == TASKS:
            tasks()
        elif line == CENSUS:
            more = census()
        elif line == ACTORS:
            more = {"actors": actors()}
        elif line.partition(" ")[0] == FAILS:
            _failing.parts = line.removeprefix(FAILS).split()
            more = {"failures": _failing.failures}
        elif line.startswith(FAIL):
            fail(line.removeprefix(FAIL))
        elif line.startswith(AWAIT):
            if not passed(line.removeprefix(AWAIT)):
                continue
        else:
            failpoints.activate(line)
        os.write(1, json.dumps({"armed": line, **more}).encode() + b"\n")


def everything() -> list[Any]:
    """Return all objects, including those that the server has frozen out of the collector."""
    gc.unfreeze()
    return gc.get_objects()


def cut() -> None:
    """Reset every connection to a relay, as a network would."""
    objects = everything()
    loop = _system(objects).bridge.loop
    for writer in [each for each in objects if isinstance(each, asyncio.StreamWriter)]:
        peer = writer.get_extra_info("peername")
        if isinstance(peer, str) and peer.endswith(RELAY_SOCKET):
            loop.call_soon_threadsafe(writer.transport.abort)


def tasks() -> None:
    """Log the stacks of every task and thread: for a test that waits in vain."""
    for each in everything():
        if isinstance(each, asyncio.Task):
            task = cast("asyncio.Task[Any]", each)
            frames = " < ".join(reversed(list(_awaiting(task.get_coro()))))
            os.write(2, f"task {task.get_name()}: {frames}\n".encode())
    faulthandler.dump_traceback(2)


def _awaiting(awaited: Any) -> Iterator[str]:
    """Iterate over a coroutine's position and its awaited ones, to the innermost."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            yield f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
        elif not hasattr(awaited, "cr_await"):
            yield repr(awaited)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def census() -> dict[str, Any]:
    """Return the counts of live objects after garbage collection: by class, and blocks.

    A block is an allocation of Python's allocator of any size up to 512 bytes; strings and bytes,
    which the collector does not track, are in blocks alone. Cancelled timers, which the loop keeps
    until their time has come or there are a hundred of them, are dropped first.
    """
    loop = _system(everything()).bridge.loop

    def count() -> dict[str, Any]:
        timers = loop._scheduled
        timers[:] = [each for each in timers if not each.cancelled()]
        heapq.heapify(timers)
        loop._timer_cancelled_count = 0
        garbage = gc.collect()
        alive = collections.Counter(
            f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
        )
        return {"garbage": garbage, "blocks": sys.getallocatedblocks(), "alive": alive}

    return _on(loop, count)


def actors() -> dict[str, tuple[str, str | None]]:
    """Return the live actors at one moment: name → class and the name of the parent.

    An actor at the top of its System has None for a parent.
    """
    system = _system(everything())

    def look() -> dict[str, tuple[str, str | None]]:
        living = [system.actor(name) for name in system.names]
        return {each.name: (type(each).__name__, _parent_of(each)) for each in living}

    return _on(system.bridge.loop, look)


def _parent_of(actor: Any) -> str | None:
    parent = actor._actor_parent
    return None if parent is None else parent.name


def _on(loop: asyncio.AbstractEventLoop, look: Callable[[], T]) -> T:
    """Return the result of `look`, called on the loop."""
    found: Future[T] = Future()

    def call() -> None:
        try:
            found.set_result(look())
        except Exception as error:
            found.set_exception(error)

    loop.call_soon_threadsafe(call)
    return found.result(AWAIT_SECONDS)


def _system(objects: list[Any]) -> Any:
    return next(each.system for each in objects if isinstance(each, Actor))


def fail(kind: str) -> None:
    """Fail every live actor whose class has this name, at its next message."""
    for actor in [each for each in everything() if isinstance(each, Actor)]:
        if type(actor).__name__ == kind and actor.ref.is_alive():
            broke: Any = actor._actor_post_broke  # pyright: ignore[reportPrivateUsage]
            actor.system.bridge.loop.call_soon_threadsafe(
                broke, failpoints.FailpointError(f"failpoint {kind}")
            )


def passed(name: str) -> bool:
    """Wait until an actor is about to handle such a message; False if none does in time."""
    event = _awaited.setdefault(name, threading.Event())
    try:
        return event.wait(AWAIT_SECONDS)
    finally:
        del _awaited[name]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command line with the hooks in place."""
    from oubliette.cli.main import run

    failpoints.activate(os.environ.get("OUBLIETTE_FAILPOINTS", ""))
    protocol_versions.become(os.environ)
    seam()
    if os.environ.get(ENCODE) == "1":
        encode_messages()
    threading.Thread(target=_arm, name="failpoints", daemon=True).start()
    run(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
