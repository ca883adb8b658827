"""How long an agent may be silent in a turn."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from oubliette.actors.agent_watchdog.silence import CheckAgain, Silence, SilentTooLong, is_ours
from oubliette.actors.session.waits import Wait
from oubliette.incontainer.client import tool_catalog
from oubliette.records import CallerTool

LIMIT = 10.0
WALL = 1_000_000.0
MODEL = Wait(kind="model", what="the model of its agent", since=WALL, detail="a retry")
RECORD: Any = SimpleNamespace(
    caller_id="myapp", caller_tools=(CallerTool("big"), CallerTool("add"))
)


class Session:
    """A session in its first turn; time passes when a test says so."""

    def __init__(self, *, ready: bool = True) -> None:
        self.now = 100.0
        self.ready, self.waits, self.serves = ready, False, False
        self.silence = Silence(LIMIT)
        first = self.silence.turn_started(1, self.now)
        assert first is not None
        self.due = self.now + first

    def hears(self, kind: str, **data: Any) -> None:
        self.silence.heard(kind, data, self.now, WALL + self.now)

    def passes(self, seconds: float) -> str | None:
        """Why the turn is given up, when so much time has passed."""
        end = self.now + seconds
        while self.due <= end:
            self.now = self.due
            waits = not self.ready or self.waits or self.serves
            match self.silence.check(1, self.now, RECORD, waits=waits):
                case CheckAgain(left):
                    self.due = self.now + left
                case SilentTooLong(reason):
                    return reason
                case None:
                    self.due = math.inf
        self.now = end
        return None


@pytest.fixture
def session() -> Session:
    return Session()


def calls(session: Session, tool: str) -> None:
    session.hears("tool_call", call_id="c", tool=tool)


def test_an_agent_that_says_nothing_is_given_up_by_the_name_of_the_setting(
    session: Session,
) -> None:
    assert session.passes(LIMIT - 1) is None
    session.hears("delta")
    assert session.passes(LIMIT - 1) is None
    assert (
        session.passes(1)
        == "the agent said nothing for 10 seconds (agents.silence_timeout_seconds)"
    )


def test_the_clock_starts_when_the_agent_is_ready() -> None:
    """A start has a deadline of its own, which may be longer."""
    session = Session(ready=False)
    assert session.passes(5 * LIMIT + 3) is None
    session.ready = True
    session.hears("ready")
    assert session.passes(LIMIT - 0.5) is None
    assert session.passes(1) is not None


def test_a_tool_of_the_agents_own_takes_as_long_as_it_takes(session: Session) -> None:
    calls(session, "bash")
    assert session.passes(20 * LIMIT) is None
    session.hears("tool_result", call_id="c")
    assert session.passes(LIMIT) is not None


@pytest.mark.parametrize(
    "tool", ["oubliette___myapp_big", "myapp_big", "mcp__oubliette__myapp_big"]
)
def test_a_settled_call_that_the_agent_never_closes_does_not_stop_the_clock(
    session: Session, tool: str
) -> None:
    calls(session, tool)
    session.serves = True  # a caller is at work
    assert session.passes(7.5 * LIMIT) is None
    session.serves = False
    session.silence.broken(session.now)  # it is given the result
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


def test_a_turn_that_is_attached_again_is_checked_once(session: Session) -> None:
    session.now += LIMIT - 1
    assert session.silence.turn_started(1, session.now) is None
    assert session.passes(LIMIT - 1) is None  # which was a sign of life


def test_a_check_of_an_earlier_turn_says_nothing(session: Session) -> None:
    session.silence.turn_ended()
    session.silence.turn_started(2, session.now)
    assert session.silence.check(1, session.now + 9 * LIMIT, RECORD, waits=False) is None


def test_calls_of_an_earlier_actor_are_open_still() -> None:
    session = Session()
    session.silence.recover({"c": ("bash", WALL)})
    assert session.passes(20 * LIMIT) is None
    session.hears("tool_result", call_id="c")
    assert session.passes(LIMIT) is not None


def shown(session: Session, *, served: bool) -> list[Wait]:
    now = session.now
    return list(session.silence.waits(now, WALL + now, RECORD, served=served, model=MODEL))


def test_an_agent_that_calls_nothing_waits_for_its_model_until_the_limit(session: Session) -> None:
    spoke = WALL + session.now
    session.now += 3
    (wait,) = shown(session, served=False)
    assert (wait.kind, wait.since, wait.detail) == ("model", WALL, "a retry")
    assert (wait.last_event_at, wait.until) == (spoke, spoke + LIMIT)


def test_a_tool_of_ours_counts_as_its_own_while_we_serve_it(session: Session) -> None:
    calls(session, "myapp_big")
    assert [wait.kind for wait in shown(session, served=False)] == ["model"]
    (wait,) = shown(session, served=True)
    assert (wait.kind, wait.what) == ("tool", "its own tool myapp_big")
    assert wait.since == WALL + session.now


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
    names = [entry["name"] for entry in tool_catalog.Catalog(print).entries()]
    assert names
    assert all(is_ours(name, RECORD) for name in names)
    assert is_ours(f"{tool_catalog.OUBLIETTE_PREFIX}session_list", RECORD)
