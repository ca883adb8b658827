"""Nodes as their agent sees them: where one may run, its start, its state and its end.

Only a Ray driver that serves and stores nothing may call these: they ask Ray's head, and its loss
can end the process.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oubliette.cluster.environment import NAMESPACE
from oubliette.cluster.local import LABEL
from oubliette.cluster.node_actor import GROUPS, NodeActor
from oubliette.cluster.ray_calls import RAY, actor_name, reason_of
from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from oubliette.cluster.node_context import NodeStart

PLACE_SECONDS: Final = 5.0
"""Time in which a node is placed or refused; Ray itself waits for ever."""


class NodeNotPlaced(Unavailable):
    """No machine of the cluster can run the node now; the message has the reasons."""

    code: ClassVar[str] = "node_not_placed"


def machines() -> dict[str, tuple[str, bool]]:
    """Name of each machine that Ray knows: its Ray id, and whether it is alive.

    A machine is named by its label `oubliette/node`, or else as Ray names it.
    """
    found: dict[str, tuple[str, bool]] = {}
    for each in cast("list[dict[str, Any]]", RAY.nodes()):
        name = each.get("Labels", {}).get(LABEL) or str(each["NodeName"])
        if each["Alive"] or name not in found:  # one that came back has a new id
            found[name] = (str(each["NodeID"]), bool(each["Alive"]))
    return found


def has_machine(node: str) -> bool:
    """Whether the machine of a node is alive, as far as Ray knows."""
    return machines().get(node, ("", False))[1]


def this_machine() -> str:
    here = RAY.get_runtime_context().get_node_id()
    return next((name for name, (ray_id, _) in machines().items() if ray_id == here), here)


def start_node(start: NodeStart, seconds: float = PLACE_SECONDS) -> dict[str, Any]:
    """Start the node's actor on its machine, or find it there; return its state.

    Raises:
        NodeNotPlaced: its machine is missing or dead, or did not start it in this time.
    """
    ends = time.monotonic() + seconds
    known = machines()
    ray_id, alive = known.get(start.node, ("", False))
    if not alive:
        raise NodeNotPlaced(f"{start.node} cannot be placed: {_why_not(start.node, known)}")
    options = {
        "name": actor_name(start.node),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray_id, soft=False),
    }
    made = RAY.remote(concurrency_groups=GROUPS)(NodeActor)
    try:
        handle = made.options(**options).remote(start)
        left = max(0.1, ends - time.monotonic())
        return cast("dict[str, Any]", RAY.get(handle.state.remote(prepared=True), timeout=left))
    except (RayError, ValueError) as error:
        raise NodeNotPlaced(
            f"{start.node} was not started in {seconds:g} s: {reason_of(error)}",
            hint="a start may take longer on a busy machine; look again",
        ) from error


def find_node(node: str) -> Any:
    """A handle of the node's actor.

    Raises:
        NodeNotPlaced: it was not started.
    """
    try:
        return RAY.get_actor(actor_name(node), NAMESPACE)
    except ValueError as error:
        raise NodeNotPlaced(f"{node} is not running", hint="start the agent") from error


def node_state(node: str, seconds: float = 2.0) -> dict[str, Any]:
    """Return the state of a node; `unreachable` and a reason where it does not answer."""
    try:
        answer = RAY.get(find_node(node).state.remote(), timeout=seconds)
    except (NodeNotPlaced, RayError) as error:
        reason = error.message if isinstance(error, NodeNotPlaced) else reason_of(error)
        return {"node": node, "state": "unreachable", "error": reason}
    return cast("dict[str, Any]", answer)


def request(node: str, verb: str, body: bytes, seconds: float) -> bytes:
    """Return what the program of a node answers to a request.

    Raises:
        NodeNotPlaced: the node is not running.
        Unavailable: its program does not answer in this time, or refuses.
    """
    try:
        answer = RAY.get(find_node(node).request.remote(verb, body), timeout=seconds)
    except RayError as error:
        raise Unavailable(f"{node} does not answer {verb}: {reason_of(error)}") from error
    return cast("bytes", answer)


def stop_node(node: str, seconds: float = 30.0) -> bool:
    """End a node, its program first; return whether that ended in time."""
    try:
        handle = find_node(node)
    except NodeNotPlaced:
        return True
    try:
        ended = bool(RAY.get(handle.stop.remote(seconds), timeout=seconds + 5))
    except RayError:
        ended = False
    RAY.kill(handle, no_restart=True)
    return ended


def restart_process(node: str) -> None:
    """End the process of a node, so that Ray starts it again.

    Raises:
        NodeNotPlaced: it was not started.
    """
    RAY.kill(find_node(node), no_restart=False)


def end_actor(node: str) -> None:
    """End a node's actor and its process, also a stopped one; no effect if there is none.

    Only another `start_node` starts the node again. Its program is not asked: agents live on.
    """
    with contextlib.suppress(NodeNotPlaced):
        RAY.kill(find_node(node), no_restart=True)


def _why_not(node: str, known: dict[str, tuple[str, bool]]) -> str:
    alive = sorted(name for name, (_, lives) in known.items() if lives)
    why = "its machine is dead" if node in known else "no machine has that name"
    return f"{why}; alive are {', '.join(alive) or 'none'}"
