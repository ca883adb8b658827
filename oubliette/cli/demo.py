"""`oubliette demo`: the main job in half a minute, with nothing installed but this (DESIGN 14).

It is an ordinary MCP client of an ordinary server, on loopback and in a home of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oubliette.cli.demo_agent import CHILDREN, FINAL, DemoAgent, ready
from oubliette.errors import DeadlineExceeded, OublietteError

START_SECONDS: Final = 60.0
TURN_SECONDS: Final = 240.0  # real agents take seconds to start, three of them at once more
STOP_SECONDS: Final = 15.0
ENGINES: Final = {"docker", "podman"}

app = typer.Typer(add_completion=False)


def run(arguments: list[str]) -> int:
    """Parse the rest of the command line and run; returns the exit code."""
    code: Any = app(args=arguments, prog_name="oubliette demo", standalone_mode=False)
    return int(code or 0)


@app.command()
def demo(
    runtime: Annotated[str, typer.Option(help="auto, process, docker or podman.")] = "process",
    agent: Annotated[
        str, typer.Option(help="scripted (auto), opencode, opencode-acp or droid.")
    ] = "auto",
    keep: Annotated[bool, typer.Option(help="Keep the demo's home.")] = True,
) -> int:
    """Show the main job: agents that call your tools, spawn children and outlive the server."""
    home = Path(tempfile.mkdtemp(prefix="oubliette-demo-"))
    try:
        asyncio.run(_tell(home, runtime, agent))
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    return 0


async def _tell(home: Path, runtime: str, agent: str) -> None:
    async with ready(agent, contained=runtime in ENGINES) as prepared:
        await _Demo(home, runtime, prepared).run()


class _Demo:
    def __init__(self, home: Path, runtime: str, agent: DemoAgent) -> None:
        self._home = home
        self._runtime = runtime
        self._agent = agent
        self._image: str | None = None
        self._began = time.monotonic()
        self._server: asyncio.subprocess.Process | None = None
        self._root = ""
        self._children: list[str] = []
        self._when: dict[tuple[str, str], float] = {}
        self._last = -1
        self._asked: asyncio.Event = asyncio.Event()
        self._outage = 0.0

    # ------------------------------------------------------------ the server
    async def _start(self, port: int) -> tuple[str, float]:
        began = time.monotonic()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")
        }
        environment |= self._agent.environment
        environment["OUBLIETTE_CONTAINERS__RUNTIME_DIR"] = str(self._home / "run")
        if shutil.which("bwrap") is None:
            environment["OUBLIETTE_PROCESS__SANDBOX"] = "best-effort"
        if self._image is not None:
            environment["OUBLIETTE_CONTAINERS__IMAGE"] = self._image
        with (self._home / "server.log").open("ab") as log:
            self._server = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "oubliette", "serve", "--home", str(self._home),
                "--port", str(port), "--runtime", self._runtime, "-o", "json",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip
        assert self._server.stdout is not None
        try:
            line = await asyncio.wait_for(self._server.stdout.readline(), START_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded("the server did not start in time") from None
        if not line:
            await self._server.wait()
            tail = (self._home / "server.log").read_text(encoding="utf-8", errors="replace")
            raise OublietteError(
                f"the server did not start:\n{tail[-2000:]}", hint="oubliette doctor"
            )
        return str(json.loads(line)["url"]), time.monotonic() - began

    async def _kill(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        await self._server.wait()

    async def _stop(self) -> None:
        if self._server is None or self._server.returncode is not None:
            return
        self._server.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._server.wait(), STOP_SECONDS)
        except TimeoutError:
            await self._kill()

    async def _token(self) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "oubliette", "token", "create", "--scope", "write",
            "--name", "demo", "--home", str(self._home), "-o", "json",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), START_SECONDS)
        if process.returncode != 0:
            raise OublietteError("no key could be made; see above")
        return str(json.loads(out)["token"])

    # ------------------------------------------------------------ the caller's tools
    def _find_order(self, order: str) -> dict[str, Any]:
        """Look up an order."""
        self._line("caller", f"find_order({order}) runs here, in the demo's own process")
        return {"order": order, "total": 12.5, "state": "returned"}

    async def _approve(self, order: str, refund: float) -> dict[str, Any]:
        """Approve a refund."""
        if not self._outage:
            self._line("caller", "approve(…) is asked: before we answer, kill -9 the server")
            self._asked.set()
            await asyncio.get_running_loop().create_future()  # this caller goes with the server
        self._line("caller", f"approve({order}, {refund}) was asked again; now we answer")
        return {"approved": True, "order": order}

    # ------------------------------------------------------------ the story
    async def run(self) -> None:
        """Tell it."""
        try:
            await self._run()
        finally:
            await self._stop()

    async def _run(self) -> None:
        from oubliette.testing.callers import SdkCaller

        if self._runtime in ENGINES:
            from oubliette.testing.host_image import ensure_image

            # The demo shows the main job, not a registry: its image is this machine's own files.
            self._image = await asyncio.to_thread(ensure_image, self._runtime)
            self._line("demo", f"{self._runtime} runs {self._image}, made of this machine's files")
        elif shutil.which("bwrap") is None:
            self._line(
                "demo",
                "bubblewrap is missing: agents run WITHOUT ISOLATION (process.sandbox = "
                "best-effort). apt-get install bubblewrap mends that.",
            )
        if self._agent.told:
            self._line("demo", self._agent.told)
        url, seconds = await self._start(0)
        self._line("demo", f"server at {url} after {seconds:.1f} s, home {self._home}")
        token = await self._token()
        tools = {"find_order": self._find_order, "approve": self._approve}
        async with SdkCaller(url, token, caller_id="shop", tools=tools) as caller:
            watch = asyncio.create_task(self._print(caller))
            await caller.listen()
            project = await caller.call("project_create", name="demo")
            spawned = await caller.call(
                "session_spawn",
                project_id=project["id"],
                agent=self._agent.name,
                prompt=self._agent.prompt,
                context=caller.context,
                api_key_scope="read",
            )
            self._root = spawned["session_id"]
            await asyncio.wait_for(self._asked.wait(), TURN_SECONDS)
            cursor = caller.next
            await self._kill()
            self._line("demo", "the server is dead; the agent waits in its sandbox")
            await _end(watch)
        killed = time.monotonic()
        url, seconds = await self._start(int(url.rpartition(":")[2].partition("/")[0]))
        self._outage = time.monotonic() - killed
        self._line("demo", f"a new server runs after {seconds:.1f} s; we listen on from {cursor}")
        async with SdkCaller(url, token, caller_id="shop", tools=tools) as caller:
            watch = asyncio.create_task(self._print(caller))
            await caller.listen(after=cursor)
            await caller.event("completion", session_id=self._root, timeout=TURN_SECONDS)
            session = await caller.call("session_get", session_id=self._root)
            log = await caller.call("session_events", session_id=self._root, max_events=1000)
            projects = await caller.call("project_list")
            await _end(watch)
        self._summary(session, log, [project["name"] for project in projects["projects"]])

    async def _print(self, caller: Any) -> None:
        shown = 0
        while True:
            await caller.event(after=shown, timeout=3600)
            for event in caller.events[shown:]:
                self._show(event)
            shown = len(caller.events)

    def _together(self) -> str:
        """Whether all children were at work at one moment."""
        began = [self._when.get((child, "running"), 0.0) for child in self._children]
        ended = [self._when.get((child, "completion"), 0.0) for child in self._children]
        return ", at the same time" if began and max(began) < min(ended) else ""

    def _show(self, event: dict[str, Any]) -> None:
        kind = str(event.get("type"))
        session = str(event.get("session_id", ""))
        if self._root and session and session != self._root and session not in self._children:
            self._children.append(session)
        self._when.setdefault((session, str(event.get("status", kind))), time.monotonic())
        if kind == "completion":
            self._when[session, kind] = time.monotonic()
        text = _described(kind, event)
        if text:
            self._line(self._who(session), text)

    def _who(self, session: str) -> str:
        if session in self._children:
            return f"child {self._children.index(session) + 1}"
        return "agent"

    def _line(self, who: str, text: str) -> None:
        seconds = time.monotonic() - self._began
        sys.stdout.write(f"{seconds:6.2f} s  {who:<8} {text}\n")
        sys.stdout.flush()

    def _summary(self, session: dict[str, Any], log: dict[str, Any], projects: list[str]) -> None:
        indexes = [event["index"] for event in log["events"]]
        whole = indexes == list(range(len(indexes)))
        final = session["final_response"]
        spoken = [child for child in self._children if (child, "completed") in self._when]
        told = self._agent.free or (final == FINAL and len(spoken) == CHILDREN)
        if not (told and whole and final and projects == ["demo"]):
            raise OublietteError(
                f"the demo did not end as it should: {final!r}, {len(spoken)} children answered, "
                f"{'no gap' if whole else 'a gap'} in the log, projects: {', '.join(projects)}",
                hint=f"see {self._home / 'server.log'}",
            )
        sys.stdout.write(
            f"""
The agent said at the end: {final}
  agent            {session["agent"]}, isolation: {session["isolation"]}
  children         {len(self._children)}{self._together()}
  minted key       may read; there is no project but {projects[0]!r}
  server           killed with -9 in the middle of the turn, back after {self._outage:.1f} s
  log              {len(indexes)} events of the agent, indexes 0 to {indexes[-1]}, no gap, no repeat
  home and logs    {self._home} (server.log, logs/)
"""
        )


def _described(kind: str, event: dict[str, Any]) -> str:
    match kind:
        case "message":
            return f"says: {_short(event.get('text'))}"
        case "tool_call":
            return f"calls {event.get('tool')} {_short(json.dumps(event.get('arguments')))}"
        case "tool_result":
            failed = "refused: " if event.get("is_error") else ""
            return f"gets {failed}{_short(json.dumps(event.get('result')))}"
        case "caller_tool_request":
            again = " (again: it was still open)" if event.get("redelivered") else ""
            return f"asks us for {event.get('tool')}{again}"
        case "status":
            return f"is {event.get('status')}"
        case "error":
            return f"error: {_short(event.get('message'))}"
        case _:
            return ""


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 110 else text[:109] + "…"


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
