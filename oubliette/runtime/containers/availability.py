"""Availability of the engine, for `/ready`, which is queried often and must answer soon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import ContainerRuntime, RuntimeStatus

ANSWER_SECONDS: Final = 2.0


class EngineAvailability:
    """Availability check that runs one query at a time, however many callers wait."""

    def __init__(self, runtime: ContainerRuntime) -> None:
        self._runtime = runtime
        self._question: asyncio.Task[RuntimeStatus] | None = None

    async def problem(self) -> str | None:
        """Return why no container can be started now, with a remedy; None if one can."""
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._runtime.ping(), name="engine presence")
        question = self._question
        await asyncio.wait({question}, timeout=ANSWER_SECONDS)
        name = self._runtime.name
        if not question.done():
            return f"containers: {name} has not answered for {ANSWER_SECONDS:g} s"
        status = question.result()
        if status.ok:
            return None
        remedy = f" (hint: {status.remedy})" if status.remedy else ""
        return f"containers: {status.reason or f'{name} does not work'}{remedy}"

    async def aclose(self) -> None:
        if self._question is not None:
            self._question.cancel()
            await asyncio.gather(self._question, return_exceptions=True)
