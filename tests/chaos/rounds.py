"""Rounds of a chaos run: in each one thing fails, all settles, and what came of it is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import oubliette
from oubliette.api.control import ControlClient
from oubliette.runtime.store.postgres.cluster import cluster_view
from tests.callers import HttpCaller, ToolFailed
from tests.chaos import checks
from tests.chaos.balancer import Health
from tests.chaos.site import LOST_SECONDS, NODES, START, Site
from tests.chaos.trees import Trees
from tests.chaos.work import Group, Record, Slot
from tests.consent import consent_in
from tests.faults.history import BROKEN
from tests.http_client import HttpError

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Container

SETTLE_SECONDS: Final = 180.0
CATCH_UP_SECONDS: Final = 60.0
KNOWN_SECONDS: Final = 2.0
"""Time in which an asker knows that a node has died; for a machine, after it was given up.

Beside what a node that is well needs for an answer at that time: others may use the machine too.
"""
PAUSE_SECONDS: Final = 60.0
AWAY_SECONDS: Final = 5.0
GROUPS: Final = 6


@dataclass
class Round:
    """What came of a round."""

    number: int
    kind: str
    node: str = "-"
    settled: float | None = None
    askers: list[float] = field(default_factory=list)
    sessions: int = 0
    lost: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """Sessions at work on a site, over any number of rounds."""

    def __init__(self, site: Site, chance: random.Random, *, sessions: int = 30) -> None:
        self.site = site
        self.chance = chance
        self.record = Record()
        self.groups = [Group(number, site, self.record, chance) for number in range(GROUPS)]
        self.slots = [
            Slot(self.groups[number % GROUPS], number // GROUPS) for number in range(sessions)
        ]
        self.trees = Trees(site, self.groups[0].insist)
        self.known: dict[str, int] = {}
        """Session → index up to which its ends were looked at."""
        self.probes: dict[str, str] = {}
        """Node → a project that has its home there."""
        self.key = ""
        self._going = asyncio.Event()
        self._turned = asyncio.Event()
        self._events = 0
        self._lost: set[str] = set()
        """Sessions that the fault of this round ends."""
        self._told: set[str] = set()
        """What was found to be wrong in earlier rounds: the logs still have it."""
        self._because = ""
        """The reason that it gives them."""
        self._failed_at = 0.0
        self._working: list[asyncio.Task[None]] = []
        self._health = Health(site)
        self._stack = contextlib.AsyncExitStack()

    # ------------------------------------------------------------ start and end
    async def __aenter__(self) -> Campaign:
        enter = self._stack.enter_async_context
        await asyncio.gather(*(self.site.ready(name) for name in NODES))
        self.key = await asyncio.to_thread(self.site.key)
        await enter(self._health)
        for name in NODES:
            self.probes[name] = await self._probe(name)
        for group in self.groups:
            await group.open(self._health, self.key, observed=group.number < len(NODES))
            self._stack.push_async_callback(group.aclose)
            here = [slot for slot in self.slots if slot.group is group]
            self._going.clear()
            self._working += [
                asyncio.create_task(slot.work(self._going, self._turned.set)) for slot in here
            ]
            self._going.set()
            await self._all_turned(here, 0.0)
            await asyncio.sleep(2.5)  # the next project's home depends on the load reported by then
            await self._look_up_homes()
        await self.trees.open(self._health, self.key)
        self._stack.push_async_callback(self.trees.aclose)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._stack.aclose()

    async def _probe(self, node: str) -> str:
        """A project on this node and no other."""

        def make() -> dict[str, Any]:
            with ControlClient(self.site.home("node1")) as client:
                return client.call(
                    "project_create",
                    {"name": f"probe-{node}", "placement": {"labels": {"name": node}}},
                )

        return str((await asyncio.to_thread(make))["id"])

    async def _look_up_homes(self) -> None:
        rows = await asyncio.to_thread(self.site.query, "SELECT project_id, node FROM placements")
        homes = dict(rows)
        for group in self.groups:
            if hasattr(group, "project"):
                group.home = homes.get(group.project.id, group.home)

    # ------------------------------------------------------------ a round
    async def run(self, number: int, kind: str) -> Round:
        """Have one thing fail."""
        await self._look_up_homes()
        made = Round(number, kind)
        made.wrong += await self.trees.plant({each.project.id: each.home for each in self.groups})
        self._going.set()
        await asyncio.sleep(self.chance.uniform(0.5, 2.0))
        try:
            faults: dict[str, Callable[[Round], AsyncIterator[None]]] = {
                "kill node": self._kill_node,
                "kill machine": self._kill_machine,
                "pause node": self._pause_node,
                "stop database": self._stop_database,
                "drain node": self._drain_node,
            }
            faulty = contextlib.asynccontextmanager(faults[kind])
            async with faulty(made):
                await self._all_turned(self.slots, time.monotonic())
                made.settled = time.monotonic() - self._failed_at
            await asyncio.gather(*(self.site.ready(name) for name in NODES))
        except (AssertionError, TimeoutError) as error:
            made.wrong.append(f"not settled: {error!r}")
            made.wrong += await asyncio.to_thread(self._unsettled)
        await self._look(made)
        made.wrong += await self.trees.look()
        self.known |= await self.trees.ends()
        await self._balance()
        return made

    def _unsettled(self) -> list[str]:
        """What those do that are not done, and the last that the log has of them."""
        found: list[str] = []
        for slot in self.slots:
            if not slot.busy:
                continue
            session = slot.session.id if slot.session else ""
            rows = self.site.query(
                "SELECT idx, ts, type, data FROM events WHERE session_id = %s"
                " ORDER BY idx DESC LIMIT 3",
                session,
            )
            last = [(at, round(ts, 1), kind, bytes(data)[:150]) for at, ts, kind, data in rows]
            found.append(f"{slot.name} at {slot.group.home}: {session} {slot.doing} {last}")
        return found

    async def _all_turned(self, slots: list[Slot], since: float) -> None:
        """Wait until each of them has ended a turn well that began after this moment."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while any(slot.last_begun <= since for slot in slots):
                self._turned.clear()
                await self._turned.wait()

    async def _look(self, made: Round) -> None:
        """Let all come to rest, and look."""
        self._going.clear()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while any(slot.busy for slot in self.slots):
                    self._turned.clear()
                    await self._turned.wait()
        except TimeoutError:
            made.wrong.append("turns do not end")
            made.wrong += await asyncio.to_thread(self._unsettled)
        ends = time.monotonic() + CATCH_UP_SECONDS
        while True:
            logs = await asyncio.to_thread(checks.read_logs, self.site)
            wrong = [
                *checks.check_readers(self.record, logs),
                *checks.check_observers(self.groups, logs),
                *checks.check_logs(self.site, logs),
            ]
            if not wrong or time.monotonic() > ends:
                break
            await asyncio.sleep(0.5)  # readers are behind for a moment
        made.wrong += wrong
        made.wrong += checks.check_told(self.record, logs, self._lost, self._because)
        made.wrong += checks.check_calls(self.record, logs)
        made.wrong += checks.check_failures(self.site, logs, self._lost, self._because, self.known)
        made.wrong += checks.check_runs(self.site)
        made.wrong += self.record.wrong
        self.record.wrong.clear()
        made.wrong = [each for each in dict.fromkeys(made.wrong) if each not in self._told]
        self._told.update(made.wrong)
        made.lost = len(self._lost)
        self._lost, self._because = set(), ""
        events = sum(map(len, logs.values()))
        made.events, self._events = events - self._events, events
        made.sessions = len(self.site.query("SELECT id FROM sessions WHERE live = 1"))

    async def _balance(self) -> None:
        """Give a node without sessions some, by a new project for a group of the fullest one."""
        await self._look_up_homes()
        homes = [group.home for group in self.groups]
        if all(name in homes for name in NODES):
            return
        fullest = max(NODES, key=homes.count)
        group = next(each for each in self.groups if each.home == fullest)
        for slot in self.slots:
            if slot.group is group and slot.session is not None:
                session, slot.session = slot.session, None
                await group.insist(session.end)
                page = await group.insist(lambda at=session: at.get())
                self.known[session.id] = page.last_index
        await asyncio.sleep(2.5)  # as at the start
        await group.new_project()

    # ------------------------------------------------------------ askers
    @contextlib.asynccontextmanager
    async def _askers(self, node: str, made: Round, allowed: float) -> AsyncIterator[None]:
        """A request waits at each other node for this one; how long until each knows its end."""
        asking: list[asyncio.Task[float]] = []
        slowest = 0.0

        async def look(other: str) -> None:
            nonlocal slowest
            while True:
                began = time.monotonic()
                try:
                    await self.site.answers(other)
                finally:
                    slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.5)

        async def ask(other: str) -> float:
            caller = HttpCaller(self.site.url(other), self.key)
            try:
                answer = await caller.call(
                    "container_exec",
                    project_id=self.probes[node],
                    command="sleep 200",
                    timeout_seconds=200,
                )
                made.wrong.append(f"the asker at {other} was answered: {answer}")
            except ToolFailed:
                pass
            except (*BROKEN, HttpError) as error:
                made.wrong.append(f"the asker at {other}: {error!r}")
            finally:
                await caller.__aexit__()
            return time.monotonic()

        for other in NODES:
            if other != node:
                asking.append(asyncio.create_task(ask(other)))
        await asyncio.wait(asking, timeout=3)
        if any(task.done() for task in asking):
            made.wrong.append("an asker was answered before anything failed")
        looking = [asyncio.create_task(look(other)) for other in NODES if other != node]
        for task in asking:
            task.add_done_callback(lambda _: [each.cancel() for each in looking])
        try:
            yield
            await asyncio.wait(asking, timeout=allowed + 30)
        finally:
            for task in (*asking, *looking):
                task.cancel()
            known = await asyncio.gather(*asking, return_exceptions=True)
        for each in known:
            if isinstance(each, float):
                seconds = each - self._failed_at
                made.askers.append(seconds)
                if seconds > allowed + slowest:
                    late = f"an asker knew after {seconds:.1f} s"
                    made.wrong.append(f"{late}, while others answered in {slowest:.1f} s")
            else:
                made.wrong.append(f"an asker never knew: {each!r}")

    # ------------------------------------------------------------ what fails
    def _victim(self, made: Round, names: tuple[str, ...]) -> str:
        homes = [group.home for group in self.groups]
        busy = [name for name in names if name in homes]
        made.node = self.chance.choice(busy or list(names))
        return made.node

    async def _sessions_of(self, node: str) -> set[str]:
        rows = await asyncio.to_thread(
            self.site.query,
            "SELECT id FROM sessions JOIN placements USING (project_id)"
            " WHERE live = 1 AND node = %s",
            node,
        )
        return {session for (session,) in rows}

    async def _kill_node(self, made: Round) -> AsyncIterator[None]:
        node = self._victim(made, NODES)
        pid = await self._pid(node)
        async with self._askers(node, made, KNOWN_SECONDS):
            self._failed_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            yield

    async def _kill_machine(self, made: Round) -> AsyncIterator[None]:
        node = self._victim(made, NODES[1:])  # Ray's head is on the first
        async with self._askers(node, made, LOST_SECONDS + KNOWN_SECONDS):
            self._lost = await self._sessions_of(node)
            self._because = f"its machine is gone ({node})"
            processes = await asyncio.to_thread(self.site.processes_of, node)
            self._failed_at = time.monotonic()
            await asyncio.to_thread(self.site.kill_machine, node, processes)
            try:
                yield
            finally:
                await asyncio.to_thread(self.site.add_machine, node)

    async def _pause_node(self, made: Round) -> AsyncIterator[None]:
        node = self._victim(made, NODES)
        pid = await self._pid(node)
        async with self._askers(node, made, LOST_SECONDS + KNOWN_SECONDS):
            self._lost = await self._sessions_of(node)
            self._because = f"its machine is gone ({node})"
            self._failed_at = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                yield
                await asyncio.sleep(max(0.0, self._failed_at + PAUSE_SECONDS - time.monotonic()))
                before = await asyncio.to_thread(self._ended)
            finally:
                with contextlib.suppress(ProcessLookupError):  # its agent has ended it
                    os.kill(pid, signal.SIGCONT)
        await self._gone(pid)
        await self.site.ready(node)
        after = await asyncio.to_thread(self._ended)
        late = {session for session, end in before.items() if after.get(session, end) != end}
        if late:
            made.wrong.append(f"{node} has stored something after it was given up: {late}")

    async def _pid(self, node: str) -> int:
        pid = await asyncio.to_thread(self.site.pid, node)
        assert pid is not None, f"{node} does not run"
        return pid

    def _ended(self) -> dict[str, int]:
        """Lost session that nobody has resumed → the seq of the end of its log."""
        rows = self.site.query(
            "SELECT session_id, max(seq) FROM events JOIN sessions ON session_id = sessions.id"
            " WHERE live = 0 AND session_id = ANY(%s) GROUP BY session_id",
            list(self._lost),
        )
        return dict(rows)

    async def _gone(self, pid: int) -> None:
        ends = time.monotonic() + START
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC240, PTH110 - not a file
            assert time.monotonic() < ends, f"{pid} goes on after it was given up"
            await asyncio.sleep(0.2)

    async def _stop_database(self, made: Round) -> AsyncIterator[None]:
        self._failed_at = time.monotonic()
        await asyncio.to_thread(self.site.postgres.stop, "immediate")
        await asyncio.sleep(AWAY_SECONDS)
        await asyncio.to_thread(self.site.postgres.start)
        yield

    async def _drain_node(self, made: Round) -> AsyncIterator[None]:
        node = self._victim(made, NODES)
        self._lost = await self._sessions_of(node)
        self._because = "its node is drained"
        self._failed_at = time.monotonic()
        await asyncio.to_thread(cluster_view.drain, self.site.database, node, draining=True)
        ends = time.monotonic() + SETTLE_SECONDS
        try:
            while await asyncio.to_thread(self._projects_of, node):
                assert time.monotonic() < ends, f"{node} still has projects"
                await asyncio.sleep(0.5)  # the database is asked as an operator does it
            yield
        finally:
            await asyncio.to_thread(cluster_view.drain, self.site.database, node, draining=False)

    def _projects_of(self, node: str) -> int:
        """How many projects the node has but the one that can be nowhere else."""
        rows = self.site.query(
            "SELECT count(*) FROM placements WHERE node = %s AND project_id <> %s",
            node,
            self.probes[node],
        )
        return int(rows[0][0])

    # ------------------------------------------------------------ the end
    async def finish(self) -> list[str]:
        """End and delete everything; what refuses is wrong."""
        wrong: list[str] = []

        def end() -> None:
            with ControlClient(self.site.home("node1")) as client:
                for (session,) in self.site.query("SELECT id FROM sessions WHERE live = 1"):
                    client.call("session_end", {"session_id": session})
                for (project,) in self.site.query(
                    "SELECT id FROM projects WHERE deleted_at IS NULL"
                ):
                    try:
                        client.call("project_delete", {"project_id": project})
                    except oubliette.Conflict as refused:  # it has files
                        consent = {"discard": consent_in(refused)}
                        client.call("project_delete", {"project_id": project, **consent})

        try:
            await asyncio.to_thread(end)
        except oubliette.OublietteError as error:
            wrong.append(f"the end: {error!r}")
        return wrong


def left(site: Site, lost: Container[str]) -> list[str]:
    """Folders, and processes of containers, that are left once all has ended.

    Files of projects are not looked for on nodes that were lost.
    """
    found: list[str] = []
    for node in NODES:
        home = site.home(node)
        tops = ("projects", "homes", "roots", "config/projects", "moving")
        for top in ("r", *(() if node in lost else tops)):
            found += [
                f"left on disk: {path.relative_to(site.base)}"
                for path in (home / top).rglob("*")
                if not path.name.endswith(".stderr.log") and not path.is_dir()
            ]
        found += [
            f"left running: {each.pid} {' '.join(each.cmdline())[:200]}"
            for each in site.below(home)
        ]
    return found
