"""Whatever one dynamic child does, its siblings are answered and all above it lives."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oubliette.kit import (
    ActorDead,
    ActorError,
    ChildSpec,
    DynamicSupervisor,
    Message,
    Reply,
    Supervisor,
    System,
    WhichChildren,
    handles,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import Counter, Downs, Get, Watch, Watcher

LIMIT = 3
WITHIN = 5.0

STARTS = st.sampled_from(["well", "raise", "exit", "hang", "raise slowly", "cancelled", "stop"])
DEEDS = st.sampled_from(
    ["raise", "exit", "hang", "ask above", "cancelled", "stop", "task", "late", "add"]
)


class Ensure(Message, Reply[str]):
    name: str


class End(Message, Reply[bool]):
    name: str


class Deed(Message):
    """Do something bad."""

    what: str


class Question(Deed, Reply[None]):
    """Do it while an asker waits."""


class Late(Message):
    pass


class Bad(Counter):
    """Does what its plan says at each start, and what it is told."""

    def __init__(self, plan: list[str], made: list[int]) -> None:
        super().__init__()
        made.append(1)
        self.how = plan[(len(made) - 1) % len(plan)]
        if self.how == "unmade":
            raise ValueError("unmade")

    async def on_start(self) -> None:
        await self.do(self.how)

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        if self.how == "raise":
            raise OSError("in on_exit too")

    @handles(Deed)
    async def _deed(self, message: Deed) -> None:
        await self.do(message.what)

    @handles(Late)
    def _late(self, _: Late) -> None:
        raise ValueError("late")

    async def do(self, what: str) -> None:
        async def breaks() -> None:
            raise ValueError("in a task")

        def raises(error: BaseException) -> Message:
            raise error

        match what:
            case "raise":
                raise RuntimeError("bad")
            case "exit":
                raise SystemExit(1)
            case "cancelled":
                raise asyncio.CancelledError
            case "hang":
                await asyncio.Event().wait()
            case "deafly":
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                await asyncio.Event().wait()
            case "raise slowly":
                self.after(WITHIN * 2, Late())
            case "late":
                self.after(0.5, Late())
            case "ask above":
                await self.system.ref("root/rooms").ask(Ensure(name="bad"), timeout=1.0)
            case "task":
                self.pipe_to_self(breaks(), lambda _: Late(), raises)
            case "stop":
                self.stop()
            case _:
                self.n += 1


class Rooms(DynamicSupervisor):
    def __init__(self, plan: list[str]) -> None:
        super().__init__(max_restarts=LIMIT, within=WITHIN)
        self.bad = ChildSpec(name="bad", cls=Bad, args=(plan, []))

    @handles(Ensure)
    def _ensure(self, message: Ensure) -> str:
        if message.name == "bad":
            return self.ensure_child(self.bad)
        return self.ensure_child(ChildSpec(name=message.name, cls=Counter))

    @handles(End)
    async def _end(self, message: End) -> bool:
        return await self.end_child(message.name)


@contextlib.asynccontextmanager
async def tree(plan: list[str]) -> Any:
    """A root that is allowed no failure, a dynamic supervisor, and two of its children."""
    clock = VirtualClock()
    rooms = ChildSpec(name="rooms", cls=Rooms, args=(plan,))
    async with System("bad", clock, roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            root = system.spawn(Supervisor, [rooms], max_restarts=0, name="root")
            await root.ask(WhichChildren())
            asked = system.ref("root/rooms")
            for name in ("first", "last"):
                await asked.ask(Ensure(name=name))
            yield system, clock, root
    assert system.actor_count == 0


@given(
    plan=st.lists(STARTS | st.just("unmade"), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.sampled_from(["tell", "ask"]), DEEDS)
        | st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 1.0, 6.0, 60.0]))
        | st.tuples(st.sampled_from(["ensure", "end", "kill"]), st.none()),
        max_size=12,
    ),
)
@example(plan=["deafly"], steps=[("end", None), ("ensure", None), ("kill", None)])
def test_whatever_one_child_does_its_siblings_are_answered_and_the_root_lives(
    plan: list[str], steps: list[tuple[str, Any]]
) -> None:
    async def run() -> None:
        async with tree(plan) as (system, clock, root):
            above = [root.incarnation, system.ref("root/rooms").incarnation]
            siblings = [system.ref(f"root/rooms/{name}") for name in ("first", "last")]
            incarnations = [each.incarnation for each in siblings]
            rooms, bad = system.ref("root/rooms"), system.ref("root/rooms/bad")
            for do, what in [("ensure", None), *steps, ("wait", 60.0), ("ensure", None)]:
                with contextlib.suppress(ActorError, ValueError, RuntimeError):
                    match do:
                        case "tell":
                            bad.tell(Deed(what=what))
                        case "ask":
                            asked = asyncio.ensure_future(bad.ask(Question(what=what), timeout=2.0))
                            await clock.elapse(2.0)
                            await asked
                        case "wait":
                            await clock.elapse(what)
                        case "ensure":
                            await rooms.ask(Ensure(name="bad"))
                        case "end":
                            ended = asyncio.ensure_future(rooms.ask(End(name="bad")))
                            await clock.elapse(6.0)
                            await ended
                        case _:
                            await bad.kill()
                assert [await each.ask(Get()) for each in siblings] == [0, 0]
            assert [each.incarnation for each in siblings] == incarnations
            assert [root.incarnation, system.ref("root/rooms").incarnation] == above
            await bad.kill()

    with asyncio.Runner() as runner:
        runner.run(run())


@pytest.mark.anyio
async def test_a_child_that_fails_for_ever_is_given_up_and_its_asker_is_told_why() -> None:
    async with tree(["raise"]) as (system, clock, _):
        watcher = system.spawn(Watcher)
        rooms, bad = system.ref("root/rooms"), system.ref("root/rooms/bad")
        for _ in range(2):  # the second one is the next use
            assert await rooms.ask(Ensure(name="bad")) == "root/rooms/bad"
            await watcher.ask(Watch(name=bad.name))
            for _ in range(LIMIT + 1):
                with pytest.raises(ActorDead, match="no such actor, .* ended: RuntimeError") as met:
                    await bad.ask(Get())
                assert met.value.reason == "RuntimeError"
                await clock.elapse(clock.next_due() or 0.0)
            assert clock.next_due() is None, "it is given up"
            assert await rooms.ask(End(name="bad")) is False
        downs = await watcher.ask(Downs())
        assert [(down.name, down.incarnation > 0) for down in downs] == [(bad.name, False)] * 2


@pytest.mark.anyio
async def test_who_waits_for_a_child_that_fails_is_told_why() -> None:
    async with tree(["well"]) as (system, _, _):
        bad = system.ref(await system.ref("root/rooms").ask(Ensure(name="bad")))
        watcher = system.spawn(Watcher)
        await watcher.ask(Watch(name=bad.name))
        bad.tell(Deed(what="raise"))
        with pytest.raises(ActorDead, match="it ended before it answered: RuntimeError$"):
            await bad.ask(Get())
        assert [down.error for down in await watcher.ask(Downs())] == ["RuntimeError: bad"]


@pytest.mark.anyio
async def test_a_child_that_failed_long_ago_has_all_its_restarts() -> None:
    async with tree(["well"]) as (system, clock, _):
        bad = system.ref(await system.ref("root/rooms").ask(Ensure(name="bad")))
        for _ in range(3 * LIMIT):
            await clock.elapse(WITHIN)
            bad.tell(Deed(what="raise"))
            await clock.elapse(0.1)
            assert bad.is_alive()
        for _ in range(LIMIT):
            bad.tell(Deed(what="raise"))
            await clock.elapse(1.0)
        assert not bad.is_alive()
