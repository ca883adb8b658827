"""What a caller tool call costs below the HTTP door: link, session, log, caller, and back.

    python -m tests.bench.actors [--calls 2000] [--agents 1,20] [-o json]

The actors, the store and the links are those of the server, on one loop; a task stands for each
agent's client, at the other end of a socket pair, and one for the caller, who asks the actors
directly. The floor is the same work with nothing around it: two commits of such operations by a
bare writer for each call, awaited one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import structlog

from oubliette import ids
from oubliette.actors.caller.messages import NextEvents, OpenListener
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.container.guest_connection import (
    ContainerRefs,
    GetGuestConnection,
    GuestConnection,
    GuestConnectionState,
)
from oubliette.actors.container.messages import Acquire
from oubliette.actors.context import ActorContext
from oubliette.actors.messages import AnswerCallerTool, OpenCaller
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallsActor, OpenCallTable
from oubliette.actors.relay.session_connection import SessionConnectionActor
from oubliette.actors.session.actor import SessionActor
from oubliette.actors.session.messages import OpenLink
from oubliette.actors.session.state import SessionMemory
from oubliette.actors.session_registry import (
    REGISTRY,
    EnterSession,
    SessionRegistry,
    SessionRegistryActor,
    SessionTable,
)
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.clock import SystemClock
from oubliette.config.schema import Config
from oubliette.kit import Actor, System, handles
from oubliette.records import CallerRequest, CallerTool, Event, Session, Turn
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import (
    AppendEvents,
    PutCallerRequest,
    PutSession,
    PutTurn,
    SettleCallerRequest,
)
from oubliette.runtime.store.reader import Reader
from oubliette.runtime.store.writer import Writer

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator

CALLER, PRINCIPAL = "bench", "p"
SWITCH_SECONDS = 0.0005  # as the server has it


class NoContainer(Actor):
    """Stands for the container and its socket: agents wait for it for ever, links are given."""

    def __init__(self, services: Any, gate: GuestConnection) -> None:
        super().__init__()
        self._services = services
        self._gate = gate

    @handles(Acquire)
    def _acquire(self, _: Acquire) -> None:
        self.defer()

    @handles(OpenLink)
    def _open(self, message: OpenLink) -> None:
        self.spawn(SessionConnectionActor, self._services, self._gate, message)

    @handles(GetGuestConnection)
    def _get(self, _: GetGuestConnection) -> GuestConnection:
        return self._gate


class FakeHost:
    """The host's side of session links."""

    def __init__(self) -> None:
        self.clients: dict[str, asyncio.Future[tuple[Any, Any]]] = {}

    async def expect(self, *_: Any, **__: Any) -> None:
        pass

    unexpect = expect

    async def upstream(self, session: str, *_: Any, **__: Any) -> tuple[Any, Any]:
        ours, theirs = socket.socketpair()
        self.clients[session].set_result(await asyncio.open_connection(sock=theirs, limit=1 << 24))
        return await asyncio.open_connection(sock=ours, limit=1 << 24)


class House:
    """A store, a caller and the sessions of agents, with nothing of HTTP or containers."""

    def __init__(
        self, system: System, services: ActorContext, unit: ContainerRefs, host: FakeHost
    ) -> None:
        self.system = system
        self.services = services
        self.unit = unit
        self.host = host
        self.lending = asyncio.Event()

    async def session(self) -> tuple[StreamReader, StreamWriter]:
        """A new session; the agent's end of its link, once it is configured."""
        name = ids.new_id(ids.SESSION)
        now = time.time()
        record = Session(
            id=name, project_id="proj_x", workspace_id="w", principal=PRINCIPAL, agent="scripted",
            status="created", created_at=now, updated_at=now, exploration_id="e",
            pairing_secret="s", caller_id=CALLER, caller_tools=(CallerTool(name="echo"),),
            turn_count=1,
        )  # fmt: skip
        turn = Turn(session_id=name, number=1, prompt="x", state="queued", created_at=now)
        put = Transact(ops=(PutSession(record), PutTurn(turn)))
        await self.services.store.ask(put)
        self.host.clients[name] = asyncio.get_running_loop().create_future()
        entry = EnterSession(session_id=name, name=f"sessions/{name}", supervisor="container")
        await self.system.ref(REGISTRY).ask(entry)
        self.system.spawn(
            SessionActor, self.services, self.unit, name, SessionMemory(), name=f"sessions/{name}"
        )
        reader, writer = await self.host.clients[name]
        await reader.readline()  # caller_tools_config
        return reader, writer

    async def answer(self) -> None:
        """The caller: answers whatever it is asked, until cancelled."""
        opened = OpenCaller(principal=PRINCIPAL, caller_id=CALLER)
        caller = self.system.ref(await self.system.ref("callers").ask(opened))
        listening = OpenListener(listener_id="l", mode="provide", kind="stream", after=None)
        cursor = (await caller.ask(listening)).cursor
        self.lending.set()
        async with asyncio.TaskGroup() as answers:
            while True:
                batch = await caller.ask(NextEvents(listener_id="l", after=cursor))
                cursor = batch.next
                for event in batch.events:
                    if event.type == "caller_tool_request":
                        answers.create_task(self._respond(event))

    async def _respond(self, event: Event) -> None:
        session = self.services.session_registry.session(event.session_id)
        assert session is not None
        answer = AnswerCallerTool(
            principal=PRINCIPAL, request_id=event.data["request_id"], result={"n": 1}
        )
        assert await session.ask(answer)


@contextlib.asynccontextmanager
async def house() -> AsyncIterator[House]:
    with tempfile.TemporaryDirectory(prefix="ob") as folder:
        database = Database(Path(folder) / "db")
        reader = Reader(database)
        clock, config = SystemClock(), Config()
        async with System(clock=clock) as system:
            store = system.spawn(StoreActor, database, name="store")
            system.spawn(CallersActor, store, reader, config.callers, name="callers")
            table = SessionTable()
            system.spawn(SessionRegistryActor, table, name=REGISTRY)
            system.spawn(OpenCallsActor, 1000, OpenCallTable(), name=OPEN_CALLS)
            nothing: Any = SimpleNamespace()
            runtime: Any = SimpleNamespace(capabilities=SimpleNamespace(images=False))
            services = ActorContext(
                config=config, clock=clock, home=Path(folder), instance="i", epoch=1, store=store,
                reader=reader, folders=nothing, runtime=runtime, agents={}, missing_agents={},
                zipapp=Path(folder), runtime_base=Path(folder),
                session_registry=SessionRegistry(table),
            )  # fmt: skip
            host, guest = FakeHost(), GuestConnectionState()
            guest.opened(cast("Any", host), cast("Any", SimpleNamespace(id="c")))
            gate = GuestConnection(guest)
            container = system.spawn(NoContainer, services, gate, name="container")
            made = House(system, services, ContainerRefs(container, container), host)
            caller = asyncio.create_task(made.answer())
            await made.lending.wait()
            try:
                yield made
            finally:
                caller.cancel()
                await asyncio.gather(caller, return_exceptions=True)
        await reader.aclose()


async def calls(link: tuple[StreamReader, StreamWriter], count: int) -> list[float]:
    """Milliseconds of each of `count` calls, one after the other."""
    reader, writer = link
    took: list[float] = []
    for number in range(count):
        params = {"tool": "echo", "arguments": {"n": number}, "call_id": ids.new_uuid()}
        line = {"jsonrpc": "2.0", "id": number, "method": "caller_tool", "params": params}
        began = time.perf_counter()
        writer.write(json.dumps(line).encode() + b"\n")
        answer = json.loads(await reader.readline())
        took.append((time.perf_counter() - began) * 1000)
        assert answer["result"] == {"n": 1}, answer
    return took


async def floor(count: int) -> tuple[float, float]:
    """Milliseconds, and those of the processor, of a call's two commits by a bare writer."""
    with tempfile.TemporaryDirectory(prefix="ob") as folder:
        writer = Writer(Database(Path(folder) / "db"))
        writer.start()
        began, busy = time.perf_counter(), time.process_time()
        for number in range(count):
            request = CallerRequest(
                id=ids.new_uuid(), session_id="s", principal=PRINCIPAL, caller_id=CALLER,
                tool="echo", arguments={"n": number}, created_at=0.0, deadline=60.0, event_index=0,
                call_id=ids.new_uuid(), durable=False,
            )  # fmt: skip
            asked, settled = (
                Event(
                    session_id="s", index=-1, ts=0.0, type=kind, principal=PRINCIPAL,
                    caller_id=CALLER, data={"request_id": request.id, "tool": "echo"},
                )
                for kind in ("caller_tool_request", "caller_tool_settled")
            )  # fmt: skip
            done = SettleCallerRequest(
                id=request.id, outcome="result", settled_at=1.0, result={"n": 1}, error=None
            )
            for ops in (
                (PutCallerRequest(request), AppendEvents((asked,))),
                (done, AppendEvents((settled,))),
            ):
                await asyncio.wrap_future(writer.submit(ops))
        took = time.perf_counter() - began, time.process_time() - busy
        await asyncio.wrap_future(writer.close())
    return took[0] * 1000 / count, took[1] * 1000 / count


async def measure(agents: int, count: int) -> dict[str, float]:
    bare_ms, bare_cpu = await floor(count)
    each = max(1, count // agents)
    async with house() as at:
        links = [await at.session() for _ in range(agents)]
        await asyncio.gather(*(calls(link, 10) for link in links))  # warm
        began, busy = time.perf_counter(), time.process_time()
        took = await asyncio.gather(*(calls(link, each) for link in links))
        wall, cpu = time.perf_counter() - began, time.process_time() - busy
    for _, writer in links:  # not before: a link that is lost is opened again
        writer.close()
    every = sorted(ms for one in took for ms in one)
    return {
        "agents": agents,
        "p50_ms": round(statistics.median(every), 3),
        "p99_ms": round(every[len(every) * 99 // 100], 3),
        "calls_per_second": round(len(every) / wall),
        "cpu_ms": round(cpu * 1000 / len(every), 3),
        "floor_ms": round(bare_ms, 3),
        "floor_cpu_ms": round(bare_cpu, 3),
        "cpu_ratio": round(cpu * 1000 / len(every) / bare_cpu, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--agents", default="1,20")
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for agents in map(int, given.agents.split(",")):
        found = asyncio.run(measure(agents, given.calls))
        if given.output == "json":
            print(json.dumps({"bench": "actors", **found}), flush=True)
            continue
        print(
            f"{agents:2} agents: p50 {found['p50_ms']:.2f} ms  p99 {found['p99_ms']:.2f} ms,"
            f" {found['calls_per_second']} calls/s, {found['cpu_ms']:.2f} ms of processor a call"
            f" | two bare commits: {found['floor_ms']:.2f} ms, {found['floor_cpu_ms']:.2f} ms of"
            f" processor, {found['cpu_ratio']:.1f} x",
            flush=True,
        )


if __name__ == "__main__":
    main()
