"""Runs of tools within bounds: a time limit, errors as answers, results that can be sent."""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from oubliette.api.tools import results
from oubliette.api.tools.context import LOG
from oubliette.api.tools.errors import ToolCallRefused, ToolError
from oubliette.api.tools.prepared import PreparedTool

if TYPE_CHECKING:
    from oubliette.api.tools.context import Call

_LONGEST: Final = 8000  # characters of an error that an agent reads


class GuardedTool(PreparedTool):
    """A tool whose every failure is an answer, except the end of the program."""

    @abc.abstractmethod
    async def carry_out(self, arguments: dict[str, Any], call: Call) -> Any:
        """Do what the tool does, and return any value.

        Raises:
            Exception: of any kind.
        """

    async def run(self, arguments: dict[str, Any], call: Call) -> Any:
        """Carry out one call and return its result as JSON values.

        Cancelling this ends an `async` function. A function in a worker thread cannot be ended: it
        sees `call.cancelled`, and goes on although its result is not awaited. Python waits for
        such a thread before the program ends.

        Raises:
            ToolCallRefused: there is no result; the message is for the agent.
        """
        scope = anyio.move_on_after(self.timeout)
        try:
            with scope:
                return self._sendable(await self.carry_out(arguments, call))
        except ToolCallRefused:
            raise
        except ToolError as error:
            raise ToolCallRefused(_shortened(str(error))) from error
        except asyncio.CancelledError:
            call.cancel()
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: something that the function awaited was cancelled.
            LOG.exception("tool %s awaited something that was cancelled", self.name)
            raise ToolCallRefused(f"{self.name}: was cancelled") from None
        except (KeyboardInterrupt, SystemExit):
            call.cancel()
            raise
        except BaseException as error:
            # Also what is no Exception, such as `pytest.fail`: an agent waits for the answer.
            LOG.exception("tool %s failed", self.name)
            raise ToolCallRefused(_shortened(described(error))) from error
        finally:
            if scope.cancelled_caught:
                call.cancel()
            call.end()
        LOG.warning("tool %s was given up after %g s", self.name, self.timeout)
        raise ToolCallRefused(f"{self.name}: had no result within {self.timeout:g} s")

    def _sendable(self, result: Any) -> Any:
        try:
            return results.plain(result)
        except results.NotJson as error:
            LOG.error("tool %s returned what is not JSON: %s", self.name, error)
            raise ToolCallRefused(
                f"{self.name}: its result, of type {type(result).__name__}, is not JSON: {error}"
            ) from None


def described(error: BaseException) -> str:
    """Return an error in one text: its kind and message, and those of the errors inside a group."""
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return "; ".join(described(inner) for inner in group.exceptions)
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # an error of the user's whose own text fails
        return kind
    return f"{kind}: {text}" if text else kind


def _shortened(text: str) -> str:
    """Return a text that is valid Unicode, and not longer than an agent should have to read."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
