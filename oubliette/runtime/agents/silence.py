"""Silences in the output of an agent whose turns end with one."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from oubliette.runtime.agents.base import AgentAdapter, AgentEvent
    from oubliette.runtime.guest.process_stream import ProcessStream, StreamItem

LONGEST: Final = 2.0
"""Seconds after which a silence counts although the agent goes on, with output of no turn."""


class HearsSilence(Protocol):
    """An adapter of an agent whose turns end with a silence; part of its `AgentAdapter`."""

    @property
    def pause(self) -> float:
        """Seconds without output after which `silence` is due; 0: a silence has no meaning now."""
        ...

    def silence(self) -> list[AgentEvent]:
        """The events of a silence, placed behind those of the last line."""
        ...


def pause_of(adapter: AgentAdapter | None) -> float:
    """Return the seconds without output after which an adapter has more events; 0: it has none."""
    pause: float = getattr(adapter, "pause", 0.0)
    return pause


def events_of_silence(adapter: AgentAdapter) -> list[AgentEvent]:
    """Return the events of a silence of its agent, or of the agent's end."""
    return cast("HearsSilence", adapter).silence() if pause_of(adapter) else []


async def with_silences(
    stream: ProcessStream, pause: Callable[[], float]
) -> AsyncGenerator[StreamItem | None, None]:
    """Yield the items of a stream, and None when nothing came for the seconds of `pause()`.

    Args:
        stream: Of the agent.
        pause: Returns the seconds, by what was read so far; 0: a silence has no meaning now.
    """
    loop, until = asyncio.get_running_loop(), math.inf
    while True:
        seconds = pause()
        until = min(until, loop.time() + LONGEST) if seconds else math.inf
        try:
            async with asyncio.timeout_at(min(loop.time() + seconds, until) if seconds else None):
                item = await stream.read()
        except TimeoutError:
            yield None
            continue
        if item is None:
            return
        yield item
