"""Command `oubliette demo`: the main features in half a minute, with nothing else installed.

It is an ordinary MCP client of an ordinary server, on loopback and in a home of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.demo import server
from oubliette.cli.demo.agents import CHILDREN, FINAL, DemoAgent, ready
from oubliette.cli.demo.lines import DemoOutput, described
from oubliette.cli.demo.server import DemoServer
from oubliette.errors import OublietteError
from oubliette.runtime.containers.docker.address import FLAVOURS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

CALL_SECONDS: Final = 120.0  # a project with its first container, on a busy machine
IMAGE_SECONDS: Final = 600.0
TURN_SECONDS: Final = 240.0  # real agents take seconds to start, three of them at once more

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
    keep: Annotated[
        bool, typer.Option(help="Keep the demo's home. It is always kept if the demo fails.")
    ] = False,
) -> int:
    """Show the main features: caller tools, children, keys, a server that is killed."""
    home = server.new_home(runtime)
    done = False
    try:
        asyncio.run(_run_demo(home, runtime, agent))
        done = True
    finally:
        _leave(home, keep=keep or not done)
    return 0


def _leave(home: Path, *, keep: bool) -> None:
    """Remove the home if it is not wanted or empty; print its path otherwise."""
    if not keep or not any(home.iterdir()):
        shutil.rmtree(home, ignore_errors=True)
    if home.exists():  # an engine may have left files of other users
        sys.stdout.write(f"  home and logs    {home} (server.log, logs/)\n")
    elif not keep:
        sys.stdout.write("  home and logs    removed; KEEP=1 (--keep) keeps them\n")


async def _run_demo(home: Path, runtime: str, agent: str) -> None:
    lines = DemoOutput()
    async with lines.reminding(), contextlib.AsyncExitStack() as stack:
        async with lines.waiting(f"the agent ({agent}) to be found", CALL_SECONDS):
            prepared = await stack.enter_async_context(ready(agent, contained=runtime in FLAVOURS))
        await _Demo(home, runtime, prepared, lines).run()


class _Demo:
    def __init__(self, home: Path, runtime: str, agent: DemoAgent, lines: DemoOutput) -> None:
        self._home = home
        self._runtime = runtime
        self._agent = agent
        self._lines = lines
        self._server = DemoServer(home, runtime, agent.environment, lines)
        self._root = ""
        self._children: list[str] = []
        self._when: dict[tuple[str, str], float] = {}
        self._asked = False
        self._news = asyncio.Event()
        """Set when something was printed or requested."""
        self._outage = 0.0

    # ------------------------------------------------------------ the caller's tools
    def _find_order(self, order: str) -> dict[str, Any]:
        """Look up an order."""
        self._lines.say("caller", f"find_order({order}) runs here, in the demo's own process")
        return {"order": order, "total": 12.5, "state": "returned"}

    async def _approve(self, order: str, refund: float) -> dict[str, Any]:
        """Approve a refund."""
        if not self._outage:
            self._lines.say(
                "caller",
                "approve(…) is requested; before it is answered, the server is killed with -9",
            )
            self._asked = True
            self._news.set()
            await asyncio.get_running_loop().create_future()  # this caller ends with the server
        self._lines.say(
            "caller", f"approve({order}, {refund}) was requested again and is answered now"
        )
        return {"approved": True, "order": order}

    # ------------------------------------------------------------ the story
    async def run(self) -> None:
        """Run the story."""
        try:
            await self._run()
        finally:
            await self._server.stop()

    async def _run(self) -> None:
        from oubliette.testing.callers import SdkCaller

        image = await self._prepare()
        if self._agent.note:
            self._lines.say("demo", self._agent.note)
        began = time.monotonic()
        url = await self._server.start(0, **image)
        seconds = time.monotonic() - began
        self._lines.say("demo", f"server at {url} after {seconds:.1f} s, home {self._home}")
        token = await self._server.token()
        tools = {"find_order": self._find_order, "approve": self._approve}
        async with (
            SdkCaller(url, token, caller_id="shop", tools=tools) as caller,
            self._printing(caller),
        ):
            async with self._lines.waiting("the project and the agent's session", CALL_SECONDS):
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
            await self._until_asked()
            cursor = caller.next
            await self._server.kill()
            self._lines.say("demo", "the server is dead; the agent still runs and waits")
        killed = time.monotonic()
        url = await self._server.start(int(url.rpartition(":")[2].partition("/")[0]), **image)
        self._outage = time.monotonic() - killed
        self._lines.say(
            "demo",
            f"a new server runs after {self._outage:.1f} s; the caller listens from {cursor} on",
        )
        async with (
            SdkCaller(url, token, caller_id="shop", tools=tools) as caller,
            self._printing(caller),
        ):
            await caller.listen(after=cursor)
            await self._until_finished()
            async with self._lines.waiting("the session's log", CALL_SECONDS):
                session = await caller.call("session_get", session_id=self._root)
                log = await caller.call("session_events", session_id=self._root, max_events=1000)
                projects = await caller.call("project_list")
        self._summary(session, log, [project["name"] for project in projects["projects"]])

    async def _prepare(self) -> dict[str, str]:
        """Prepare the runtime's needs besides the server, and print notes about it."""
        if self._runtime in FLAVOURS:
            from oubliette.testing.host_image import ensure_image

            # The demo shows agents, not a registry: its image is this machine's own files.
            async with self._lines.waiting(f"an image in {self._runtime}", IMAGE_SECONDS):
                image = await asyncio.to_thread(ensure_image, self._runtime)
            self._lines.say("demo", f"{self._runtime} runs {image}, made of this machine's files")
            return {"OUBLIETTE_CONTAINERS__IMAGE": image}
        if server.sandbox(self._runtime) == "best-effort":
            self._lines.say(
                "demo",
                "bubblewrap is missing: agents run WITHOUT ISOLATION (process.sandbox = "
                "best-effort). apt-get install bubblewrap mends that.",
            )
        return {}

    async def _until_asked(self) -> None:
        async with self._lines.waiting(
            f"the agent ({self._agent.name}) to ask us for approve", TURN_SECONDS
        ):
            while not self._asked:
                self._check()
                if (self._root, "completion") in self._when:
                    raise OublietteError(
                        "the agent's turn is over, and it did not call the caller's tool"
                    )
                await self._next()

    async def _until_finished(self) -> None:
        async with self._lines.waiting(
            f"the end of the agent's turn ({self._agent.name})", TURN_SECONDS
        ):
            while (self._root, "completion") not in self._when:
                self._check()
                await self._next()

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _check(self) -> None:
        for status in ("failed", "timed_out"):
            if (self._root, status) in self._when:
                raise OublietteError(
                    f"the agent's session has {status.replace('_', ' ')}",
                    hint=f"the lines above have the reason; see also {self._server.log}",
                )

    @contextlib.asynccontextmanager
    async def _printing(self, caller: Any) -> AsyncGenerator[None]:
        """Print the caller's events while the block runs."""
        task = asyncio.create_task(self._print(caller), name="events of the demo")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _print(self, caller: Any) -> None:
        shown = 0
        while True:
            await caller.event(after=shown, timeout=3600)
            for event in caller.events[shown:]:
                self._show(event)
            shown = len(caller.events)

    def _together(self) -> str:
        """Return whether all children were at work at one moment."""
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
        self._news.set()
        text = described(kind, event)
        if text:
            self._lines.say(self._who(session), text)

    def _who(self, session: str) -> str:
        if session in self._children:
            return f"child {self._children.index(session) + 1}"
        return "agent"

    def _summary(self, session: dict[str, Any], log: dict[str, Any], projects: list[str]) -> None:
        indexes = [event["index"] for event in log["events"]]
        whole = indexes == list(range(len(indexes)))
        final = session["final_response"]
        spoken = [child for child in self._children if (child, "completed") in self._when]
        complete = self._agent.free or (final == FINAL and len(spoken) == CHILDREN)
        if not (complete and whole and final and projects == ["demo"]):
            raise OublietteError(
                f"the demo did not end as it should: {final!r}, {len(spoken)} children answered, "
                f"{'no gap' if whole else 'a gap'} in the log, projects: {', '.join(projects)}",
                hint=f"see {self._server.log}",
            )
        sys.stdout.write(
            f"""
The agent said at the end: {final}
  agent            {session["agent"]}, isolation: {session["isolation"]}
  children         {len(self._children)}{self._together()}
  minted key       may read; there is no project but {projects[0]!r}
  server           killed with -9 in the middle of the turn, back after {self._outage:.1f} s
  log              {len(indexes)} events of the agent, indexes 0 to {indexes[-1]}, no gap, no repeat
"""
        )
