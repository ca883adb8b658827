"""What a caller tool call costs over the whole path, beside plain calls by the same client.

    python -m tests.bench.relay [--calls 1000] [--sessions 200]

The path: agent, client, relay, server, HTTP caller and back, all real, on one machine. Our own
share of a call is its time minus twice a plain tool call by the same client in the same mode and
the same run: pushing a request and taking an answer cannot cost less than two such calls. The floor
is a call of the one tool of a bare server of the official SDK, by the same client in the same run.
Processor time is that of the server's process, a call; the checks of what a call brings from outside
(`oubliette/json_values.py`) are shown as a share of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oubliette.json_values import check_values, is_fit
from tests.bench.sdk_floor import TOOL, processor_ms, sdk_floor
from tests.callers import Caller, HttpCaller, SdkCaller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SLICE = 100  # calls of one kind before the other has its turn
CALLERS: dict[str, Callable[..., Any]] = {
    "sdk, 2026-07-28": lambda url, token, **more: SdkCaller(url, token, mode="auto", **more),
    "sdk, 2025-11-25": lambda url, token, **more: SdkCaller(url, token, mode="legacy", **more),
    "bare http": HttpCaller,
}


def middle(samples: list[float], part: float = 0.5) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def shown(samples: list[float]) -> str:
    return f"p50 {middle(samples):6.2f} ms  p99 {middle(samples, 0.99):6.2f} ms"


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[tuple[str, str, int]]:
    """A server process on a home of its own: its URL, a key, its process id."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as home:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")},
            "OUBLIETTE_CONTAINERS__RUNTIME_DIR": f"{home}/r",
            "OUBLIETTE_SERVER__ON_STOP": "end",
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_SESSIONS__MAX_LIVE_PER_PROJECT": "1000",
            "OUBLIETTE_CALLERS__MAX_CALLS_IN_FLIGHT": "1000",
            "OUBLIETTE_CALLERS__CALLS_PER_SECOND": "100000",  # what is measured is not the limit
        }
        with (Path(home) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "oubliette",
                "serve",
                "--home",
                home,
                "--port",
                "0",
                "-o",
                "json",
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        try:
            assert process.stdout is not None
            ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
            made = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "oubliette",
                "token",
                "create",
                "--scope",
                "write",
                "--home",
                home,
                "-o",
                "json",
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await made.communicate()
            yield ready["url"], json.loads(out)["token"], ready["pid"]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 20)


async def turn(caller: Caller, project: str, prompt: str, **more: Any) -> list[Any]:
    """Run a prompt in a new session; what its agent said."""
    place = len(caller.events)
    spawned = await caller.call(
        "session_spawn",
        project_id=project,
        prompt=prompt,
        context=caller.context,
        new_session=True,
        **more,
    )
    session = spawned["session_id"]
    await caller.event("completion", after=place, session_id=session, timeout=300)
    said = [e for e in caller.events[place:] if e.get("session_id") == session]
    return [json.loads(e["text"]) for e in said if e["type"] == "message" and e["text"][:1] in "{["]


class Samples:
    """Times of one kind of call, and what they took of the server's processor."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.ms: list[float] = []
        self._busy = 0.0

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count what the server does meanwhile."""
        before = processor_ms(self._pid)
        yield
        self._busy += processor_ms(self._pid) - before

    async def take(self, caller: Caller, tool: str, **arguments: Any) -> None:
        """A slice of calls by this client, one after the other."""
        with self.busy():
            for _ in range(SLICE):
                began = time.perf_counter()
                await caller.call(tool, **arguments)
                self.ms.append((time.perf_counter() - began) * 1000)

    @property
    def processor(self) -> float:
        return self._busy / len(self.ms)

    def __str__(self) -> str:
        return f"{shown(self.ms)}  processor {self.processor:5.2f} ms"


def checks_ms(times: int = 10_000) -> float:
    """Milliseconds that the checks of values take which one call passes: at the link, and back."""
    call = {"tool": "echo", "call_id": "0" * 32, "arguments": {"n": 1}}
    answer = {"session_id": "s" * 30, "request_id": "r" * 30, "result": {"n": 1}}
    began = time.process_time()
    for _ in range(times):
        is_fit({"id": 1})
        check_values(call, "params", envelope=1)
        check_values(answer)
    return (time.process_time() - began) * 1000 / times


async def relay(
    name: str, url: str, token: str, pid: int, project: str, calls: int, floor: tuple[str, int]
) -> None:
    """Caller tool calls beside plain ones and those of the bare server, in slices."""
    total, plain, bare = Samples(pid), Samples(pid), Samples(floor[1])
    tools = {"echo": lambda n=0: {"n": n}}
    async with (
        CALLERS[name](url, token, caller_id="bench", tools=tools) as caller,
        CALLERS[name](floor[0], token, caller_id="bench", tools={}) as other,
    ):
        await caller.listen()
        for _ in range(calls // SLICE):
            with total.busy():
                said = await turn(caller, project, f'repeat {SLICE} call bench_echo {{"n": 1}}')
            assert said[0]["errors"] == 0 and said[0]["count"] == SLICE, said
            total.ms += said[0]["elapsed_ms"]
            await plain.take(caller, "config_limits", project_id=project)
            await bare.take(other, TOOL)
    share = middle(total.ms) - 2 * middle(plain.ms)
    checks = checks_ms()
    print(
        f"{name:16} {calls} caller tool calls: {total} | plain: {plain} | bare SDK server: {bare} | "
        f"ours {share:5.2f} ms, {middle(total.ms) / middle(bare.ms):.1f} x the bare server's time, "
        f"{total.processor / bare.processor:.1f} x its processor, "
        f"the checks of values {1000 * checks:.0f} us, {checks / total.processor:.1%} of ours",
        flush=True,
    )


async def ten_at_once(url: str, token: str, project: str) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "ok"

    async with HttpCaller(url, token, caller_id="bench", tools={"slow": slow}) as caller:
        await caller.listen()
        prompt = "parallel\n" + "call bench_slow {}\n" * 10 + "end"
        times = []
        for _ in range(5):
            said = await turn(caller, project, prompt)
            times.append(max(outcome["elapsed_ms"] for outcome in said[0]))
    print(f"ten at once, caller takes 200 ms: {middle(times):.0f} ms (median of 5)", flush=True)


async def many_agents(url: str, token: str, pid: int, project: str, agents: int = 20) -> None:
    async with HttpCaller(url, token, caller_id="bench", tools={"echo": lambda: 1}) as caller:
        await caller.listen()
        one = (await turn(caller, project, "repeat 200 call bench_echo {}"))[0]["elapsed_ms"]
        rate = len(one) / sum(one) * 1000
        # All agents wait for the word, so that their starts do not count.
        prompt = "call bench_echo {}\nsleep 6\nrepeat 100 call bench_echo {}"
        place = len(caller.events)
        turns = [asyncio.create_task(turn(caller, project, prompt)) for _ in range(agents)]
        while sum(e["type"] == "caller_tool_request" for e in caller.events[place:]) <= agents:
            await caller.event("caller_tool_request", after=len(caller.events), timeout=60)
        before = processor_ms(pid)
        said = await asyncio.gather(*turns)
        busy = processor_ms(pid) - before
        longest = max(sum(each[-1]["elapsed_ms"]) for each in said) / 1000
        every = [ms for each in said for ms in each[-1]["elapsed_ms"]]
    print(
        f"{agents} agents at once: {len(every) / longest:.0f} calls/s in total, {shown(every)}, "
        f"processor {busy / len(every):.2f} ms a call (one agent alone: {rate:.0f} calls/s)",
        flush=True,
    )


async def child(url: str, token: str, project: str) -> None:
    async with HttpCaller(url, token, caller_id="bench", tools={}) as caller:
        await caller.listen()
        extra = []
        for _ in range(10):
            place = len(caller.events)
            said = await turn(caller, project, 'call session_message {"message": "say hi"}')
            events = caller.events[place:]
            parent = events[-1]["session_id"]
            own = [e for e in events if e.get("session_id") not in {parent, None}]
            lived = [e["ts"] for e in own if e["type"] in {"status", "completion"}]
            done = next(e["ts"] for e in own if e["type"] == "completion")
            extra.append(said[0]["elapsed_ms"] - (done - min(lived)) * 1000)
    print(
        f"a child that answers at once: {middle(extra):.1f} ms on top of its own time", flush=True
    )


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


async def memory(url: str, token: str, project: str, pid: int, sessions: int) -> None:
    """Sessions that each wait for their caller; then all are answered, the last first."""
    async with HttpCaller(
        url, token, caller_id="bench", tools={"wait": lambda: 1}, answers=False
    ) as caller:
        await caller.listen()
        before, threads = resident(pid), len(os.listdir(f"/proc/{pid}/task"))
        gate = asyncio.Semaphore(20)

        async def spawn() -> None:
            async with gate:
                await caller.call(
                    "session_spawn",
                    project_id=project,
                    prompt="call bench_wait {}",
                    context=caller.context,
                    new_session=True,
                )

        began = time.perf_counter()
        await asyncio.gather(*(spawn() for _ in range(sessions)))
        async with asyncio.timeout(120):
            while len(caller.of("caller_tool_request")) < sessions:
                await caller.event("caller_tool_request", after=len(caller.events), timeout=60)
        up = time.perf_counter() - began
        used, grown = resident(pid) - before, len(os.listdir(f"/proc/{pid}/task")) - threads
        place = len(caller.events)
        for request in reversed(caller.of("caller_tool_request")):
            await caller.call(
                "caller_tool_response",
                session_id=request["session_id"],
                request_id=request["request_id"],
                result=1,
            )
        done: set[str] = set()
        async with asyncio.timeout(120):
            while len(done) < sessions:
                event = await caller.event(after=place, timeout=60)
                place = caller.events.index(event) + 1
                if event["type"] == "completion":
                    done.add(event["session_id"])
    print(
        f"{sessions} sessions, each with a pending call, up in {up:.1f} s: "
        f"{used / sessions / 1024:.0f} KiB of the server a session, "
        f"{grown} threads more in all",
        flush=True,
    )


async def main(calls: int, sessions: int) -> None:
    async with server() as (url, token, pid):
        async with HttpCaller(url, token) as caller:
            project = (await caller.call("project_create", name="bench"))["id"]
        async with sdk_floor() as floor:
            for name in CALLERS:
                await relay(name, url, token, pid, project, calls, floor)
        await ten_at_once(url, token, project)
        await many_agents(url, token, pid, project)
        await child(url, token, project)
        await memory(url, token, project, pid, sessions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=200)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.calls, chosen.sessions))
