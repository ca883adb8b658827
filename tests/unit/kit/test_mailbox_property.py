"""Whatever senders do, a mailbox keeps its word; each message is accounted for."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    DeadlockError,
    Deferred,
    MailboxFull,
    Message,
    Reply,
    System,
    handles,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import inside

BOUND = 2
SENDERS = 3


class Item(Message, Reply[int]):
    """One thing of one sender; an ask of it is answered with its number."""

    sender: int
    """Whose."""

    number: int
    """Which; rises with each message of that sender."""

    how: str = "answer"
    """`answer`, `fail`, `defer`, or `circle` (ask oneself)."""


class Slow(Actor):
    """Handles a message for each permit, and writes down what it did."""

    mailbox_size: ClassVar[int] = BOUND

    def __init__(self, permits: asyncio.Semaphore, diary: list[tuple[str, int, int]]) -> None:
        self.permits = permits
        self.diary = diary
        self.deferred: list[Deferred] = []

    @handles(Item)
    async def _item(self, item: Item) -> int:
        self.diary.append(("begun", item.sender, item.number))
        await self.permits.acquire()
        self.diary.append(("handled", item.sender, item.number))
        if item.how == "fail" and self.envelope.reply_to is not None:
            raise KeyError(item.number)
        if item.how == "defer":
            self.deferred.append(self.defer())
        if item.how == "circle":
            await self.ref.ask(Item(sender=-1, number=-1))
        return item.number

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        self.diary.append(("exit", -1, -1))


class MailboxMachine(RuleBasedStateMachine):
    """Three senders, one slow actor, a clock that moves only on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.diary: list[tuple[str, int, int]] = []
        self.numbers = [0] * SENDERS
        self.tasks: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self.hows: dict[tuple[int, int], str] = {}
        self.told: set[tuple[int, int]] = set()
        self.refused: set[tuple[int, int]] = set()
        self.lives = 0

    def run(self, coroutine: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(10):
                result = await coroutine
                await self.settle()
                return result

        return self.runner.run(bounded())

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @initialize()
    def begin(self) -> None:
        async def begin() -> None:
            self.system = await System("m", self.clock, watchdog=None).__aenter__()
            self.ref = self.system.ref("slow")
            self.spawn()

        self.run(begin())

    def spawn(self) -> None:
        self.lives += 1
        self.permits = asyncio.Semaphore(0)
        ref = self.system.spawn(Slow, self.permits, self.diary, name="slow")
        self.actor = inside(ref)

    def item(self, sender: int, how: str = "answer") -> tuple[tuple[int, int], Item]:
        self.numbers[sender] += 1
        number = self.numbers[sender]
        self.hows[sender, number] = how
        return (sender, number), Item(sender=sender, number=number, how=how)

    # ------------------------------------------------------------ rules
    @rule(sender=st.integers(0, SENDERS - 1))
    def tell(self, sender: int) -> None:
        key, item = self.item(sender)

        async def step() -> None:
            box = self.actor.actor_inbox
            full = not box.closed and (len(box.items) >= BOUND or bool(box.overflow))
            try:
                self.ref.tell(item)
                assert not full, "a tell went into a full mailbox"
                self.told.add(key)
            except MailboxFull:
                assert full, "a tell was refused by a mailbox with room"
                self.refused.add(key)

        self.run(step())

    @rule(
        sender=st.integers(0, SENDERS - 1),
        how=st.sampled_from(["answer", "answer", "fail", "defer", "circle"]),
        timeout=st.sampled_from([1.0, 3.0, 30.0]),
    )
    def ask(self, sender: int, how: str, timeout: float) -> None:
        key, item = self.item(sender, how)

        async def step() -> None:
            self.tasks[key] = asyncio.create_task(self.ref.ask(item, timeout))

        self.run(step())

    @rule(sender=st.integers(0, SENDERS - 1), timeout=st.sampled_from([None, 2.0]))
    def send(self, sender: int, timeout: float | None) -> None:
        key, item = self.item(sender, "send")

        async def step() -> None:
            self.tasks[key] = asyncio.create_task(self.ref.send(item, timeout))

        self.run(step())

    @rule(
        sender=st.integers(0, SENDERS - 1),
        kinds=st.lists(st.sampled_from(["tell", "ask", "send"]), min_size=2, max_size=8),
    )
    def a_sender_is_busy(self, sender: int, kinds: list[str]) -> None:
        for kind in kinds:
            if kind == "tell":
                self.tell(sender)
            elif kind == "ask":
                self.ask(sender, "answer", 30.0)
            else:
                self.send(sender, None)

    @rule(permits=st.integers(1, 6))
    def the_actor_gets_on(self, permits: int) -> None:
        async def step() -> None:
            for _ in range(permits):
                self.permits.release()

        self.run(step())

    @precondition(lambda self: self.actor.deferred)
    @rule()
    def a_deferred_answer_is_given(self) -> None:
        async def step() -> None:
            self.actor.deferred.pop(0).set(-7)

        self.run(step())

    @precondition(lambda self: any(not task.done() for task in self.tasks.values()))
    @rule(data=st.data())
    def a_waiting_sender_is_cancelled(self, data: Any) -> None:
        waiting = sorted(key for key, task in self.tasks.items() if not task.done())
        key = data.draw(st.sampled_from(waiting))

        async def step() -> None:
            self.tasks[key].cancel()

        self.run(step())

    @precondition(lambda self: any(map(self.waits_for_room, self.tasks)))
    @rule()
    def whoever_waits_for_room_first_gives_up(self) -> None:
        async def step() -> None:
            self.tasks[next(filter(self.waits_for_room, self.tasks))].cancel()

        self.run(step())

    def waits_for_room(self, key: tuple[int, int]) -> bool:
        return self.hows[key] == "send" and not self.tasks[key].done()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.clock.elapse(seconds))

    @rule(kill=st.booleans())
    def the_actor_ends(self, kill: bool) -> None:
        async def step() -> None:
            if kill:
                await self.ref.kill()
            else:
                stopping = asyncio.create_task(self.ref.stop(timeout=1000.0))
                await self.settle()
                for _ in range(200):
                    self.permits.release()
                await stopping
            self.spawn()

        self.run(step())

    # ------------------------------------------------------------ invariants
    @invariant()
    def the_mailbox_is_never_above_its_bound(self) -> None:
        if hasattr(self, "system"):
            assert len(self.actor.actor_inbox.items) <= BOUND

    @invariant()
    def nobody_waits_for_room_while_there_is_some(self) -> None:
        if hasattr(self, "system"):
            box = self.actor.actor_inbox
            waiting = [e for e in box.overflow or () if not (e.receipt or e.reply_to).done]
            assert not waiting or len(box.items) == BOUND

    @invariant()
    def messages_of_one_sender_are_begun_in_their_order(self) -> None:
        for sender in range(SENDERS):
            begun = [number for what, who, number in self.diary if (what, who) == ("begun", sender)]
            assert begun == sorted(set(begun))

    @invariant()
    def nothing_is_handled_between_on_exit_and_the_next_life(self) -> None:
        exits = [i for i, (what, _, _) in enumerate(self.diary) if what == "exit"]
        assert len(exits) <= self.lives
        for at in exits:
            # What was begun before and not handled is not handled after.
            before = {(w, n) for what, w, n in self.diary[:at] if what == "begun"}
            after = {(w, n) for what, w, n in self.diary[at:] if what == "handled"}
            assert not before & after

    @invariant()
    def what_has_ended_has_ended_as_promised(self) -> None:
        handled = {(who, number) for what, who, number in self.diary if what == "handled"}
        for key, task in self.tasks.items():
            if task.done():
                self.check(key, task, handled)

    def check(self, key: tuple[int, int], task: asyncio.Task[Any], handled: Any) -> None:
        how = self.hows[key]
        if task.cancelled():
            begun = {(who, number) for what, who, number in self.diary if what == "begun"}
            assert how != "send" or key not in begun, "what was given up was sent all the same"
            return
        error = task.exception()
        if error is None:
            if how == "answer":
                assert task.result() == key[1]
                assert key in handled
            elif how == "defer":
                assert task.result() == -7
            else:
                assert how == "send"
        elif how == "send":
            assert isinstance(error, (ActorDead, AskTimeout))
            assert key not in handled
        elif isinstance(error, KeyError):
            assert how == "fail"
            assert key in handled
        elif isinstance(error, DeadlockError):
            assert how == "circle"
        else:
            assert isinstance(error, (ActorDead, AskTimeout))

    def teardown(self) -> None:
        async def end() -> None:
            for _ in range(200):
                self.permits.release()
            await self.system.stop()
            await self.settle()
            stuck = [key for key, task in self.tasks.items() if not task.done()]
            assert not stuck, f"never ended: {stuck}"
            assert self.clock.pending == 0
            begun = {(who, number) for what, who, number in self.diary if what == "begun"}
            buried = {
                (letter.message.sender, letter.message.number)
                for letter in self.system.dead_letters
                if isinstance(letter.message, Item)
            }
            assert self.told <= begun | buried, "a tell was lost without a word"
            sent = {
                key
                for key, task in self.tasks.items()
                if self.hows[key] == "send" and not task.cancelled() and not task.exception()
            }
            assert sent <= begun | buried, "a send said that it was taken in, and was not"
            assert not begun & buried
            assert not self.refused & (begun | buried)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

        try:
            if hasattr(self, "system"):
                self.run(end())
            self.what_has_ended_has_ended_as_promised()
        finally:
            for task in self.tasks.values():
                if task.done() and not task.cancelled():
                    task.exception()
            self.runner.close()


MailboxMachine.TestCase.settings = settings(stateful_step_count=30)
TestMailbox = MailboxMachine.TestCase
