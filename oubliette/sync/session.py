"""Session, a conversation with one agent in a container; its calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.api.tools.objects import listed_tools
from oubliette.sync.events import Events
from oubliette.sync.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.api import session as twins
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.views import SessionInfo
    from oubliette.sync.portal_thread import PortalThread


class Session:
    """A session: send it messages, follow its events, interrupt and end it.

    Made by `Project.spawn` and `Oubliette.session`.
    """

    def __init__(self, thread: PortalThread, twin: twins.Session) -> None:
        self._thread = thread
        self._twin = twin
        self.id: str = twin.id
        """Id of the session."""
        self.project_id: str = twin.project_id
        """Id of its project."""
        self.workspace_id: str = twin.workspace_id
        """Id of its workspace, which is /workspace/workspaces/<id> in the container."""

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Parts of the last message without effect."""
        return self._twin.warnings

    @property
    def turn(self) -> Turn | None:
        """The last turn: of this object, or when it was found; None if there was none."""
        twin = self._twin.turn
        return None if twin is None else Turn(self._thread, twin)

    def events(self, *, after: int = -1, follow: bool = False) -> Events:
        """Return an iterator over the events of the session, in the order of its log.

        It ends when no turn runs or waits. It may be left at any moment; `cursor` of the iterator
        is the place to continue from.

        Args:
            after: Index of the last event that is known; -1: from the beginning.
            follow: Whether to wait for further turns, until the session has finished.
        """
        twin = self._thread.read(lambda: self._twin.events(after=after, follow=follow))
        return Events(self._thread, twin)

    def send(
        self,
        message: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
        model: str | None = None,
        autonomy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Turn:
        """Send a message; a session that has stopped is resumed. Returns when it is stored.

        Args:
            message: For the agent. It waits while a turn runs.
            tools: Tools of this program that replace those provided so far; None: unchanged.
            on_permission: Policy from now on; None: unchanged if no tools are given either.
            model: Model of the agent, if the session is resumed.
            autonomy: Actions that need no permission, if the session is resumed.
            idempotency_key: Name of this request; a repeated one sends no second message.

        Returns:
            The turn, to be waited for or iterated.

        Raises:
            Conflict: the session was ended.
            BadTool: a tool cannot be offered.
        """
        given = None if tools is None else listed_tools(tools)
        twin = self._thread.call(
            lambda: self._twin.send(
                message,
                tools=given,
                on_permission=on_permission,
                model=model,
                autonomy=autonomy,
                idempotency_key=idempotency_key,
            )
        )
        return Turn(self._thread, twin)

    def interrupt(self) -> None:
        """Interrupt the running turn; the session takes further messages. No turn is no error."""
        self._thread.call(self._twin.interrupt)

    def end(self, *, tree: bool = False) -> None:
        """End the session: its agent is stopped within 5 s, and no message resumes it.

        Args:
            tree: Whether its descendants are ended too.
        """
        self._thread.call(lambda: self._twin.end(tree=tree))

    def get(self) -> SessionInfo:
        """Return the state of the session."""
        return self._thread.call(self._twin.get)
