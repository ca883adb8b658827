"""Spawner, what a project and a tree have in common: they run prompts in sessions of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from oubliette.api.spawner import AT_ONCE, SessionOptions
from oubliette.api.tools.objects import listed_tools
from oubliette.sync.caller import Caller
from oubliette.sync.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.api import spawner as twins
    from oubliette.api.events.turn_result import TurnResult
    from oubliette.errors import OublietteError
    from oubliette.sync.portal_thread import PortalThread

T = TypeVar("T")


class SpawnOptions(SessionOptions, total=False):
    """Options of a new session, all optional."""

    caller: Caller | None
    """Caller that provides the tools, instead of `tools` and `on_permission`."""


class Spawner:
    """Base of `Project` and `Tree`."""

    def __init__(self, thread: PortalThread, twin: twins.Spawner) -> None:
        self._thread = thread
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin)

    def spawn(self, prompt: str, **options: Unpack[SpawnOptions]) -> Session:
        """Start a session with its first message; return when both are stored.

        Args:
            prompt: For the agent.
            options: See `SpawnOptions`.

        Raises:
            BadTool: a tool cannot be offered.
            LimitExceeded: a limit of the project or of the tree refuses the session.
            InvalidParameter: an option is invalid; its name is in `field`.
        """
        given = _for_twin(options)
        return Session(self._thread, self._thread.call(lambda: self._twin.spawn(prompt, **given)))

    @overload
    def run(
        self, prompt: str, *, returns: None = None, **options: Unpack[SpawnOptions]
    ) -> TurnResult: ...

    @overload
    def run(
        self, prompt: str, *, returns: type[T], attempts: int = 3, **options: Unpack[SpawnOptions]
    ) -> T: ...

    @overload
    def run(
        self, prompt: str, *, returns: object, attempts: int = 3, **options: Unpack[SpawnOptions]
    ) -> Any: ...

    def run(
        self,
        prompt: str,
        *,
        returns: Any = None,
        attempts: int = 3,
        **options: Unpack[SpawnOptions],
    ) -> Any:
        """Run one prompt in a session of its own, which is ended afterwards; return the answer.

        KeyboardInterrupt interrupts the turn and ends the session.

        Args:
            prompt: For the agent.
            returns: Type of the answer: the agent gets its JSON Schema, its answer is validated,
                and errors in it are sent back. None: the answer is text.
            attempts: Maximum of answers of the wrong type.
            options: See `SpawnOptions`.

        Returns:
            A `TurnResult`; with `returns` a value of that type.

        Raises:
            SessionFailed: the agent failed; contains the reason.
            ResultInvalid: no answer was of the type `returns`.
            BadResultType: the type has no JSON Schema.
            AgentNeverSawTools: the agent has not fetched the tools.
        """
        given = _for_twin(options)
        return self._thread.call(
            lambda: self._twin.run(prompt, returns=returns, attempts=attempts, **given)
        )

    @overload
    def map(
        self,
        prompts: Iterable[str],
        *,
        at_once: int = AT_ONCE,
        returns: None = None,
        **options: Unpack[SpawnOptions],
    ) -> list[TurnResult | OublietteError]: ...

    @overload
    def map(
        self,
        prompts: Iterable[str],
        *,
        at_once: int = AT_ONCE,
        returns: type[T],
        attempts: int = 3,
        **options: Unpack[SpawnOptions],
    ) -> list[T | OublietteError]: ...

    @overload
    def map(
        self,
        prompts: Iterable[str],
        *,
        at_once: int = AT_ONCE,
        returns: object,
        attempts: int = 3,
        **options: Unpack[SpawnOptions],
    ) -> list[Any]: ...

    def map(
        self,
        prompts: Iterable[str],
        *,
        at_once: int = AT_ONCE,
        returns: Any = None,
        attempts: int = 3,
        **options: Unpack[SpawnOptions],
    ) -> list[Any]:
        """Run each prompt as `run` does, several at the same time; return the answers in order.

        A part that fails does not stop the others: its error stands in its place. KeyboardInterrupt
        cancels all parts.

        Args:
            prompts: One for each session.
            at_once: Maximum of sessions at the same time.
            returns: As in `run`.
            attempts: As in `run`.
            options: See `SpawnOptions`.

        Raises:
            InvalidParameter: `at_once` is less than 1, or there is no such option.
        """
        given = _for_twin(options)
        listed = list(prompts)
        return self._thread.call(
            lambda: self._twin.map(
                listed, at_once=at_once, returns=returns, attempts=attempts, **given
            )
        )


def _for_twin(options: SpawnOptions) -> twins.SpawnOptions:
    """Return the options for the asynchronous API; iterables are read here, in their thread."""
    given: dict[str, Any] = {**options}
    caller = options.get("caller")
    if isinstance(caller, Caller):
        given["caller"] = caller.twin
    tools = options.get("tools")
    if tools is not None:
        given["tools"] = listed_tools(tools)
    return cast("twins.SpawnOptions", given)
