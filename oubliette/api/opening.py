"""`open` and `connect`: an `Oubliette` in this process, and one on a server."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from oubliette import errors, ids
from oubliette.api.client import OnExit, Oubliette
from oubliette.api.errors import from_wire, to_wire
from oubliette.api.owned_context import OwnedContext
from oubliette.errors import HomeInUse, InvalidParameter, OublietteError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from oubliette.api.connection import EventListener, SystemConnection
    from oubliette.clock import Clock
    from oubliette.kit import System

EMBEDDED_CALLER: Final = "program"
"""Caller id in process: one program has the home, and the next one goes on with its requests."""
KEY_SECONDS: Final = 365 * 24 * 3600.0
"""Time after which the key of a program expires that was killed before it revoked it."""
CONTROL_SECONDS: Final = 10.0
_log = logging.getLogger("oubliette")


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

    own = {"config": config, "agents": agents, "runtime": runtime, "on_exit": on_exit != "end"}

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
        try:
            return _Owned(await owned.enter(), owned)
        except HomeInUse as error:
            from oubliette.config.loader import find_home

            given = [f"{name}=" for name, value in own.items() if value]
            attached = await _attached(find_home(home), error, given) if clock is None else None
            if attached is None:
                raise
            if caller_id == EMBEDDED_CALLER:  # of several programs on a server each has its own
                system.caller_id = _new_caller_id()
            return attached

    system = Oubliette(connecting, on_exit=on_exit, caller_id=ids.check_caller_id(caller_id))
    return system


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

    chosen = _new_caller_id() if caller_id is None else caller_id
    return Oubliette(connecting, on_exit=on_exit, caller_id=ids.check_caller_id(chosen))


def _new_caller_id() -> str:
    return f"program-{ids.new_uuid()[:8]}"


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


class _Attached:
    """Connection to the server that runs on the home, with a key of its own.

    Args:
        home: The home.
        url: Of the server.
        key: As `token_create` has returned it.
    """

    def __init__(self, home: Path, url: str, key: Mapping[str, Any]) -> None:
        from oubliette.api.http import HttpConnection

        self._home = home
        self._key_id = key["token_id"]
        self._http = HttpConnection(url, key["token"])
        self.call = self._http.call
        self.listener = self._http.listener

    @property
    def system(self) -> System:
        """Refuse: the actors are in the process of the server.

        Raises:
            HomeInUse: always.
        """
        raise HomeInUse(
            f"the actors of {self._home} are in the process of the server that runs on it",
            hint="oubliette stop ends it; or open another home",
        )

    async def aclose(self) -> None:
        """Close it, and revoke the key; a server that has gone keeps that until it expires."""
        try:
            await self._http.aclose()
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(OublietteError):
                await anyio.to_thread.run_sync(self._revoke)

    def _revoke(self) -> None:
        from oubliette.api.control import ControlClient

        with ControlClient(self._home) as client:
            client.call("token_revoke", {"token_id": self._key_id}, CONTROL_SECONDS)


async def _attached(home: Path, error: HomeInUse, given: list[str]) -> _Attached | None:
    """Return a connection to the server that uses the home; None if it is used by no server.

    Raises:
        HomeInUse: the program has `given` what only a process of its own can have.
    """
    from oubliette.api.control import ControlClient
    from oubliette.server.embedded import PRINCIPAL

    def key_of_server() -> tuple[str, dict[str, Any]]:
        with ControlClient(home) as client:
            url = client.status()["url"]
            if given:
                return url, {}
            wanted = {
                "name": f"oubliette.open of process {os.getpid()}",
                "scope": "admin",
                "principal": PRINCIPAL,
                "expires_in_seconds": KEY_SECONDS,
            }
            return url, client.call("token_create", wanted, CONTROL_SECONDS)

    try:
        url, key = await anyio.to_thread.run_sync(key_of_server)
    except Unavailable:
        return None
    if given:
        raise HomeInUse(
            f"a server runs on {home}, which open() would use, but {', '.join(given)} is for a"
            " process of its own",
            hint=f"leave it out; or {error.hint}",
        ) from error
    _log.info("a server runs on %s: it is used, at %s", home, url)
    return _Attached(home, url, key)


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
