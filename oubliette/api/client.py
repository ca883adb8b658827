"""Oubliette, the system as a program sees it: in this process, or on a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import msgspec

from oubliette.api._generated.project_calls import ProjectCalls
from oubliette.api.callers.caller import Caller
from oubliette.api.context import ClientContext
from oubliette.api.events.decoding import decode_event
from oubliette.api.owned_context import finish
from oubliette.api.project import PAGE
from oubliette.api.results.views import SessionInfo
from oubliette.api.session import Session
from oubliette.api.shared import subscribe
from oubliette.api.spawner import CLEANUP_SECONDS, end_quietly
from oubliette.contract.session import PermissionInfo
from oubliette.errors import Conflict, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path
    from types import TracebackType

    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.connection import SystemConnection
    from oubliette.api.shared import Subscriber, Subscription
    from oubliette.contract.events import Event
    from oubliette.kit import System

OnExit = Literal["end", "keep"]
ANSWER_SECONDS = 60.0


class Oubliette(ProjectCalls):
    """Projects and sessions of one system. Made by `open` and `connect`.

    When its block ends, the sessions that were started in it are ended, or kept, according to
    `on_exit`.

    It is an async context manager, and belongs to the event loop that opened it.

    Blocking:
        It is a context manager, and has an event loop in a thread of its own for the time of its
        block; any thread of the process may use it. When the block ends, calls that other threads
        make are cancelled.
    """

    def __init__(
        self,
        connecting: Callable[[], Awaitable[SystemConnection]],
        *,
        on_exit: OnExit,
        caller_id: str,
    ) -> None:
        """Prepare; nothing is opened before the block begins.

        Args:
            connecting: Opens the connection.
            on_exit: What becomes of the sessions that were started.
            caller_id: Id under which tools are provided that come with a spawn or a message.
        """
        if on_exit not in {"end", "keep"}:
            raise InvalidParameter(
                f"on_exit: {on_exit!r} is neither 'end' nor 'keep'", field="on_exit"
            )
        self._connecting = connecting
        self._on_exit = on_exit
        self.caller_id: str = caller_id
        """Id under which this program provides the tools of its sessions."""
        super().__init__()
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ the block

    async def __aenter__(self) -> Self:
        """Open it, as `start` does."""
        return await self.start()

    async def start(self) -> Self:
        """Open it without a block, and return it; close it yourself then.

        On an event loop other than that of asyncio it raises `Conflict`.

        Raises:
            HomeInUse: another process uses the home.
            ConfigError: the home or the configuration is unusable.
            Conflict: it was opened before.

        Blocking:
            The thread of its event loop starts with it.
        """
        _check_loop()
        if self._shared is not None:
            raise Conflict("this Oubliette was opened before", hint="make another one")
        self._shared = ClientContext(await self._connecting(), self.caller_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.aclose()

    async def aclose(self) -> None:
        """End what was started, unless it is kept, and close; a second time does nothing.

        Cancelling this is raised when all is closed. Calls that wait then raise `Closed`.

        Blocking:
            Calls that wait in other threads then raise `Closed`.
        """
        shared = self._shared
        if shared is None:
            return
        if self._closing is None:
            shared.check()
            shared.closed = True
            self._closing = asyncio.create_task(self._close(shared), name="end of an Oubliette")
        elif self._closing.done():
            return
        await finish(self._closing)

    async def _close(self, shared: ClientContext) -> None:
        try:
            await shared.until_started(CLEANUP_SECONDS)
            if self._on_exit == "end":
                async with anyio.create_task_group() as ends:
                    for session_id in shared.started:
                        ends.start_soon(end_quietly, shared, session_id)
        finally:
            try:
                await shared.aclose()
            finally:
                await shared.connection.aclose()

    def __enter__(self) -> Self:
        """Refuse: it is an async context manager.

        Raises:
            Conflict: always.
        """
        raise Conflict(
            "Oubliette is an async context manager: `async with`",
            hint="in scripts and notebooks: with oubliette.sync.open() as ob",
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    # ------------------------------------------------------------------ sessions and callers

    async def sessions(
        self,
        *,
        status: str | list[str] | None = None,
        text: str | None = None,
        waiting: bool = False,
        limit: int = PAGE,
    ) -> list[SessionInfo]:
        """Return sessions of all projects, children included, newest first.

        Args:
            status: Only those with this status, or with one of several.
            text: Only those whose title or last prompt contains it, in any case.
            waiting: Whether to ask each live one what it waits for.
            limit: Maximum number to return.
        """
        found: list[SessionInfo] = []
        cursor: str | None = None
        while True:
            page = await self._parts.call(
                "session_list",
                {
                    "status": status,
                    "text": text,
                    "waiting": waiting,
                    "newest_first": True,
                    "limit": min(PAGE, limit - len(found)),
                    "cursor": cursor,
                },
            )
            found += msgspec.convert(page["sessions"], list[SessionInfo], strict=False)
            cursor = page["next_cursor"]
            if cursor is None or len(found) >= limit:
                return found

    async def session(
        self,
        session_id: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
    ) -> Session:
        """Return an existing session, such as one of an earlier run of this program.

        Args:
            session_id: Its id.
            tools: Tools that answer its calls from now on, those that are open included; they have
                to be the ones that it was started with.
            on_permission: Policy for its permissions from now on.

        Raises:
            NotFound: there is no such session.
        """
        shared = self._parts
        session = Session(shared, await shared.call("session_get", {"session_id": session_id}))
        lease = await shared.loops.prepare(tools, on_permission)
        if lease is not None:
            lease.add(session.id, session.workspace_id)
        return session

    def caller(
        self,
        caller_id: str,
        tools: Iterable[object],
        *,
        on_permission: OnPermission | None = None,
        once: str | Path | None = None,
    ) -> Caller:
        """Return a caller: tools under a name of its own, for any number of sessions.

        Args:
            caller_id: Its id; a program that opens it again later gets the requests that are open.
            tools: Its tools.
            on_permission: Policy for what agents ask permission for.
            once: SQLite file of answers: a request that is delivered again is answered from there.
        """
        return Caller(self._parts, caller_id, tools, on_permission=on_permission, once=once)

    async def subscribe(
        self,
        subscriber: Subscriber,
        *,
        session_id: str | None = None,
        project_id: str | None = None,
        after: int | None = -1,
        name: str | None = None,
    ) -> Subscription:
        """Send the events of a session, a project or all to an actor of the program.

        In process only. The actor gets `oubliette.messages.EventsCommitted`, in the order of the
        log and without a gap, also over restarts of the actor.

        Args:
            subscriber: The actor, or its name.
            session_id: Only events of this session.
            project_id: Only events of sessions of this project.
            after: Cursor of the last event that it knows; None: from now on.
            name: Name under which the cursor is kept in the home, for the next start.

        Raises:
            Conflict: this is a connection to a server.
        """
        return await subscribe(
            self._parts,
            subscriber,
            session_id=session_id,
            project_id=project_id,
            after=after,
            name=name,
        )

    async def read_events(
        self,
        after: int | None = -1,
        *,
        project_id: str | None = None,
        session_id: str | None = None,
        types: list[str] | None = None,
        text: str | None = None,
        wait_seconds: float = 0.0,
    ) -> tuple[list[Event], int]:
        """Return the next events of all sessions, in the order of commits, and the new cursor.

        Args:
            after: Cursor that the call before has returned; -1: from the beginning; None: from now
                on.
            project_id: Only events of sessions of this project.
            session_id: Only events of this session.
            types: Only events of these types.
            text: Only events with this text in their fields, in any case.
            wait_seconds: Time to wait for the first event, if there is none.
        """
        chosen = {"project_id": project_id, "session_id": session_id, "types": types, "text": text}
        while True:
            page = await self._parts.call(
                "event_list",
                {**chosen, "after": after, "wait_seconds": wait_seconds},
                timeout=wait_seconds + ANSWER_SECONDS,
            )
            after = following = page["next"]
            if page["events"] or not page["more"]:
                return [decode_event(each) for each in page["events"]], following

    # ------------------------------------------------------------------ permissions

    async def permissions(self, project_id: str | None = None) -> list[PermissionInfo]:
        """Return what agents ask permission for and is not decided yet; of many the oldest 1000.

        Args:
            project_id: Only requests of sessions of this project.
        """
        page = await self._parts.call("permission_list", {"project_id": project_id, "limit": 1000})
        return msgspec.convert(page["permissions"], list[PermissionInfo], strict=False)

    async def answer_permission(
        self,
        request: PermissionInfo,
        decision: Literal["allow", "deny"],
        *,
        remember: Literal["once", "session"] = "once",
    ) -> None:
        """Decide a permission request that `permissions` has returned.

        Args:
            request: The request.
            decision: Whether the agent may do what it asks for.
            remember: `session`: the decision holds for all later requests of the session with the
                same `asks_for`.

        Raises:
            NotFound: it is decided already, or this program may not answer it.
        """
        arguments = {
            "session_id": request.session_id,
            "request_id": request.request_id,
            "decision": decision,
            "remember": remember,
        }
        await self._parts.call("permission_response", arguments)

    # ------------------------------------------------------------------ underneath

    @property
    def system(self) -> System:
        """The System of actors, in which a program may start its own; in process only.

        Raises:
            Conflict: this is a connection to a server.
        """
        system: System | None = getattr(self._parts.connection, "system", None)
        if system is None:
            raise Conflict(
                "the actors of a server are in its process, not in this one",
                hint="oubliette.open() runs them here",
            )
        return system

    async def call(
        self, tool: str, *, timeout: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Call any of Oubliette's tools (docs/tools.md), and return its result as JSON values.

        Args:
            tool: Its name.
            timeout: Seconds; 60 unless given.
            arguments: Its arguments; those that are None count as absent.

        Raises:
            OublietteError: the tool failed.
        """
        return await self._parts.call(tool, arguments, timeout=timeout)


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise Conflict(
            "Oubliette runs on asyncio, and no event loop of asyncio runs here",
            hint='with anyio: anyio.run(main, backend="asyncio"), with trio and without a loop:'
            " oubliette.sync",
        ) from None
