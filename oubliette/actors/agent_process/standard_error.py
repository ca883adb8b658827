"""Standard error of an agent: it goes into a log, and its end into the error of its session."""

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
    """Standard error of one agent's process; owned by the actor of that process."""

    def __init__(
        self, context: ActorContext, session: Session, *, api_key: str | None = None
    ) -> None:
        self._context = context
        self._session = session
        self._api_key = api_key
        self._kept = 0
        self._end: bytes | None = b"" if session.process_err == 0 else None
        """The end of its output; None: nothing since the stream was attached again."""
        self.offset = session.process_err
        """Offset up to which it was read."""

    def begin(self) -> None:
        """Reset for another process of the same agent that is about to start."""
        self.offset, self._end = 0, b""

    async def keep(self, output: Output) -> None:
        """Append output to the session's log, as far as there is room."""
        self._end = ((self._end or b"") + output.data)[-KEPT:]
        room = LIMIT - self._kept
        if room > 0:
            data = output.data[:room]
            self._kept += len(data)
            path = self._context.folders.stderr_log(self._session.id)
            await asyncio.to_thread(_append, path, data)
        self.offset = output.offset + len(output.data)

    async def last_words(self, info: ContainerInfo | None) -> str:
        """Return `last_words` of this process's output, or of the log if there is none."""
        return await last_words(
            self._context, self._session, info, self._end, api_key=self._api_key
        )


async def last_words(
    context: ActorContext,
    session: Session,
    info: ContainerInfo | None,
    output: bytes | None = None,
    *,
    api_key: str | None = None,
) -> str:
    """`: ` and the last lines of an agent's standard error, to follow a reason; "" without any.

    Args:
        context: Of the server.
        session: the session of the agent.
        info: its container; None: not known any more.
        output: what was read; None: what the session's log has.
        api_key: the key in its environment, which may not be quoted.
    """
    try:
        if output is None:
            output = await asyncio.to_thread(_end_of, context.folders.stderr_log(session.id))
        if not output.strip():
            return ""
        words = quoted(output, await _secrets(context, session, info, api_key))
    except (OublietteError, OSError) as error:
        # Readers of the error may not read secrets: unless these are known, nothing is quoted.
        log.info("not quoted", session_id=session.id, reason=str(error))
        return ""
    return f": {words}" if words else ""


async def _secrets(
    context: ActorContext, session: Session, info: ContainerInfo | None, api_key: str | None
) -> set[str]:
    settings = await agent_session(context, session, api_key)
    found = {settings.pairing_secret, settings.api_key or "", *settings.credentials.values()}
    runtime = context.agents.get(session.agent)
    if runtime is not None and info is not None:
        command = await asyncio.to_thread(runtime.command, settings, info.inside)
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
