"""A node in a process of its own, without Ray: it shares the database, and has no way to others.

    python -m tests.bench.lone_node HOME GUESTS

Its containers are those of `scripted_node`. It serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from oubliette.cli.terminal import logging_config
from oubliette.config.loader import load
from oubliette.node.spec import NodeSpec
from oubliette.runtime.files.home import prepare
from oubliette.server import running
from tests.bench.scripted_node import ScriptedContainers, guests_socket
from tests.unit.kit.remote.network import Network


async def main(home: Path, guests: Path) -> None:
    """Serve."""
    logging_config.configure("warning", as_json=True)  # otherwise it would fill the output
    prepare(home)
    spec = NodeSpec(name=home.name, transport=Network().node(home.name))
    containers = ScriptedContainers(guests_socket(guests, home.name))
    async with running(home, load(home, environ={}).config, node=spec, runtime=containers):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
