"""Spawner, what a project and a tree have in common: they run prompts in sessions of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from oubliette import ids
from oubliette.api.callers.caller import check_caller
from oubliette.api.owned_context import finish
from oubliette.api.session import Session, end_session
from oubliette.errors import InvalidParameter, OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.api.callers.caller import Caller
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.context import ClientContext
    from oubliette.api.events.turn_result import TurnResult

T = TypeVar("T")

SPAWN_SECONDS = 120.0
COPY_SECONDS = 360.0  # with a copy of a workspace
CLEANUP_SECONDS = 15.0
AT_ONCE = 4


class SpawnerBase:
    """Base of `Project` and `Tree`."""

    def __init__(self, shared: ClientContext, project_id: str) -> None:
        self._shared = shared
        self._project_id = project_id

    def _fixed(self) -> dict[str, Any]:
        return {}

    def _was_spawned(self, session: Session) -> None:
        """Note a session that was started."""

    async def _spawn(self, prompt: str, options: dict[str, Any]) -> Session:
        """Start a session with its first message; return when both are stored.

        Args:
            prompt: For the agent.
            options: Of the session.

        Raises:
            BadTool: a tool cannot be offered.
            LimitExceeded: a limit of the project or of the tree refuses the session.
            InvalidParameter: an option is invalid; its name is in `field`.
        """
        self._shared.check()
        # The call is not given up half way: a session that is started has an owner.
        task = self._shared.start_session(self._started(prompt, **options))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                task.add_done_callback(self._abandon)
            raise

    async def _started(
        self,
        prompt: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
        caller: Caller | None = None,
        autonomy: str | None = None,
        new_workspace: bool | None = None,
        workspace: str | None = None,
        **same: Any,
    ) -> Session:
        check_caller(caller)
        lease = None
        if caller is None:
            lease = await self._shared.loops.prepare(tools, on_permission)
        elif tools is not None or on_permission is not None:
            raise InvalidParameter(
                "caller: it provides tools and permissions; give either it or them", field="caller"
            )
        provided = {} if lease is None else lease.arguments()
        arguments: dict[str, Any] = {
            **same,
            "project_id": self._project_id,
            "prompt": prompt,
            "new_session": True,
            "autonomy": autonomy or ("ask" if on_permission is not None else None),
            "create_workspace": new_workspace or None,
            "workspace": workspace,
            **provided,
            **({} if caller is None else caller.arguments()),
            **self._fixed(),
        }
        timeout = SPAWN_SECONDS if workspace is None else COPY_SECONDS
        try:
            answer = await self._shared.call("session_spawn", arguments, timeout=timeout)
        except BaseException:
            if lease is not None:
                await lease.release()
            raise
        session = Session(self._shared, answer)
        self._shared.started.setdefault(session.id)
        self._was_spawned(session)
        if lease is not None:
            lease.add(session.id, session.workspace_id)
        session.began(answer, lends=bool(provided.get("caller_tools")) or caller is not None)
        return session

    def _abandon(self, task: asyncio.Task[Session]) -> None:
        """End a session that was started for a task that does not wait for it any more."""
        if not task.cancelled() and task.exception() is None:
            self._shared.run(
                end_quietly(self._shared, task.result().id), "end of an abandoned session"
            )

    async def _run(
        self, prompt: str, options: dict[str, Any], *, returns: Any = None, attempts: int = 3
    ) -> Any:
        """Run one prompt in a session of its own, which is ended afterwards; return the answer.

        Cancelling it interrupts the turn and ends the session.

        Args:
            prompt: For the agent.
            returns: Type of the answer: the agent gets its JSON Schema, its answer is validated,
                and errors in it are sent back. None: the answer is text.
            attempts: Maximum of answers of the wrong type.
            options: Of the session.

        Returns:
            A `TurnResult`; with `returns` a value of that type.

        Raises:
            SessionFailed: the agent failed; contains the reason.
            ResultInvalid: no answer was of the type `returns`.
            BadResultType: the type has no JSON Schema.
            AgentNeverSawTools: the agent has not fetched the tools.

        Blocking:
            KeyboardInterrupt interrupts the turn and ends the session.
        """
        started: list[Session] = []

        async def ask(message: str) -> TurnResult:
            if not started:
                started.append(await self._spawn(message, options))
                turn = started[0].turn
                assert turn is not None
                return await turn
            return await (await started[0].send(message))

        try:
            if returns is None:
                return await ask(prompt)
            from oubliette.api.results import ask_for_result

            return await ask_for_result(returns, prompt, ask, attempts=attempts)
        finally:
            for session in started:
                await finish(asyncio.create_task(end_quietly(self._shared, session.id)))

    async def _map(
        self,
        prompts: Iterable[str],
        options: dict[str, Any],
        *,
        at_once: int = AT_ONCE,
        returns: Any = None,
        attempts: int = 3,
    ) -> list[Any]:
        """Run each prompt as `run` does, several at the same time; return the answers in order.

        A part that fails does not stop the others: its error stands in its place.

        Cancelling the map cancels all parts.

        Args:
            prompts: One for each session.
            at_once: Maximum of sessions at the same time.
            returns: As in `run`.
            attempts: As in `run`.
            options: Of the session.

        Raises:
            InvalidParameter: `at_once` is less than 1, or there is no such option.

        Blocking:
            KeyboardInterrupt cancels all parts.
        """
        if at_once < 1:
            raise InvalidParameter(f"at_once: {at_once} is less than 1", field="at_once")
        wanted = list(prompts)
        answers: list[Any] = [None] * len(wanted)
        places = anyio.CapacityLimiter(at_once)

        async def part(place: int, prompt: str) -> None:
            async with places:
                try:
                    answers[place] = await self._run(
                        prompt, options, returns=returns, attempts=attempts
                    )
                except OublietteError as error:
                    answers[place] = error

        async with anyio.create_task_group() as parts:
            for place, prompt in enumerate(wanted):
                parts.start_soon(part, place, prompt)
        return answers


async def end_quietly(shared: ClientContext, session_id: str) -> None:
    """End a session and its descendants, also while this task is being cancelled."""
    if shared.over:
        return
    with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
        try:
            await end_session(shared, session_id, tree=True)
        except OublietteError:
            # It has ended already, or its server is away: nothing is left to be done here.
            return


def new_tree_id() -> str:
    """Return an id for a tree."""
    return ids.new_uuid()


__all__ = ["SpawnerBase", "end_quietly", "new_tree_id"]
