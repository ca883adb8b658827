"""AgentScript, the work of the scripted agent in a test, independent of its prompts.

The prompts of a program under test are for a model. With a script, the agent does what the script
has instead: one script for each turn, in the order in which the turns begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import InvalidParameter
from oubliette.incontainer.scripted_agent.script import ScriptError, parse
from oubliette.runtime.agents.scripted.adapter import ScriptedAdapter, ScriptedRuntime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentEvent, AgentSession
    from oubliette.runtime.containers.base import Inside

NAME: Final = "rehearsed"
"""Name of the agent that follows an `AgentScript`."""


class ScriptIncomplete(AssertionError):
    """Lines of a script were not used, or the agent got more prompts than there are scripts."""


class TurnScript:
    """Script of one turn, and the number of its directives that the agent has done."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.begun_by: tuple[str, int] | None = None
        """Session and number of the turn that has it."""
        self.steps = _count(text)
        """Number of directives; `parallel` … `end` is one."""
        self.done = 0

    @property
    def unused(self) -> str | None:
        """Description of the unused rest; None if all was done."""
        if self.begun_by is None:
            return f"no turn has begun with this script:\n{_indented(self.text)}"
        if self.done >= self.steps:
            return None
        session, turn = self.begun_by
        return (
            f"turn {turn} of {session} did {self.done} of {self.steps} directives of this script:\n"
            f"{_indented(self.text)}"
        )


class AgentScript:
    """Scripts for the turns of a test's agents; without any, prompts themselves are scripts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        """Prompts that the agents got, in order."""
        self._scripts: list[TurnScript] = []
        self._turns: dict[tuple[str, int], TurnScript | None] = {}
        self._unexpected: list[str] = []

    def script(self, *lines: str) -> None:
        """Add the script of one turn.

        Args:
            lines: Directives of the scripted agent, such as `say hello` and `call tool {"x": 1}`.

        Raises:
            InvalidParameter: there is no line, or one is malformed.
        """
        text = "\n".join(lines)
        if not text.strip():
            raise InvalidParameter("script: give at least one line", field="lines")
        self._scripts.append(TurnScript(text))

    def assert_complete(self) -> None:
        """Check that all lines were used, and that no prompt came without a script.

        Raises:
            ScriptIncomplete: not so; names the first script with unused lines.
        """
        for prompt in self._unexpected:
            count = len(self._scripts)
            raise ScriptIncomplete(
                f"the agent got a prompt after its {count} scripts were used:\n{_indented(prompt)}"
            )
        for script in self._scripts:
            if script.unused is not None:
                raise ScriptIncomplete(script.unused)

    # ------------------------------------------------------------ for the agent

    def begin(self, session_id: str, turn: int, prompt: str) -> str:
        """Return the text that the agent gets as the prompt of a turn; the same one each time."""
        key = session_id, turn
        if key not in self._turns:
            self.prompts.append(prompt)
            self._turns[key] = self._next(key, prompt)
        script = self._turns[key]
        if script is not None:
            return script.text
        return "fail the test has no script for this turn" if self._scripts else prompt

    def did(self, session_id: str, turn: int) -> None:
        """Note that one directive of the turn was done."""
        script = self._turns.get((session_id, turn))
        if script is not None:
            script.done += 1

    def _next(self, key: tuple[str, int], prompt: str) -> TurnScript | None:
        if not self._scripts:
            return None
        for script in self._scripts:
            if script.begun_by is None:
                script.begun_by = key
                return script
        self._unexpected.append(prompt)
        return None


class RehearsedAdapter(ScriptedAdapter):
    """`AgentAdapter` that passes the lines of an `AgentScript` to the agent instead of prompts."""

    def __init__(self, script: AgentScript, session_id: str) -> None:
        super().__init__()
        self._script = script
        self._session_id = session_id

    def prompt(self, turn: int, text: str) -> bytes:
        """Return input that begins a turn with its script."""
        return super().prompt(turn, self._script.begin(self._session_id, turn, text))

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """Return the events, and count the directives that are done: each ends with a message."""
        found = super().feed(data, offset)
        for event in found:
            turn = event.data.get("turn")
            # `fail` ends with an error instead; `crash` ends the process, and is never counted.
            if turn is not None and event.type in {"message", "error"}:
                self._script.did(self._session_id, turn)
        return found


class RehearsedRuntime(ScriptedRuntime):
    """`AgentRuntime` of the scripted agent that follows an `AgentScript`."""

    def __init__(self, script: AgentScript) -> None:
        self._script = script

    @property
    def name(self) -> str:
        """`rehearsed`."""
        return NAME

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> RehearsedAdapter:
        """Return an adapter for one session."""
        del inside, state
        return RehearsedAdapter(self._script, session.session_id)


def _count(text: str) -> int:
    try:
        return len(parse(text))
    except ScriptError as error:
        raise InvalidParameter(f"script: {error}", field="lines") from None


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
