"""Tools that come with a message, and the turn that waits until the agent has listed them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from oubliette.actors.session.messages import LinkNotify, ToolsListed
from oubliette.actors.session.tool_listing import LISTING_SECONDS, ListingOverdue, ProvidedTools
from oubliette.clock import SystemClock
from oubliette.config.schema import Config
from oubliette.records import CallerTool
from tests.unit.runtime.store.samples import session as sample

FIND = CallerTool(name="find")
SEND = CallerTool(name="send")


class Session:
    """What `ProvidedTools` uses of a SessionActor, with everything committed at once."""

    def __init__(self, *, hears: bool = True) -> None:
        self.clock = SystemClock()
        self.record = msgspec.structs.replace(
            sample(), agent="acp", caller_id="shop", caller_tools=(FIND,)
        )
        self.writer = self
        self.system = self
        self.context = SimpleNamespace(
            config=Config(), agents={"acp": SimpleNamespace(hears_tool_changes=hears)}
        )
        self.attached = True
        self.sent: list[dict[str, Any]] = []
        self.timers: list[tuple[float, ListingOverdue]] = []
        self.events: list[dict[str, Any]] = []
        self.begun = 0
        self.prompted: list[ToolsListed] = []
        self.agent = SimpleNamespace(tell=self.prompted.append)

    def change(self, **fields: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **fields)

    def then(self, work: Any) -> None:
        work()

    def append(self, _: str, data: dict[str, Any]) -> None:
        self.events.append(data)

    def after(self, seconds: float, message: ListingOverdue) -> None:
        self.timers.append((seconds, message))

    def lookup(self, _: str) -> Session:
        return self

    def is_alive(self) -> bool:
        return True

    def tell(self, message: LinkNotify) -> None:
        self.sent.append(message.params)

    def begin_turn(self) -> None:
        self.begun += 1


def lent(session: Session) -> ProvidedTools:
    """The tools of a session whose agent runs and has listed what there is."""
    tools = ProvidedTools(session)  # type: ignore[arg-type]
    tools.connected("link")
    tools.client_seen()
    tools.listed({"revision": session.sent[-1]["revision"]})
    return tools


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def tools(session: Session) -> ProvidedTools:
    return lent(session)


def test_a_turn_with_a_new_tool_waits_until_the_agent_has_listed_it(
    session: Session, tools: ProvidedTools
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
    tools = ProvidedTools(session)  # type: ignore[arg-type]
    tools.connected("link")
    tools.listed({"revision": 1, "fetched": False})
    assert session.prompted == []
    tools.listed({"revision": 1, "fetched": True})
    assert session.prompted == [ToolsListed()]


def test_a_client_that_does_not_say_what_was_listed_is_not_waited_for(session: Session) -> None:
    tools = ProvidedTools(session)  # type: ignore[arg-type]
    tools.connected("link", bare=True)
    assert session.prompted == [ToolsListed()]


@pytest.mark.parametrize("revision", [None, 0, 1, 99, "2", [2], {}])
def test_a_list_of_another_revision_starts_nothing(
    session: Session, tools: ProvidedTools, revision: Any
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.listed({"revision": revision})
    tools.listed({})
    assert tools.awaited_since is not None
    assert session.begun == 0


def test_an_agent_that_does_not_list_in_time_begins_its_turn_and_the_log_says_so(
    session: Session, tools: ProvidedTools
) -> None:
    tools.provide("shop", (FIND, SEND))
    ((seconds, overdue),) = session.timers
    assert seconds == LISTING_SECONDS
    tools.overdue(overdue)
    assert session.begun == 1
    assert [event["kind"] for event in session.events] == ["tools_not_listed"]


def test_it_is_waited_for_once_and_the_next_sender_is_warned(
    session: Session, tools: ProvidedTools
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.overdue(session.timers[-1][1])
    (warning,) = tools.provide("shop", (CallerTool(name="third"),)) or ()
    assert "third" in warning
    assert "new_session=true" in warning
    assert tools.awaited_since is None


def test_an_agent_that_lists_after_all_is_waited_for_again(
    session: Session, tools: ProvidedTools
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.overdue(session.timers[-1][1])
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert tools.provide("shop", (CallerTool(name="third"),)) == ()
    assert tools.awaited_since is not None


def test_a_deadline_of_an_earlier_list_says_nothing_of_a_later_one(
    session: Session, tools: ProvidedTools
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
    session: Session, tools: ProvidedTools, fewer: tuple[CallerTool, ...]
) -> None:
    tools.provide("shop", fewer)
    assert tools.awaited_since is None


def test_the_tool_of_another_caller_is_a_new_one_though_it_has_the_same_name(
    tools: ProvidedTools,
) -> None:
    assert tools.provide("bank", (FIND,)) == ()
    assert tools.awaited_since is not None


def test_an_agent_that_has_yet_to_start_lists_its_tools_by_itself(
    session: Session, tools: ProvidedTools
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
    session: Session, tools: ProvidedTools
) -> None:
    tools.provide("shop", (FIND, SEND))
    tools.connected("another link")
    assert session.sent[-1]["revision"] == session.timers[-1][1].revision
    tools.overdue(session.timers[0][1])
    assert tools.awaited_since is not None
    tools.listed({"revision": session.sent[-1]["revision"]})
    assert session.begun == 1
