"""The agent of a cluster: the small process that starts its nodes and keeps them started.

It is the only Ray driver: it serves and stores nothing, so its end, wanted or not, harms nothing.
Nodes are detached actors, which Ray starts again on their machines without it. The agent is needed
for a machine that was lost and is back, and for a node whose program has failed.

Run as `python -m oubliette.cluster.agent ORDER`, with an `AgentOrder` as JSON, it writes a line of
JSON for each node whose state has changed, until SIGTERM or SIGINT. With `end` it ends the nodes
instead, each program first, and writes a line for each.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
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

START_LOOK_SECONDS: Final = 0.5
"""The same while a node starts, which others wait for."""

STATUS_SECONDS: Final = 5.0
"""Time for a program to answer the request `status`."""

END_SECONDS: Final = 30.0
"""Time for the program of a node to end."""


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

    end: bool = False
    """Whether to end the nodes instead."""


def keep(
    order: AgentOrder, stop: threading.Event, report: Callable[[dict[str, Any]], None]
) -> None:
    """Keep the nodes started until `stop` is set, and report each change of a state.

    The report of a node that is ready has what its program answers to `status` then, as `server`;
    that of a node that has failed has its latest failure, as `failure`.

    Raises:
        InvalidParameter: their program cannot be imported.
    """
    from oubliette.cluster import nodes
    from oubliette.cluster.node_keeper import NodeKeeper

    load_main(order.main)
    keepers = {
        node: NodeKeeper(NodeStart(node, order.main, dict(order.settings)), nodes)
        for node in order.nodes
    }
    known: dict[str, dict[str, Any]] = {}
    while not stop.is_set():
        for node, keeper in keepers.items():
            state = keeper.look()
            if state != known.get(node):
                known[node] = state
                report(state | {"server": _status(node)} if state.get("ready") else state)
        starting = any(
            each["state"] in {"starting", "running"} and not each.get("ready")
            for each in known.values()
        )
        stop.wait(START_LOOK_SECONDS if starting else LOOK_SECONDS)


def end(order: AgentOrder, report: Callable[[dict[str, Any]], None]) -> None:
    """End the nodes, all at once, and report of each whether its program ended in time."""
    from oubliette.cluster.nodes import stop_node

    stop = functools.partial(stop_node, seconds=END_SECONDS)
    with ThreadPoolExecutor(max_workers=len(order.nodes) or 1) as threads:
        ended = threads.map(stop, order.nodes)
        for node, in_time in zip(order.nodes, ended, strict=True):
            report({"node": node, "state": "ended", "in_time": in_time})


def _status(node: str) -> dict[str, Any]:
    """Return the answer of a node's program to `status`; empty if it does not answer."""
    from oubliette.cluster.nodes import request

    try:
        return json.loads(request(node, "status", b"", STATUS_SECONDS))
    except (OublietteError, ValueError):
        return {}


def main(arguments: list[str]) -> int:
    """Run the agent of the order in the first argument."""
    order = msgspec.json.decode(arguments[0], type=AgentOrder)
    stop = threading.Event()
    report = _ReportOutput()
    connect(Path(order.folder), order.address)
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which sets handlers of its own
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        if order.end:
            end(order, report)
        else:
            keep(order, stop, report)
    finally:
        disconnect()
    return 0


class _ReportOutput:
    """The standard output of the agent, for its reports alone: Ray prints notices of deaths there.

    What anybody else prints goes to the log, which is the standard error.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, state: dict[str, Any]) -> None:
        print(json.dumps(state), file=self._output, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
