"""Asking for a typed result: prompt, answer, and again with the error in the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from oubliette.api.errors import ResultInvalid
from oubliette.api.results.types import ResultType, result_type
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.api.events.turn_result import TurnResult

T = TypeVar("T")
ATTEMPTS: Final = 3
"""Answers that an agent may give."""


@overload
async def ask_for_result(
    kind: type[T] | ResultType[T],
    prompt: str,
    send: Callable[[str], Awaitable[TurnResult]],
    attempts: int = ATTEMPTS,
) -> T: ...
@overload
async def ask_for_result(
    kind: object,
    prompt: str,
    send: Callable[[str], Awaitable[TurnResult]],
    attempts: int = ATTEMPTS,
) -> Any: ...
async def ask_for_result(
    kind: Any,
    prompt: str,
    send: Callable[[str], Awaitable[TurnResult]],
    attempts: int = ATTEMPTS,
) -> Any:
    """Return an agent's answer as a value of a type.

    An answer that is not of the type is answered with the place of the error, until there were
    `attempts` answers.

    Args:
        kind: The type, as `result_type` takes it, or what that returns.
        prompt: The message to the agent; a description of the type is added.
        send: Sends a message to the agent and returns the result of its turn. It is called once
            for each attempt, and has to reach the same session each time.
        attempts: Maximum number of answers.

    Raises:
        BadResultType: the type has no JSON Schema.
        InvalidParameter: `attempts` is less than 1.
        ResultInvalid: no answer is of the type; it has the last answer and the error in it.
    """
    if attempts < 1:
        raise InvalidParameter(f"attempts is {attempts}", field="attempts", hint="1 or more")
    wanted = cast("ResultType[Any]", kind) if isinstance(kind, ResultType) else result_type(kind)
    message = wanted.prompt(prompt)
    number = 0
    while True:
        turn = await send(message)
        number += 1
        try:
            return wanted.read(turn.text)
        except ResultInvalid as error:
            if number >= attempts:
                raise ResultInvalid(
                    f"the agent gave no {wanted.name} in {number} answers: {error.reason}",
                    answer=turn.text,
                    reason=error.reason,
                    attempts=number,
                    hint="allow more attempts, or make the type simpler",
                ) from error
            message = wanted.prompt_again(error.reason)
