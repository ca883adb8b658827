"""An agent's standard error: it goes into a log, and its end into the error of its session."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.agent_process.launch import agent_session
from oubliette.errors import OublietteError
from oubliette.runtime.agents.environment import referred
from oubliette.runtime.agents.last_words import KEPT, quoted, secrets_in

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.records import Session
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.guest.process_stream import Output

log = structlog.get_logger(__name__)

LIMIT: Final = 4 * 1024 * 1024  # bytes of standard error kept per session


class StandardError:
    """What one agent's process says there; belongs to the actor of that process."""

    def __init__(
        self, context: ActorContext, session: Session, *, api_key: str | None = None
    ) -> None:
        self._context = context
        self._session = session
        self._api_key = api_key
        self._kept = 0
        self._end: bytes | None = b"" if session.process_err == 0 else None
        """The end of what it has said; None: nothing since we attached to it again."""
        self.offset = session.process_err
        """Up to where it was read."""

    def begin(self) -> None:
        """Another process of the same agent is about to start."""
        self.offset, self._end = 0, b""

    async def keep(self, output: Output) -> None:
        """Put it into the session's log, as far as there is room."""
        self._end = ((self._end or b"") + output.data)[-KEPT:]
        room = LIMIT - self._kept
        if room > 0:
            data = output.data[:room]
            self._kept += len(data)
            path = self._context.folders.stderr_log(self._session.id)
            await asyncio.to_thread(_append, path, data)
        self.offset = output.offset + len(output.data)

    async def last_words(self, info: ContainerInfo | None) -> str:
        """As `last_words`; of what was heard of this process, where anything was."""
        return await last_words(
            self._context, self._session, info, self._end, api_key=self._api_key
        )


async def last_words(
    context: ActorContext,
    session: Session,
    info: ContainerInfo | None,
    heard: bytes | None = None,
    *,
    api_key: str | None = None,
) -> str:
    """`: ` and the last lines of an agent's standard error, to follow a reason; "" without any.

    Args:
        context: Of the server.
        session: whose agent it is.
        info: its container; None: not known any more.
        heard: what was heard; None: what the session's log has.
        api_key: the key in its environment, which may not be quoted.
    """
    try:
        if heard is None:
            heard = await asyncio.to_thread(_end_of, context.folders.stderr_log(session.id))
        if not heard.strip():
            return ""
        words = quoted(heard, await _secrets(context, session, info, api_key))
    except (OublietteError, OSError) as error:
        # Whoever reads the error may not read secrets: unless they are known, nothing is quoted.
        log.info("not quoted", session_id=session.id, reason=str(error))
        return ""
    return f": {words}" if words else ""


async def _secrets(
    context: ActorContext, session: Session, info: ContainerInfo | None, api_key: str | None
) -> set[str]:
    """What the agent was told and nobody else may read."""
    told = await agent_session(context, session, api_key)
    found = {told.pairing_secret, told.api_key or "", *told.credentials.values()}
    runtime = context.agents.get(session.agent)
    if runtime is not None and info is not None:
        command = await asyncio.to_thread(runtime.command, told, info.inside)
        found |= secrets_in(command.env, referred(context.config))
    return found


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - KEPT))
            return file.read()
    except FileNotFoundError:
        return b""


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
