"""LocalConnection, to a server that runs in this process without HTTP.

The program that embeds the server calls the same tools as clients do, with all rights and under a
principal of its own. Neither arguments nor results are turned into JSON text.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import structlog

from oubliette.errors import DeadlineExceeded, OublietteError, Unavailable
from oubliette.mcp_front.events.event_format import as_data
from oubliette.mcp_front.events.listen import ListenService
from oubliette.mcp_front.quotas import Quotas
from oubliette.server import running
from oubliette.tools.auth.scopes import Scope
from oubliette.tools.registry import carry_out, find
from oubliette.tools.spec import CallContext

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import System
    from oubliette.mcp_front.events.listener_client import ListenerClient
    from oubliette.server import Server

PRINCIPAL: Final = "program"
"""Principal of the embedding program, the same at each start on a home."""
CALL_SECONDS: Final = 60.0
BATCH_BYTES: Final = 1024 * 1024  # of events in one batch of a listener
_CONTEXT: Final = CallContext(
    principal=PRINCIPAL,
    token_id="embedded",  # noqa: S106 - not a secret; what the audit log shows
    scope=Scope(level="admin"),
    transport="program",
)


class LocalConnection:
    """Calls of tools in this process; made by `serving`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._services = server.services
        self._quotas = Quotas(server.context.config.callers)
        self._limits: set[asyncio.Timeout] = set()
        server.failed.add_done_callback(self._end_calls)

    @property
    def system(self) -> System:
        """The actors of the server; a program may start its own beside them."""
        return self._server.system

    @property
    def server(self) -> Server:
        return self._server

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        """Call a tool; arguments that are None count as absent.

        Raises:
            OublietteError: the tool failed.
            DeadlineExceeded: it took too long.
            Unavailable: the server has failed.
        """
        self._check()
        context = _CONTEXT
        if on_progress is not None:
            context = msgspec.structs.replace(_CONTEXT, progress=on_progress)
        given = {name: value for name, value in arguments.items() if value is not None}
        seconds = CALL_SECONDS if timeout is None else timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    answer = await carry_out(self._services, context, find(context, tool), given)
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            if not limit.expired() or isinstance(error, OublietteError):
                raise
            self._check()
            raise DeadlineExceeded(f"{tool} was not done within {seconds:g} s") from error
        return msgspec.to_builtins(answer, str_keys=True)

    def listener(self, caller_id: str, *, after: int | None) -> LocalListener:
        """A listener to the events of a caller's sessions after this cursor."""
        assert isinstance(self._services.listen, ListenService)
        return LocalListener(self._services.listen.link(_CONTEXT, caller_id), after)

    def serve_listeners(self) -> None:
        """Make `caller_listen` available, which the front does where there is HTTP."""
        system = self._server.system
        self._services.listen = ListenService(
            system.ref("callers"), system.ref, self._quotas, self._server.context.config.callers
        )

    def _end_calls(self, _: asyncio.Future[str]) -> None:
        """End the calls that wait for a server that has failed."""
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    def _check(self) -> None:
        failed = self._server.failed
        if failed.done():
            raise Unavailable(
                f"the embedded server has failed: {failed.result()}",
                hint="leave the block of oubliette.open() and open the home again",
            )

    async def aclose(self) -> None:
        """Do nothing: `serving` stops the server."""


class LocalListener:
    """Events of a caller's sessions, in the order of their commits; the caller's provider.

    Use as an async context manager.
    """

    def __init__(self, link: ListenerClient, after: int | None) -> None:
        self._link = link
        self._after = after
        self.cursor = -1
        """Seq of the last event that was returned; for `after` of another listener."""

    async def __aenter__(self) -> Self:
        opened = await self._link.open(after=self._after, provide=True, stream=True, again=True)
        self.cursor = opened.cursor
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._link.close("gone")

    async def next(self, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        """Return the next events, none after `seconds`, and why the listener ended, if it did."""
        batch = await self._link.next(self.cursor, seconds, BATCH_BYTES)
        self.cursor = batch.next
        again = batch.redelivered
        return [as_data(each, redelivered=each.seq in again) for each in batch.events], batch.ended


@contextlib.asynccontextmanager
async def serving(
    home: Path,
    config: Config,
    *,
    keep_agents: bool,
    agents: Sequence[object] = (),
    runtime: Any = None,
    clock: Clock | None = None,
) -> AsyncGenerator[LocalConnection]:
    """Run a server without HTTP for the time of the `with` block; return the connection to it.

    Args:
        home: The home, which is locked.
        config: The configuration.
        keep_agents: Whether agents outlive the block, for the next program on this home.
        agents: Agents of the program.
        runtime: Its container runtime; None: as configured.
        clock: Time of its deadlines and timers; None: the machine's.

    Raises:
        ConfigError: the home, the configuration or the sandbox is unusable; contains the remedy.
        HomeInUse: another process uses this home.
    """
    on_stop = "keep" if keep_agents else "end"
    config = msgspec.structs.replace(
        config, server=msgspec.structs.replace(config.server, on_stop=on_stop)
    )
    with _PROGRAM_LOG.used():
        async with running(
            home, config, http=False, agents=agents, runtime=runtime, clock=clock
        ) as server:
            connection = LocalConnection(server)
            connection.serve_listeners()
            yield connection


class _ProgramLog:
    """Our log, sent to the standard library's `logging` while a server is embedded.

    A program that has configured structlog itself keeps its own way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # servers may be embedded in several threads
        self._servers = 0
        self._factory = structlog.stdlib.LoggerFactory()

    @contextlib.contextmanager
    def used(self) -> Generator[None]:
        """Send it there for the time of the `with` block."""
        with self._lock:
            if self._servers == 0 and not structlog.is_configured():
                self._configure()
            self._servers += 1
        try:
            yield
        finally:
            with self._lock:
                self._servers -= 1
                ours = structlog.get_config()["logger_factory"] is self._factory
                if self._servers == 0 and ours:
                    structlog.reset_defaults()

    def _configure(self) -> None:
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=self._factory,
            cache_logger_on_first_use=False,
        )


_PROGRAM_LOG: Final = _ProgramLog()
