"""What works while things fail: groups of sessions, each group with a project, a caller and readers.

A group's program is connected to a node that has not its sessions, where there is a choice, and a
second connection, to yet another node, reads their logs by cursor.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import oubliette
from tests.callers import HttpCaller, ToolFailed
from tests.chaos.site import NODES
from tests.faults.history import BROKEN

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.chaos.balancer import Health
    from tests.chaos.site import Site

ANSWER_SECONDS: Final = 90.0
"""Time after which a request that was not answered, asked again and again, is wrong."""
TURN_SECONDS: Final = 120.0
FINISHED: Final = frozenset({"completed", "failed", "timed_out"})
FINAL: Final = (oubliette.SessionFailed, oubliette.TurnInterrupted, oubliette.Conflict)


@dataclass
class Told:
    """A turn that was acknowledged, and what was told of its end."""

    session: str
    turn: int
    key: str
    text: str | None = None
    failed: str | None = None


@dataclass
class Record:
    """All that the programs have seen."""

    told: list[Told] = field(default_factory=list)
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Request id → what the caller has answered, each time."""
    read: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Session → events, as a reader got them."""
    wrong: list[str] = field(default_factory=list)
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    """Errors after which a request was made again."""


class Group:
    """A project with its sessions, and the programs that use it."""

    def __init__(self, number: int, site: Site, record: Record, chance: random.Random) -> None:
        self.number = number
        self.caller_id = f"caller{number}"
        self.record = record
        self.site = site
        self.chance = chance
        self.home = NODES[number % len(NODES)]
        """Node of the project, as the database said at the latest look."""
        self.project: oubliette.Project
        self.sessions: list[str] = []
        """All that there were."""
        self.observer: HttpCaller | None = None
        self._ob: oubliette.Oubliette
        self._reading: oubliette.Oubliette
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._made = 0

    async def open(self, health: Health, key: str, *, observed: bool) -> None:
        """Connect the programs."""
        enter = self._stack.enter_async_context
        first = await health.balancer(lambda: self._elsewhere(1))
        second = await health.balancer(lambda: self._elsewhere(2))
        self._ob = await enter(
            oubliette.connect(first.url, key, caller_id=self.caller_id, on_exit="keep")
        )
        self._reading = await enter(oubliette.connect(second.url, key, on_exit="keep"))
        if observed:
            third = await health.balancer(lambda: self._elsewhere(self.number))
            self.observer = HttpCaller(third.url, key, caller_id=self.caller_id)
            await enter(self.observer)
            self._tasks.append(asyncio.create_task(self._observe(self.observer)))
        await self.new_project()

    async def aclose(self) -> None:
        """Disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def _elsewhere(self, turn: int) -> Sequence[str]:
        others = [name for name in NODES if name != self.home]
        place = turn % len(others)
        return [*others[place:], *others[:place], self.home]

    async def new_project(self) -> None:
        """Work in a new project from now on."""
        self._made += 1
        name = f"group{self.number}-{self._made}"
        self.project = await self.insist(lambda: self._ob.project(name))

    # ------------------------------------------------------------ requests
    async def insist(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """Make a request until it is answered.

        Raises:
            OublietteError: it was refused for good, or not answered in time.
        """
        ends = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return await request()
            except FINAL:
                raise
            except oubliette.OublietteError as error:
                self.record.errors[f"{type(error).__name__}: {_kind(error.message)}"] += 1
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(0.2)

    async def approve(self, what: str, call: oubliette.Call) -> dict[str, Any]:
        """Approve."""
        await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        answer = {"approved": what, "session": call.session_id}
        self.record.runs.setdefault(call.request_id, []).append(answer)
        return answer

    async def spawn(self, key: str, prompt: str) -> oubliette.Session:
        """Start a session, and read its log from then on."""
        session = await self.insist(
            lambda: self.project.spawn(prompt, tools=[self.approve], idempotency_key=key)
        )
        self.sessions.append(session.id)
        self.record.read[session.id] = []
        self._tasks.append(asyncio.create_task(self._read(session.id)))
        return session

    # ------------------------------------------------------------ readers
    async def _read(self, session: str) -> None:
        events = self.record.read[session]
        while True:
            try:
                page = await self._reading.call(
                    "session_events",
                    timeout=40,
                    session_id=session,
                    since_index=events[-1]["index"] if events else -1,
                    wait_seconds=20,
                    max_events=500,
                )
            except oubliette.OublietteError as error:
                self.record.errors[f"read: {type(error).__name__}: {_kind(error.message)}"] += 1
                await asyncio.sleep(0.2)
                continue
            events += page["events"]

    async def _observe(self, observer: HttpCaller) -> None:
        while True:
            try:
                await observer.listen(after=observer.next or 0, observe=True)
                await observer.listener_ended(100_000)
            except (*BROKEN, ToolFailed) as error:
                self.record.errors[f"observer: {type(error).__name__}"] += 1
            await asyncio.sleep(0.2)


class Slot:
    """One session at work, and the next one when that has failed."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.name = f"g{group.number}s{number}"
        self.session: oubliette.Session | None = None
        self.last_begun = 0.0
        """When the latest turn began that has ended well."""
        self.busy = False
        self.doing = ""
        self._turns = 0

    async def work(self, going: asyncio.Event, done: Callable[[], None]) -> None:
        """Work while `going` is set."""
        while True:
            await going.wait()
            self.busy = True
            try:
                await self._turn()
            except oubliette.OublietteError as error:
                self.group.record.wrong.append(f"{self.name}: {error!r}")
            except TimeoutError:
                at = self.session.id if self.session else "no session"
                self.group.record.wrong.append(f"{self.name}: {at}: no end of turn {self._turns}")
                self.session = None
            finally:
                self.busy = False
                done()

    async def _turn(self) -> None:
        self._turns += 1
        key = f"{self.name}t{self._turns}"
        began = time.monotonic()
        prompt = self._prompt(key)
        group = self.group
        session = self.session
        self.doing = f"sends {key}"
        try:
            if session is None:
                session = self.session = await group.spawn(key, prompt)
                turn = session.turn
            else:
                turn = await group.insist(lambda: session.send(prompt, idempotency_key=key))
        except FINAL as error:  # it had failed before
            self.session = None
            group.record.errors[f"send: {type(error).__name__}: {_kind(error.message)}"] += 1
            return
        told = Told(session.id, turn.number, key)
        group.record.told.append(told)
        self.doing = f"awaits turn {turn.number}, {key}"
        try:
            async with asyncio.timeout(TURN_SECONDS):
                result = await group.insist(turn.result)
        except FINAL as error:
            told.failed = str(error)
            self.session = None
        else:
            told.text = result.text
            self.last_begun = began

    def _prompt(self, key: str) -> str:
        work = self.group.chance.choice(
            [
                "emit 10 40\nsleep 0.3",
                f'call approve {{"what": "{key}"}}',
                f'sleep 0.2\ncall approve {{"what": "{key}"}}\nemit 3 40',
                "sleep 1",
            ]
        )
        return f"exec echo {key} >> runs.txt\n{work}\nsay {key}"


def _kind(message: str) -> str:
    """A message without the names in it, to count by."""
    words = [word if word.isalpha() else "…" for word in message.split()]
    return " ".join(words)[:90]
