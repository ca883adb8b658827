"""The agent of a cluster: the small process that starts its nodes and keeps them started.

It is the only Ray driver: it serves and stores nothing, so its end, wanted or not, harms nothing.
Nodes are detached actors, which Ray starts again on their machines without it. The agent is needed
for a machine that was lost and is back, and for a node whose program has failed.

Run as `python -m oubliette.cluster.agent ORDER`, with an `AgentOrder` as JSON, it writes a line of
JSON for each node whose state has changed, until SIGTERM or SIGINT.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.cluster.driver import connect, disconnect
from oubliette.cluster.node_context import NodeStart, load_main
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS: Final = 5.0
"""Time between two looks at the nodes: Ray gives no notice of a machine that is back."""


class AgentOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to keep the nodes of a cluster."""

    address: str
    """Address of Ray's head, `host:port`."""

    folder: str
    """Folder with the cluster's token."""

    main: str
    """Program of the nodes, `package.module:function`."""

    nodes: list[str]
    """Names of the nodes."""

    settings: dict[str, str] = {}
    """For the program."""


def look_after(order: AgentOrder, node: str) -> dict[str, Any]:
    """Start a node that is not running, and return its state; never raises for the node's sake."""
    from oubliette.cluster.nodes import node_state, restart_process, start_node

    start = NodeStart(node, order.main, dict(order.settings))
    state = node_state(node)
    try:
        if state["state"] in {"failed", "ended"}:
            restart_process(node)
        elif state["state"] == "unreachable":
            state = start_node(start)
    except OublietteError as error:
        return {"node": node, "state": "missing", "error": error.message}
    return state


def keep(
    order: AgentOrder, stop: threading.Event, report: Callable[[dict[str, Any]], None]
) -> None:
    """Keep the nodes started until `stop` is set, and report each change of a state.

    Raises:
        InvalidParameter: their program cannot be imported.
    """
    load_main(order.main)
    known: dict[str, dict[str, Any]] = {}
    while not stop.is_set():
        for node in order.nodes:
            state = look_after(order, node)
            if state != known.get(node):
                known[node] = state
                report(state)
        stop.wait(LOOK_SECONDS)


def main(arguments: list[str]) -> int:
    """Run the agent of the order in the first argument."""
    order = msgspec.json.decode(arguments[0], type=AgentOrder)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    connect(Path(order.folder), order.address)
    try:
        keep(order, stop, lambda state: print(json.dumps(state), flush=True))  # noqa: T201
    finally:
        disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
