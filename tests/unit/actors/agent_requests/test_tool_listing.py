"""Tools that come with a message, and the turn that waits until the agent has listed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.agent_requests.tool_listing import (
    LISTING_SECONDS,
    ListingOverdue,
    ProvidedTools,
)
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    BeginTurn,
    ChangeRecord,
    NotifyClient,
    SendTools,
    StartTimer,
    TellAgent,
)
from oubliette.actors.session.messages import ToolsListed
from oubliette.clock import SystemClock
from oubliette.records import CallerTool
from tests.unit.runtime.store.samples import session as sample

if TYPE_CHECKING:
    from oubliette.actors.session.effects import Effects

FIND = CallerTool(name="find")
SEND = CallerTool(name="send")


class Session:
    """A session whose effects are applied by the test, with everything committed at once."""

    def __init__(self, *, hears: bool = True) -> None:
        self.clock = SystemClock()
        self.record = msgspec.structs.replace(
            sample(), agent="acp", caller_id="shop", caller_tools=(FIND,)
        )
        self.attached = True
        self.sent: list[dict[str, Any]] = []
        self.timers: list[tuple[float, ListingOverdue]] = []
        self.events: list[dict[str, Any]] = []
        self.begun = 0
        self.prompted: list[ToolsListed] = []
        self.tools = ProvidedTools(300.0, lists_changes=hears)

    def apply(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case ChangeRecord():
                    self.record = msgspec.structs.replace(self.record, **effect.fields)
                case AfterCommit():
                    self.apply((effect.effect,))
                case SendTools():
                    self.apply(self.tools.send(self.record))
                case NotifyClient():
                    self.sent.append(effect.params)
                case StartTimer():
                    assert isinstance(effect.message, ListingOverdue)
                    self.timers.append((effect.seconds, effect.message))
                case AppendEvent():
                    self.events.append(effect.data)
                case BeginTurn():
                    self.begun += 1
                case TellAgent():
                    self.prompted.append(effect.message)
                case _:
                    raise AssertionError(effect)


class Provided:
    """The tools of a session, whose effects are applied."""

    def __init__(self, session: Session) -> None:
        self._session, self._tools = session, session.tools

    def connected(self, link: str, *, bare: bool = False) -> None:
        self._session.apply(self._tools.connected(link, self._session.record, bare=bare))

    def client_seen(self) -> None:
        self._tools.client_seen()

    def agent_starting(self) -> None:
        self._tools.agent_starting()

    def listed(self, params: dict[str, Any]) -> None:
        self._session.apply(self._tools.listed(params))

    def overdue(self, message: ListingOverdue) -> None:
        self._session.apply(self._tools.overdue(message))

    def provide(
        self, caller_id: str | None, tools: tuple[CallerTool, ...] | None
    ) -> tuple[str, ...] | None:
        session = self._session
        now, attached = session.clock.time(), session.attached
        provided = self._tools.provide(caller_id, tools, session.record, attached=attached, now=now)
        if provided is None:
            return None
        session.apply(provided[0])
        return provided[1]

    @property
    def awaited_since(self) -> float | None:
        return self._tools.awaited_since


def lent(session: Session) -> Provided:
    """The tools of a session whose agent runs and has listed what there is."""
    tools = Provided(session)
    tools.connected("link")
    tools.client_seen()
    tools.listed({"revision": session.sent[-1]["revision"]})
    return tools


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def tools(session: Session) -> Provided:
    return lent(session)


def test_a_turn_with_a_new_tool_waits_until_the_agent_has_listed_it(
    session: Session, tools: Provided
) -> None:
    assert tools.provide("shop", (FIND, SEND)) == ()
    assert [tool["name"] for tool in session.sent[-1]["tools"]] == ["find", "send"]
    assert tools.awaited_since is not None
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert tools.awaited_since is None
    assert session.begun == 1


def test_a_new_process_is_prompted_when_it_has_fetched_a_list_and_not_before(
    session: Session,
) -> None:
    tools = Provided(session)
    tools.connected("link")
    tools.listed({"revision": 1, "fetched": False})
    assert session.prompted == []
    tools.listed({"revision": 1, "fetched": True})
    assert session.prompted == [ToolsListed()]


def test_a_client_that_does_not_say_what_was_listed_is_not_waited_for(session: Session) -> None:
    tools = Provided(session)
    tools.connected("link", bare=True)
    assert session.prompted == [ToolsListed()]


@pytest.mark.parametrize("revision", [None, 0, 1, 99, "2", [2], {}])
def test_a_list_of_another_revision_starts_nothing(
    session: Session, tools: Provided, revision: Any
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.listed({"revision": revision})
    tools.listed({})
    assert tools.awaited_since is not None
    assert session.begun == 0


def test_a_list_that_is_reported_before_the_new_tools_are_sent_starts_nothing(
    session: Session, tools: Provided
) -> None:
    before = {"revision": session.sent[-1]["revision"]}
    provided = session.tools.provide(
        "shop", (FIND, SEND), session.record, attached=True, now=session.clock.time()
    )
    assert provided is not None
    tools.listed(before)  # the record with the new tools is still being committed
    assert tools.awaited_since is not None
    session.apply(provided[0])
    assert session.begun == 0
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert session.begun == 1


def test_an_agent_that_does_not_list_in_time_begins_its_turn_and_the_log_says_so(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    ((seconds, overdue),) = session.timers
    assert seconds == LISTING_SECONDS
    tools.overdue(overdue)
    assert session.begun == 1
    assert [event["kind"] for event in session.events] == ["tools_not_listed"]


def test_a_new_process_that_is_prompted_without_its_caller_s_tools_is_in_the_log(
    session: Session,
) -> None:
    none = ProvidedTools(60.0, lists_changes=True)
    without = msgspec.structs.replace(session.record, caller_tools=())
    assert none.never_listed(without) == ()
    lender = msgspec.structs.replace(session.record, caller_id="shop", caller_tools=(FIND,))
    (effect,) = none.never_listed(lender)
    assert isinstance(effect, AppendEvent)
    assert (effect.type, effect.data["kind"]) == ("system", "tools_not_listed")


def test_it_is_waited_for_once_and_the_next_sender_is_warned(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.overdue(session.timers[-1][1])
    (warning,) = tools.provide("shop", (CallerTool(name="third"),)) or ()
    assert "third" in warning
    assert "new_session=true" in warning
    assert tools.awaited_since is None


def test_an_agent_that_lists_after_all_is_waited_for_again(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.overdue(session.timers[-1][1])
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert tools.provide("shop", (CallerTool(name="third"),)) == ()
    assert tools.awaited_since is not None


def test_a_deadline_of_an_earlier_list_says_nothing_of_a_later_one(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    early = session.timers[-1][1]
    tools.listed({"revision": session.sent[-1]["revision"]})
    tools.provide("shop", (CallerTool(name="third"),))
    tools.overdue(early)
    assert tools.awaited_since is not None
    assert session.events == []


def test_the_sender_to_an_agent_that_is_known_not_to_listen_is_warned_at_once() -> None:
    session = Session(hears=False)
    tools = lent(session)
    (warning,) = tools.provide("shop", (FIND, SEND)) or ()
    assert "'acp'" in warning
    assert "send" in warning
    assert "find" not in warning
    assert tools.awaited_since is None


@pytest.mark.parametrize("fewer", [(), (FIND,)])
def test_tools_that_are_taken_away_or_stay_are_waited_for_by_nobody(
    session: Session, tools: Provided, fewer: tuple[CallerTool, ...]
) -> None:
    tools.provide("shop", fewer)
    assert tools.awaited_since is None


def test_the_tool_of_another_caller_is_a_new_one_though_it_has_the_same_name(
    tools: Provided,
) -> None:
    assert tools.provide("bank", (FIND,)) == ()
    assert tools.awaited_since is not None


def test_an_agent_that_has_yet_to_start_lists_its_tools_by_itself(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.agent_starting()
    assert tools.awaited_since is None
    tools.provide("shop", (SEND,))
    session.attached = False
    tools.client_seen()
    tools.provide("shop", (FIND, SEND))
    assert tools.awaited_since is None


def test_a_link_that_breaks_meanwhile_gets_the_tools_again_with_a_deadline_of_its_own(
    session: Session, tools: Provided
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.connected("another link")
    assert session.sent[-1]["revision"] == session.timers[-1][1].revision
    tools.overdue(session.timers[0][1])
    assert tools.awaited_since is not None
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert session.begun == 1
