"""Task for an agent at the command line, and what has become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from oubliette.cli.client.following import ExitCode, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oubliette import SessionInfo
    from oubliette.api.results import ResultType
    from oubliette.errors import OublietteError


class RunTask(NamedTuple):
    """Task for an agent, and the form in which the user sees its work."""

    project_id: str
    prompt: str
    options: dict[str, Any]
    """`agent`, `model`, `autonomy`; None: it was not given."""
    session_id: str | None = None
    """The session to go on with; None: a new one, in a workspace of its own."""
    tools: Sequence[Callable[..., Any]] = ()
    returns: ResultType[Any] | None = None
    max_cost_usd: float | None = None
    events: bool = False
    """Whether events are printed as JSON lines, and no transcript."""
    quiet: bool = False
    """Whether nothing but questions is shown."""
    notify: bool = False
    """Whether the terminal rings when there is a question."""

    @property
    def shows(self) -> bool:
        """Whether there is a transcript."""
        return not (self.events or self.quiet)


class Outcome:
    """State of a session when the terminal is done with it.

    Args:
        session: When it had begun.
    """

    def __init__(self, session: SessionInfo) -> None:
        self.session_id = session.session_id
        self.session = session
        """The session, as it was last."""
        self.status = "running"
        self.final_text: str | None = None
        """The agent's last message; of a failed turn, the reason."""
        self.only_repeated = False
        """Whether the scripted agent, which was not asked for, has only repeated the task."""
        self.limit: str | None = None
        """Name of the limit that was reached in the last turn."""
        self.result: Any = None
        """The value that the schema describes."""
        self.problem: OublietteError | None = None
        """The reason for which there is none, or for which the tools were not called."""
        self.left = False
        """Whether it was left running: by the user, or as it asks what cannot be answered here."""
        self.asks = False
        """Whether it was left for such a question."""
        self.interrupted = False
        """Whether the user had its turn interrupted."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        if self.asks:
            return ExitCode.answer_needed
        if self.left or self.interrupted:
            return ExitCode.interrupted
        code = exit_code(self.status, self.limit)
        if self.only_repeated:
            return ExitCode.failed
        return self.problem.exit_code if self.problem and code is ExitCode.done else code

    @property
    def fields(self) -> dict[str, Any]:
        """The outcome, for programs."""
        session = self.session
        return {
            "session_id": session.session_id,
            "project_id": session.project_id,
            "workspace_id": session.workspace_id,
            "agent": session.agent,
            "model": session.model,
            "autonomy": session.autonomy,
            "status": self.status,
            "final_text": self.final_text,
            "usage": msgspec.to_builtins(session.usage),
        }
