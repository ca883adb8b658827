"""How long an agent may be silent in a turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from oubliette.actors.session.silence import Silence, SilenceCheck, is_ours
from oubliette.incontainer.client import tool_catalog
from oubliette.records import CallerTool

LIMIT = 10.0
RECORD: Any = SimpleNamespace(
    agent_ready=True, caller_id="myapp", caller_tools=(CallerTool("big"), CallerTool("add"))
)


class Session:
    """What `Silence` knows of a session; time passes when a test says so."""

    def __init__(self, *, ready: bool = True) -> None:
        self.now = 100.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        agents = SimpleNamespace(silence_timeout_seconds=LIMIT)
        self.context = SimpleNamespace(config=SimpleNamespace(agents=agents))
        self.writer = SimpleNamespace(
            record=SimpleNamespace(**{**vars(RECORD), "agent_ready": ready})
        )
        self.link = SimpleNamespace(serves=False)
        self.attached, self.waits, self.turn = True, False, 1
        self.due: list[tuple[float, SilenceCheck]] = []
        self.silence = Silence(cast("Any", self))
        self.silence.turn_started(1)

    def after(self, seconds: float, message: SilenceCheck) -> None:
        self.due.append((self.now + seconds, message))

    def passes(self, seconds: float) -> str | None:
        """Why the turn is given up, when so much time has passed."""
        end = self.now + seconds
        while self.due and self.due[0][0] <= end:
            self.now, message = self.due.pop(0)
            if reason := self.silence.check(message):
                return reason
        self.now = end
        return None


@pytest.fixture
def session() -> Session:
    return Session()


def calls(session: Session, tool: str) -> None:
    session.silence.heard("tool_call", {"call_id": "c", "tool": tool})


def test_an_agent_that_says_nothing_is_given_up_by_the_name_of_the_setting(
    session: Session,
) -> None:
    assert session.passes(LIMIT - 1) is None
    session.silence.heard("delta", {})
    assert session.passes(LIMIT - 1) is None
    assert (
        session.passes(1)
        == "the agent said nothing for 10 seconds (agents.silence_timeout_seconds)"
    )


def test_the_clock_starts_when_the_agent_is_ready() -> None:
    """A start has a deadline of its own, which may be longer."""
    session = Session(ready=False)
    assert session.passes(5 * LIMIT + 3) is None
    session.writer.record.agent_ready = True
    session.silence.heard("ready", {})
    assert session.passes(LIMIT - 0.5) is None
    assert session.passes(1) is not None


def test_a_tool_of_the_agents_own_takes_as_long_as_it_takes(session: Session) -> None:
    calls(session, "bash")
    assert session.passes(20 * LIMIT) is None
    session.silence.heard("tool_result", {"call_id": "c"})
    assert session.passes(LIMIT) is not None


@pytest.mark.parametrize(
    "tool", ["oubliette___myapp_big", "myapp_big", "mcp__oubliette__myapp_big"]
)
def test_a_settled_call_that_the_agent_never_closes_does_not_stop_the_clock(
    session: Session, tool: str
) -> None:
    calls(session, tool)
    session.link.serves = True  # a caller is at work
    assert session.passes(7.5 * LIMIT) is None
    session.link.serves = False
    session.silence.broken()  # it is given the result
    assert session.passes(LIMIT - 0.1) is None
    reason = session.passes(0.2)
    assert reason is not None
    assert reason.endswith(f"; it has the answer to its call of {tool}")


def test_whoever_is_asked_may_take_their_time(session: Session) -> None:
    session.waits = True
    assert session.passes(20 * LIMIT) is None


def test_a_turn_that_is_over_is_not_watched(session: Session) -> None:
    session.silence.turn_ended()
    assert session.passes(20 * LIMIT) is None


@pytest.mark.parametrize(
    ("tool", "ours"),
    [
        ("oubliette_myapp_big", True),
        ("oubliette___myapp_big", True),
        ("mcp__oubliette__session_map", True),
        ("mcp.oubliette.myapp_big", True),
        ("session_message", True),
        ("oubliette_session_list", True),
        ("myapp_add", True),
        ("big", True),
        ("bash", False),
        ("myapp_other", False),
        ("oubliette", False),
        ("oubliette/run.sh", False),
        ("oubliette.sh", False),
        ("cd oubliette/ && make test", False),
        ("oubliette_tests/run and wait", False),
        ("", False),
    ],
)
def test_tools_of_ours_are_known_by_what_agents_call_them(tool: str, ours: bool) -> None:
    assert is_ours(tool, RECORD) is ours


def test_every_kind_of_tool_that_our_client_offers_is_known() -> None:
    names = [entry["name"] for entry in tool_catalog.BASE_TOOLS]
    assert names
    assert all(is_ours(name, RECORD) for name in names)
    assert is_ours(f"{tool_catalog.OUBLIETTE_PREFIX}session_list", RECORD)
