"""Files of the conversation that a fork begins with, for each process until its first turn ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.store.outages import once_back
from oubliette.errors import RuntimeFailure
from oubliette.runtime.agents.base import forks_conversations
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.records import Session

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 64 * 1024 * 1024
"""Size of a file that is read at most."""
MODE: Final = 0o600


async def conversation_files(
    context: ActorContext, session: Session
) -> dict[str, tuple[bytes, int]]:
    """Return files for HOME of a fork whose first turn has not ended, with their modes.

    An agent that ends in that turn begins it again with what it knew then.
    """
    agent = forks_conversations(context.agent(session.agent))
    if agent is None or session.conversation != "native" or session.forked_from is None:
        return {}
    first = await once_back(lambda: context.reader.turn(session.id, 1))
    if first is None or first.state == "done":
        return {}
    home = context.folders.session_home(session.project_id, session.id)
    content = await asyncio.to_thread(read_conversation, home, agent.conversation_file)
    files = agent.forked_files(content, 0)
    return {name: (text, MODE) for name, text in files.items()}


def read_conversation(home: Path, name: str) -> bytes | None:
    """Return what an agent has written; None: nothing that can be read."""
    try:
        with safe_files.opened(home) as folder:
            return safe_files.read(folder, name, MAX_BYTES)
    except FileNotFoundError:
        return None
    except RuntimeFailure as error:
        log.warning("a fork begins without the conversation", reason=str(error))
        return None
