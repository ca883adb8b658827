"""`open` and `connect`: an `Oubliette` in this process, and one on a server."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette import errors, ids
from oubliette.api.client import OnExit, Oubliette
from oubliette.api.errors import from_wire, to_wire
from oubliette.api.owned_context import OwnedContext
from oubliette.errors import HomeInUse, InvalidParameter, OublietteError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from oubliette.api.connection import EventListener, SystemConnection
    from oubliette.clock import Clock

EMBEDDED_CALLER: Final = "program"
"""Caller id in process: one program has the home, and the next one goes on with its requests."""


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

    Args:
        home: Folder of its state, which no other process may use; None: as for the command line,
            `OUBLIETTE_HOME`, `./.oubliette` if it exists, else `~/.oubliette`.
        config: A `Config`; or settings by name, such as {"agents.default": "opencode"}, which take
            precedence over the home's file and the environment.
        agents: Agents of this program: functions decorated with `oubliette.agent`, or objects.
        runtime: A container runtime of this program.
        on_exit: What becomes of sessions that were started, when the block ends: they are ended, or
            kept running for the next program, or server, on this home.
        caller_id: Id under which tools are provided.
        temporary: Whether the home is a new folder that is removed at the end.
    """
    return open_on(
        None,
        home,
        config=config,
        agents=agents,
        runtime=runtime,
        on_exit=on_exit,
        caller_id=caller_id,
        temporary=temporary,
    )


def open_on(
    clock: Clock | None,
    home: str | Path | None,
    *,
    config: Any = None,
    agents: Iterable[object] = (),
    runtime: object = None,
    on_exit: OnExit = "end",
    caller_id: str = EMBEDDED_CALLER,
    temporary: bool = False,
) -> Oubliette:
    """Return what `open` does, with deadlines on this clock; for `oubliette.testing`."""
    if temporary and (home is not None or on_exit == "keep"):
        raise InvalidParameter(
            "temporary: a temporary home is removed at the end; give no home, and on_exit='end'",
            field="temporary",
        )

    async def connecting() -> SystemConnection:
        context = _serving(
            home,
            config,
            agents=tuple(agents),
            runtime=runtime,
            on_exit=on_exit,
            temporary=temporary,
            clock=clock,
        )
        owned = OwnedContext(context, "oubliette")
        return _Owned(await owned.enter(), owned)

    return Oubliette(connecting, on_exit=on_exit, caller_id=ids.check_caller_id(caller_id))


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

    async def connecting() -> SystemConnection:
        from oubliette.api.http import HttpConnection

        return HttpConnection(url, token, timeout=timeout, reconnect_seconds=reconnect_seconds)

    chosen = f"program-{ids.new_uuid()[:8]}" if caller_id is None else caller_id
    return Oubliette(connecting, on_exit=on_exit, caller_id=ids.check_caller_id(chosen))


class _Owned:
    """Connection to the embedded server, which is stopped when the connection is closed."""

    def __init__(self, connection: Any, owned: OwnedContext[Any]) -> None:
        self._connection = connection
        self._owned = owned
        self.system = connection.system
        self.server = connection.server

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        """Call a tool."""
        try:
            return await self._connection.call(
                tool, arguments, timeout=timeout, on_progress=on_progress
            )
        except OublietteError as error:
            if type(error).__module__ == errors.__name__:
                raise
            # A class of the server's inside: programs get the one that clients get.
            raise from_wire(to_wire(error)) from error

    def listener(self, caller_id: str, *, after: int | None) -> EventListener:
        """Return a listener."""
        return self._connection.listener(caller_id, after=after)

    async def aclose(self) -> None:
        """Stop the server."""
        await self._owned.leave()


@contextlib.asynccontextmanager
async def _serving(
    home: str | Path | None,
    config: Any,
    *,
    agents: tuple[object, ...],
    runtime: object,
    on_exit: OnExit,
    temporary: bool,
    clock: Clock | None,
) -> AsyncGenerator[Any]:
    from oubliette.config.loader import find_home, load
    from oubliette.config.schema import Config
    from oubliette.runtime.files.home import IN_USE_HINT
    from oubliette.server.embedded import serving

    with contextlib.ExitStack() as stack:
        if temporary:
            folder = tempfile.TemporaryDirectory(prefix="oubliette-", ignore_cleanup_errors=True)
            place = Path(stack.enter_context(folder)) / "home"
        else:
            place = find_home(home)
        chosen = config
        if not isinstance(config, Config):
            chosen = load(place, overrides=_flat(config), origin="config").config
        try:
            async with serving(
                place,
                chosen,
                keep_agents=on_exit == "keep",
                agents=agents,
                runtime=runtime,
                clock=clock,
            ) as connection:
                yield connection
        except HomeInUse as error:
            if error.hint == IN_USE_HINT:
                error.hint = (
                    "use a server on it with oubliette.connect(url, token): `oubliette serve` has"
                    " printed the url, and `oubliette token create` makes a token; or use the"
                    ' Oubliette that this process has opened, or open another home: open("folder")'
                )
            raise


def _flat(config: object) -> dict[str, object]:
    """Return settings by `section.key`, from tables or names with dots."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InvalidParameter(
            f"config: {type(config).__name__} is neither a Config nor a dict of settings",
            field="config",
        )
    flat: dict[str, object] = {}
    tables: dict[str, Any] = config  # type: ignore[assignment]
    for name, value in tables.items():
        if "." not in name and isinstance(value, dict):
            inner: dict[str, object] = value  # type: ignore[assignment]
            flat.update({f"{name}.{key}": each for key, each in inner.items()})
        else:
            flat[name] = value
    return flat
