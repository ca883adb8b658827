"""End of an agent's process: its exit code and last output are reported, its remains killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.actors.session.messages import AgentGone
from oubliette.errors import OublietteError
from oubliette.runtime.guest.messages import Exit

if TYPE_CHECKING:
    from oubliette.actors.agent_process.out_of_memory import OutOfMemory
    from oubliette.actors.agent_process.standard_error import StandardError
    from oubliette.actors.agent_process.streams import AdapterFailed
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.runtime.guest.control_link import ControlLink

log = structlog.get_logger(__name__)

KILL_SECONDS = 2.0  # for the guest to handle the last signal


async def report_of(
    end: Exit | AdapterFailed,
    guest: GuestConnection,
    kernel: OutOfMemory,
    stderr: StandardError,
    *,
    requested: bool,
) -> AgentGone:
    """The report to the session of a process that has ended or is of no use.

    Args:
        end: its exit status, or the reason for which it is ended.
        guest: of its container.
        kernel: counts of the container's processes that were ended for lack of memory.
        stderr: of the process, whose last lines are part of the reason.
        requested: whether its end was requested; then nothing is explained.
    """
    if not isinstance(end, Exit):
        return AgentGone(reason=end.reason + await kernel.words(guest.current))
    if guest.draining and not requested:
        return AgentGone(reason="container lost: it was told to end")
    if end.signal is not None:
        reason = f"the agent was killed by signal {end.signal}"
    else:
        reason = f"the agent ended with exit code {end.code}"
    if not requested:
        reason += await kernel.words(guest.current)
        reason += await stderr.last_words(guest.info)
    return AgentGone(reason=reason, exit_code=end.code, signal=end.signal)


async def kill_remains(link: ControlLink | None, process_id: str | None, session_id: str) -> None:
    """End also the processes that the agent left behind in its process group.

    The guest keeps the exit status until its session has stored it and asks to forget it.
    """
    if link is None or process_id is None:
        return
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await link.signal(process_id, "KILL", tree=True)
    except (OublietteError, TimeoutError) as error:
        log.debug("kill failed", session_id=session_id, reason=str(error))
