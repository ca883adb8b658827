"""Blocking calls of the engine's API about containers; `Engine.call` runs each in a thread."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

KILL_TIMEOUT: Final = 10.0  # seconds from SIGKILL to the end of the container


def create(api: Any, body: dict[str, Any], name: str) -> Any:
    """Create a container from `body`; the answer has its `Id`."""
    return api.create_container_from_config(body, name)


def ping(api: Any) -> None:
    api.ping()


def start(api: Any, engine_id: str) -> None:
    api.start(engine_id)


def kill(api: Any, engine_id: str, signal: str) -> None:
    api.kill(engine_id, signal)


def inspect(api: Any, engine_id: str) -> Any:
    return api.inspect_container(engine_id)


def network(api: Any, name: str) -> Any:
    return api.inspect_network(name)


def labelled(api: Any, label: str) -> Any:
    """All containers with `name=value`, running or not."""
    return api.containers(all=True, filters={"label": [label]})


def read_logs(api: Any, engine_id: str, tail: int) -> bytes:
    """The last lines of its first process's output."""
    return api.logs(engine_id, stdout=True, stderr=True, tail=tail)


def remove(api: Any, engine_id: str) -> None:
    """Remove it with its anonymous volumes; a missing one is ignored."""
    errors: Any = __import__("docker").errors
    deadline = time.monotonic() + KILL_TIMEOUT
    try:
        api.remove_container(engine_id, v=True, force=True)
    except errors.NotFound:
        return
    except errors.APIError as error:
        if error.status_code != 409:
            raise
        # Another client removes it right now: the engine reports when it is done.
        with contextlib.suppress(errors.NotFound):
            api.wait(engine_id, timeout=deadline - time.monotonic(), condition="removed")
