"""The program of a node in tests: that of every node, with its log in its home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.cli.terminal import logging_config
from oubliette.cluster import server_node

if TYPE_CHECKING:
    from oubliette.cluster.node_context import NodeContext


async def main(context: NodeContext) -> None:
    log = Path(context.start.settings[server_node.HOME]) / context.start.node / "server.log"
    to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(to, 2)
    os.close(to)
    logging_config.configure("info", as_json=True)
    await server_node.main(context)
