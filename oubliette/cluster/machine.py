"""The agent of one machine: it starts the node of its machine, keeps it started, and ends it.

Ray runs on the machine already. This process is a driver of it, and serves and stores nothing: the
node is a process of Ray's, and goes on if this one is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from oubliette.cluster.agent import AgentOrder, end, keep
from oubliette.cluster.agent_state import write_state
from oubliette.cluster.driver import connect, disconnect
from oubliette.cluster.ray_here import AUTO, chosen_address, raylets_here
from oubliette.errors import ConfigError, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBE_SECONDS: Final = 5.0
"""Time for a connection to Ray's port."""
CONNECT_SECONDS: Final = 60.0
"""Time to become a driver."""
MAIN: Final = "oubliette.cluster.server_node:main"


def run(
    folder: Path,
    address: str,
    node: str,
    *,
    ready: Callable[[dict[str, Any]], object],
    trouble: Callable[[str], object],
) -> None:
    """Run the node of this machine until SIGTERM or SIGINT, then end it in order.

    Args:
        folder: with the token, and the node's home below it.
        address: of Ray's head, `host:port`; `auto`: that of the Ray which runs on this machine.
        node: name of the node, which the machine has as the label `oubliette/node`.
        ready: called with the node's status each time that it has started.
        trouble: called with a text when it does not run.

    Raises:
        ConfigError: Ray does not answer, it is not clear which is meant, the token is missing, or
            the machine has another name.
        RuntimeFailure: the node's first start failed.
    """
    if address == AUTO:
        address = chosen_address(node, raylets_here())
    order = AgentOrder(
        address=address,
        folder=str(folder),
        main=MAIN,
        nodes=[node],
        settings={"home": str(folder)},
    )
    stop = threading.Event()
    _connect(folder, address, trouble)
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which sets handlers of its own
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        _check_name(node)
        keep(order, stop, _Reports(folder / node, ready, trouble))
        end(order, lambda _: None)
    except RuntimeFailure:
        end(order, lambda _: None)
        raise
    finally:
        disconnect()


def _connect(folder: Path, address: str, trouble: Callable[[str], object]) -> None:
    """Become a driver of Ray; in vain, end this process, as Ray itself tries for an hour.

    Raises:
        ConfigError: Ray does not answer, or the token is missing.
    """
    host, colon, port = address.rpartition(":")
    try:
        if colon:
            socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _silent(address) from error

    def give_up() -> None:
        trouble(f"Ray did not answer at {address} in {CONNECT_SECONDS:g} s")
        os._exit(1)  # nothing can interrupt Ray's connection

    deadline = threading.Timer(CONNECT_SECONDS, give_up)
    deadline.daemon = True
    deadline.start()
    try:
        connect(folder, address)
    except ConnectionError as error:
        raise _silent(address) from error
    finally:
        deadline.cancel()


def _silent(address: str) -> ConfigError:
    return ConfigError(
        f"Ray does not answer at {address}", hint="run ray start on this machine first"
    )


class _Reports:
    """Receiver of an agent's reports of its one node, which `cluster status` reads in its home."""

    def __init__(
        self,
        home: Path,
        ready: Callable[[dict[str, Any]], object],
        trouble: Callable[[str], object],
    ) -> None:
        self._home = home
        self._ready = ready
        self._trouble = trouble
        self._started = False

    def __call__(self, state: dict[str, Any]) -> None:
        try:
            write_state(self._home, state)
        except OSError as error:
            self._trouble(f"the state of {state['node']} was not recorded: {error}")
        if state.get("ready"):
            self._started = True
            self._ready(state["server"])
            return
        why = state.get("error")
        if state["state"] == "failed" and not self._started:
            raise RuntimeFailure(f"{state['node']} was not started: {why}")
        if why:
            self._trouble(f"{state['node']} is {state['state']}: {why}")


def _check_name(node: str) -> None:
    """Refuse a name that is not this machine's.

    Raises:
        ConfigError: it is so.
    """
    from oubliette.cluster.nodes import this_machine

    name = this_machine()
    if name != node:
        raise ConfigError(
            f"Ray knows this machine as {name}, not as {node}",
            hint=f"ray start … --labels='oubliette/node={node}', or give --node",
        )
