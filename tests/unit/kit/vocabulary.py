"""Messages and actors that the tests of the kit share."""

from __future__ import annotations

import asyncio
from typing import Any

from oubliette.kit import Actor, Down, Message, Ref, Reply, handles


class Get(Message, Reply[int]):
    """Answered with a number."""


class Add(Message):
    """Add to the number."""

    n: int = 1
    """How much."""


class Boom(Message):
    """Raise an error."""

    text: str = "boom"
    """What it says."""


class Hold(Message, Reply[str]):
    """Wait in the handler until the test lets it go."""


class Odd(Message):
    """No actor handles this."""


class Watch(Message, Reply[None]):
    """Watch the actor of this name."""

    name: str
    """Whom."""


class Unwatch(Message, Reply[None]):
    """Watch it no longer."""

    name: str
    """Whom."""


class Downs(Message, Reply[list[Down]]):
    """Answered with the notices so far."""


class Counter(Actor):
    """Keeps a number, fails on demand, notes its hooks in `notes`."""

    def __init__(self, start: int = 0, notes: list[Any] | None = None) -> None:
        self.n = start
        self.notes = notes if notes is not None else []

    async def on_start(self) -> None:
        self.notes.append(("start", self.name))

    @handles(Get)
    def _get(self, _: Get) -> int:
        return self.n

    @handles(Add)
    async def _add(self, message: Add) -> None:
        self.n += message.n

    @handles(Boom)
    def _boom(self, message: Boom) -> None:
        raise ValueError(message.text)

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        self.notes.append(("exit", self.name, reason, error and type(error)))


class Holder(Counter):
    """Waits in its handler until `let_go` is set; says in `held` that it is there."""

    def __init__(self, notes: list[Any] | None = None) -> None:
        super().__init__(0, notes)
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()

    @handles(Hold)
    async def _hold(self, _: Hold) -> str:
        self.held.set()
        await self.let_go.wait()
        return "let go"


class Watcher(Actor):
    """Collects the notices of those it watches; `came` is set at each."""

    def __init__(self) -> None:
        self.downs: list[Down] = []
        self.came = asyncio.Event()

    @handles(Watch)
    def _watch(self, message: Watch) -> None:
        self.watch(self.system.ref(message.name))

    @handles(Unwatch)
    def _unwatch(self, message: Unwatch) -> None:
        self.unwatch(self.system.ref(message.name))

    @handles(Down)
    def _down(self, down: Down) -> None:
        self.downs.append(down)
        self.came.set()

    @handles(Downs)
    def _downs(self, _: Downs) -> list[Down]:
        return self.downs


def inside(ref: Ref) -> Any:
    """The actor itself, for tests that look inside."""
    actor = ref.resolve()
    assert actor is not None
    return actor


async def until_gone(ref: Ref) -> None:
    """Return when the actor of `ref` has ended; the test bounds the time."""
    from oubliette.kit.replies import LoopReply

    actor = ref.resolve()
    if actor is not None:
        reply = LoopReply()
        actor.actor_inbox.watch(reply)
        await reply.future
