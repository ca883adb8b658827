"""`open` and `connect`: an `Oubliette` in this process, and one on a server, for blocking calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.api import opening as twins
from oubliette.api.opening import EMBEDDED_CALLER
from oubliette.sync.client import Oubliette

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from oubliette.api.client import OnExit


def open(  # noqa: A001 - as programs call it: oubliette.open()
    home: str | Path | None = None,
    *,
    config: Any = None,
    agents: Iterable[object] = (),
    runtime: object = None,
    on_exit: OnExit = "end",
    caller_id: str = EMBEDDED_CALLER,
    temporary: bool = False,
) -> Oubliette:
    """Return the whole system inside this process: no HTTP, no port, no key.

    Where a server of this user runs on the home (`oubliette serve`), the program uses that one,
    which its log shows: `config`, `agents`, `runtime`, `on_exit` and `Oubliette.system` are not for
    the process of another program, and raise `HomeInUse` then.

    Args:
        home: Folder of its state; None: as for the command line, `OUBLIETTE_HOME`, `./.oubliette`
            if it exists, else `~/.oubliette`.
        config: A `Config`; or settings by name, such as {"agents.default": "opencode"}, which take
            precedence over the home's file and the environment.
        agents: Agents of this program: functions decorated with `oubliette.agent`, or objects.
        runtime: A container runtime of this program.
        on_exit: What becomes of sessions that were started, when the block ends: they are ended, or
            kept running for the next program, or server, on this home.
        caller_id: Id under which tools are provided.
        temporary: Whether the home is a new folder that is removed at the end.
    """
    twin = twins.open(
        home,
        config=config,
        agents=agents,
        runtime=runtime,
        on_exit=on_exit,
        caller_id=caller_id,
        temporary=temporary,
    )
    return Oubliette(twin)


def connect(
    url: str,
    token: str | None = None,
    *,
    on_exit: OnExit = "end",
    caller_id: str | None = None,
    timeout: float = 60.0,
    reconnect_seconds: float = 60.0,
) -> Oubliette:
    """Return a server's system, over MCP.

    Args:
        url: Of the server, as it prints it: http://127.0.0.1:8080/mcp.
        token: An API key; None: the one in `OUBLIETTE_KEY`.
        on_exit: What becomes of sessions that were started, when the block ends.
        caller_id: Id under which tools are provided; None: a new one. One program at a time may
            use an id; a program that uses it again gets the requests that are open.
        timeout: Seconds for one call.
        reconnect_seconds: Seconds for which a server may be away before calls fail; one that was
            never reached is waited for 5 s.
    """
    twin = twins.connect(
        url,
        token,
        on_exit=on_exit,
        caller_id=caller_id,
        timeout=timeout,
        reconnect_seconds=reconnect_seconds,
    )
    return Oubliette(twin)
