"""Command `oubliette demo`: the main features in half a minute, with nothing else installed.

It is an ordinary program on an ordinary server, on loopback and in a home of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.demo import server
from oubliette.cli.demo.agents import ready
from oubliette.cli.demo.lines import DemoOutput, LogLines
from oubliette.cli.demo.server import DemoServer
from oubliette.cli.demo.story import Story
from oubliette.errors import OublietteError
from oubliette.runtime.containers.docker.address import FLAVOURS

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.cli.demo.agents import DemoAgent
    from oubliette.cli.demo.cluster import DemoCluster

FIND_SECONDS: Final = 120.0  # programs of agents are started for their versions
IMAGE_SECONDS: Final = 600.0

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["--help", "-h"]})


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
    cluster: Annotated[
        int,
        typer.Option(
            min=0, max=20, help="Nodes of a trial cluster to run it on; 0: a single server."
        ),
    ] = 0,
) -> int:
    """Show the main features: caller tools, children, keys, a server that is killed."""
    home = server.new_home(runtime)
    done = False
    try:
        asyncio.run(_run_demo(home, runtime, agent, cluster))
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


async def _run_demo(home: Path, runtime: str, agent: str, nodes: int) -> None:
    lines = DemoOutput()
    logging.getLogger("oubliette").addHandler(LogLines(lines))
    async with lines.reminding(), contextlib.AsyncExitStack() as stack:
        async with lines.waiting(f"the agent ({agent}) to be found", FIND_SECONDS):
            prepared = await stack.enter_async_context(ready(agent, contained=runtime in FLAVOURS))
        environment = await _needs(runtime, lines)
        if prepared.note:
            lines.say("demo", prepared.note)
        started, story = _cast(home, runtime, prepared, nodes, lines, environment)
        try:
            await story.run()
        except OublietteError as error:
            error.hint = error.hint or f"see {started.log}"
            raise
        finally:
            await started.stop()


def _cast(  # noqa: PLR0917 - the parts of both
    home: Path,
    runtime: str,
    agent: DemoAgent,
    nodes: int,
    lines: DemoOutput,
    environment: dict[str, str],
) -> tuple[DemoServer | DemoCluster, Story]:
    """Return the server, or the cluster of so many nodes, and the story on it."""
    if not nodes:
        started = DemoServer(home, runtime, agent.environment, lines)
        return started, Story(started, agent, lines, environment)
    from oubliette.cli.demo.cluster import DemoCluster
    from oubliette.cli.demo.cluster_story import ClusterStory

    cluster = DemoCluster(home, runtime, agent.environment, nodes, lines)
    return cluster, ClusterStory(cluster, agent, lines, environment)


async def _needs(runtime: str, lines: DemoOutput) -> dict[str, str]:
    """Prepare what the runtime needs besides the server; return configuration of the server."""
    if runtime in FLAVOURS:
        from oubliette.testing.host_image import ensure_image

        # The demo shows agents, not a registry: its image is this machine's own files.
        async with lines.waiting(f"an image in {runtime}", IMAGE_SECONDS):
            image = await asyncio.to_thread(ensure_image, runtime)
        lines.say("demo", f"{runtime} runs {image}, made of this machine's files")
        return {"OUBLIETTE_CONTAINERS__IMAGE": image}
    if server.sandbox(runtime) == "best-effort":
        lines.say(
            "demo",
            "bubblewrap is missing: agents run WITHOUT ISOLATION (process.sandbox = "
            "best-effort). apt-get install bubblewrap mends that.",
        )
    return {}
