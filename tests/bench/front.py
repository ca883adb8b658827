"""What the front costs: a plain tool call and a pushed event, beside a bare HTTP answer.

    python -m tests.bench.front [--calls 500]

The floor is `GET /health` by the same client over the same listener: uvicorn and our checks of
names, nothing of MCP. Server time is the CPU time of the server's process; the client is another
process. A push is timed from the moment at which the caller's actor hears of a committed event to
the client's callback.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from typing import Any

import structlog

from oubliette.actors.messages import EventsCommitted
from oubliette.records import Event
from tests.callers import HttpCaller, Mode
from tests.interaction.frontkit import World, world

CALL_BUDGET_MS = 1.5  # server CPU of a plain call
PUSH_BUDGET_MS = 0.3
WARM = 50


def _client(url: str, key: str, mode: Mode, kind: str, count: int, out: Any) -> None:
    async def once(caller: HttpCaller) -> None:
        if kind == "call":
            await caller.call("echo", a=1)
        else:
            async with caller.http.request("GET", path="/health") as response:
                await response.body()

    async def run() -> None:
        async with HttpCaller(url, key, mode=mode, answers=False) as caller:
            for _ in range(WARM):
                await once(caller)
            out.put("warm")
            took = []
            for _ in range(count):
                began = time.perf_counter()
                await once(caller)
                took.append((time.perf_counter() - began) * 1000)
            out.put(took)

    asyncio.run(run())


def _listener(url: str, key: str, mode: Mode, count: int, out: Any) -> None:
    async def run() -> None:
        async with HttpCaller(url, key, mode=mode, answers=False) as caller:
            took: list[float] = []
            take = caller.take

            def timed(event: dict[str, Any]) -> None:
                if "at" in event:
                    took.append((time.perf_counter() - event["at"]) * 1000)
                take(event)

            caller.take = timed
            await caller.listen()
            out.put("warm")
            await caller.event(n=count - 1, timeout=60)
            out.put(took)

    asyncio.run(run())


async def _beside(target: Any, *args: Any) -> tuple[Any, multiprocessing.Process]:
    out: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=target, args=(*args, out))
    process.start()
    await asyncio.to_thread(out.get)
    return out, process


async def _calls(w: World, key: str, mode: str, kind: str, count: int) -> tuple[float, float]:
    out, process = await _beside(_client, w.front.url, key, mode, kind, count)
    began = time.process_time()
    took = await asyncio.to_thread(out.get)
    cpu = (time.process_time() - began) / count * 1000
    await asyncio.to_thread(process.join)
    return cpu, statistics.median(took)


async def _pushes(w: World, key: str, mode: str, count: int) -> list[float]:
    out, process = await _beside(_listener, w.front.url, key, mode, count)
    actor = w.system.ref("callers/alice/tester")
    first = (await w.listening_state()).head + 1
    for n in range(count):
        event = Event(
            session_id="s",
            index=n,
            ts=0.0,
            type="message",
            data={"n": n, "at": time.perf_counter()},
            seq=first + n,
            principal="alice",
            caller_id="tester",
        )
        actor.tell(EventsCommitted(events=(event,)))
        await asyncio.sleep(0.003)
    took = await asyncio.to_thread(out.get)
    await asyncio.to_thread(process.join)
    return took


async def main(count: int) -> None:
    async with world() as w:
        key = w.key()
        for mode, name in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
            floor_cpu, floor = await _calls(w, key, mode, "health", count)
            cpu, took = await _calls(w, key, mode, "call", count)
            print(
                f"{name}: call {took:.2f} ms ({took / floor:.1f} x a bare answer), "
                f"server CPU {cpu:.2f} ms ({cpu / floor_cpu:.1f} x; budget {CALL_BUDGET_MS})",
                flush=True,
            )
            pushes = sorted(await _pushes(w, key, mode, count))
            print(
                f"{name}: push p50 {statistics.median(pushes):.2f} ms, "
                f"p99 {pushes[int(len(pushes) * 0.99)]:.2f} ms (budget {PUSH_BUDGET_MS})",
                flush=True,
            )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    asyncio.run(main(parser.parse_args().calls))
