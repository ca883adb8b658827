"""Requests of an agent's client and what follows from them, on plain data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.agent_requests.call_progress import ProgressDue
from oubliette.actors.agent_requests.caller_tools import REPLACED, PendingRpc
from oubliette.actors.agent_requests.params import RequestInput
from oubliette.actors.agent_requests.router import AgentRequestRouter
from oubliette.actors.messages import AnswerCallerTool, ReportCallProgress
from oubliette.actors.session.effects import (
    AfterCommit,
    AnswerAsk,
    AppendEvent,
    AskMapSlots,
    EndCallWatch,
    EndChild,
    EndRequest,
    NotifyRootCaller,
    NotifyTree,
    OutcomeStored,
    PassFailpoint,
    ProgressStored,
    ReadOutcome,
    ReleaseOpenCall,
    ReplyToClient,
    ReportOpenCalls,
    ReportProgress,
    ReserveOpenCall,
    SendToSelf,
    ServeRequest,
    SpawnChild,
    StartTimer,
    Store,
    TellAgent,
    WatchCall,
)
from oubliette.actors.session.messages import (
    AgentBlocked,
    CallCounted,
    ChildSpawned,
    ChildTurnEnded,
    LinkAnswered,
    LinkRequest,
    MapSlots,
    RequestSettled,
    RootCaller,
    ToolsListed,
)
from oubliette.config.schema import Config
from oubliette.kit import Down
from oubliette.records import CallerRequest, CallerTool, Limits
from oubliette.runtime.store.operations import PutCallerRequest, SettleCallerRequest
from tests.unit.runtime.store.samples import session as sample

if TYPE_CHECKING:
    from oubliette.actors.session.effects import Effects
    from oubliette.records import Session

NOW = 1000.0
CONFIG = Config()
TIMEOUT = CONFIG.sessions.caller_tool_timeout_seconds
TOOLS = (CallerTool(name="find"), CallerTool(name="pay", durable=True))
ID = "gogol_1"


def record(**changes: Any) -> Session:
    fields = {"id": ID, "principal": "alice", "caller_id": "shop", "caller_tools": TOOLS}
    return msgspec.structs.replace(sample(), **fields | changes)


def routed(**stored: Any) -> AgentRequestRouter:
    own = stored.pop("record", record())
    fields = {"record": own, "ancestry": ["gogol_0", ID], "root": own, "requests": ()}
    context = cast("Any", SimpleNamespace(config=CONFIG, agents={}))
    return AgentRequestRouter(context, cast("Any", SimpleNamespace(**fields | stored)))


class Client:
    """An agent's client, whose requests are numbered from 1."""

    def __init__(self, router: AgentRequestRouter | None = None, **given: Any) -> None:
        self.router = router or routed()
        self.given = RequestInput(**{"record": record(), "now": NOW, "stopping": False, **given})
        self.number = 0
        self.over: list[int | str | None] = []
        """Ids of requests that were over without an answer."""

    def asks(self, method: str, *, bare: bool = False, link: str = "l", **params: Any) -> Effects:
        """The effects of a request, but for the ends of requests, which are noted."""
        self.number += 1
        message = LinkRequest(
            link=link, generation=1, id=self.number, method=method, params=params, bare=bare
        )
        effects = self.router.request(message, self.given)
        self.over += [each.rpc.id for each in effects if isinstance(each, EndRequest)]
        return tuple(each for each in effects if not isinstance(each, EndRequest))

    def reserves(self, tool: str = "find", **params: Any) -> str:
        """The id of a call that waits to be counted for the limit."""
        (reserve,) = self.asks("caller_tool", tool=tool, **params)
        assert isinstance(reserve, ReserveOpenCall)
        return reserve.request_id

    def reserved(self, request_id: str, **answer: Any) -> Effects:
        return self.router.reserved(CallCounted(request_id=request_id, **answer), 7)

    def calls(self, tool: str = "find", **params: Any) -> CallerRequest:
        """The request of a call that is made."""
        return made(self.reserved(self.reserves(tool, **params)))

    def maps(self, *messages: str, fitting: int | None = None, **params: Any) -> Effects:
        """The effects of a map that has asked for room."""
        effects = self.asks("session_map", messages=list(messages), call_id="m", **params)
        assert effects[-1:] == (AskMapSlots("m"),)
        room = MapSlots(call_id="m", fitting=fitting)
        return effects[:-1] + self.router.map_slots_known(room, NOW)


def rpc(number: int) -> PendingRpc:
    return PendingRpc("l", 1, number)


def made(effects: Effects) -> CallerRequest:
    (request,) = (
        each.operation.record
        for each in effects
        if isinstance(each, Store) and isinstance(each.operation, PutCallerRequest)
    )
    return request


def refused(effects: Effects) -> str:
    (reply,) = effects
    assert isinstance(reply, ReplyToClient)
    assert reply.error is not None
    return str(reply.error["message"])


def kinds(effects: Effects) -> list[type]:
    return [type(each) for each in effects]


def settled(request: CallerRequest, outcome: str = "result", **fields: Any) -> RequestSettled:
    return RequestSettled(request_id=request.id, outcome=outcome, **fields)


# ---------------------------------------------------------------- tools of the caller


def test_a_call_is_in_the_log_with_its_deadline_before_its_watch_begins() -> None:
    client = Client()
    effects = client.reserved(client.reserves("shop_pay", arguments={"n": 1}, call_id="c"))
    request = made(effects)
    assert (request.tool, request.durable, request.arguments) == ("pay", True, {"n": 1})
    assert (request.principal, request.caller_id, request.call_id) == ("alice", "shop", "c")
    assert (request.created_at, request.deadline) == (NOW, NOW + TIMEOUT)
    assert request.event_index == 7
    assert effects[0] == AppendEvent(
        "caller_tool_request",
        {
            "request_id": request.id,
            "tool": "pay",
            "arguments": {"n": 1},
            "deadline": NOW + TIMEOUT,
            "ancestry": ["gogol_0", ID],
            "caller_id": "shop",
        },
    )
    assert effects[1:] == (
        Store(PutCallerRequest(request)),
        WatchCall(request, adopted=False),
        PassFailpoint("session.caller_request"),
    )
    assert client.router.busy
    assert client.router.serves


@pytest.mark.parametrize(
    ("given", "params", "text"),
    [
        ({}, {"tool": "other"}, "no caller provides a tool"),
        ({}, {"tool": ""}, "tool: "),
        ({}, {"tool": "find", "arguments": [1]}, "arguments: must be an object"),
        ({"stopping": True}, {"tool": "find"}, "the session is ending"),
        ({"record": record(caller_id=None, caller_tools=())}, {"tool": "find"}, "no caller"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_with_the_reason(
    given: Any, params: Any, text: str
) -> None:
    client = Client(**given)
    assert text in refused(client.asks("caller_tool", **params))
    assert not client.router.busy


def test_a_call_beyond_the_limit_of_its_principal_is_refused_and_not_in_the_log() -> None:
    client = Client()
    request_id = client.reserves(call_id="c")
    assert client.router.busy
    assert client.router.serves
    assert client.asks("caller_tool", link="m", tool="find", call_id="c") == ()
    error = {"code": -1, "message": "callers.max_pending_requests: 9"}
    assert client.reserved(request_id, error=error) == (
        ReleaseOpenCall(request_id),
        ReplyToClient(rpc(1), error=error),
        ReplyToClient(PendingRpc("m", 1, 2), error=error),
    )
    assert not client.router.busy
    assert client.reserved(request_id) == ()


def test_a_call_is_reserved_again_when_the_owner_of_the_limit_was_restarted() -> None:
    client = Client()
    request_id = client.reserves()
    error = {"code": -1, "message": "gone"}
    assert client.reserved(request_id, error=error, again=True) == (
        ReserveOpenCall(request_id, again=True),
    )
    assert made(client.reserved(request_id)).id == request_id


def test_a_call_that_is_cancelled_before_it_is_counted_is_not_made() -> None:
    client = Client()
    request_id = client.reserves()
    assert client.asks("notifications/cancelled", requestId=1) == (ReleaseOpenCall(request_id),)
    assert client.reserved(request_id) == ()
    request_id = client.reserves()
    release, reply = client.router.cancel_all("it ends", NOW)
    assert release == ReleaseOpenCall(request_id)
    assert isinstance(reply, ReplyToClient)
    assert reply.error is not None
    assert reply.error["message"] == "cancelled: it ends"


def test_the_owner_of_the_limit_is_sent_what_is_open_and_what_is_reserved() -> None:
    client = Client()
    request = client.calls()
    request_id = client.reserves()
    assert client.router.calls.report() == (ReportOpenCalls((request.id,), (request_id,)),)


def test_an_answer_is_logged_then_sent_to_all_who_asked() -> None:
    client = Client()
    request = client.calls(call_id="c")
    assert client.asks("caller_tool", link="m", tool="find", call_id="c") == ()
    answer = AnswerCallerTool(principal="alice", request_id=request.id, result={"n": 1})
    waits = cast("Any", object())
    client.router.calls.answered(answer, waits)
    effects = client.router.settled(settled(request, result={"n": 1}), NOW + 2)
    shown = {
        "request_id": request.id,
        "tool": "find",
        "outcome": "result",
        "error": None,
        "caller_id": "shop",
    }
    stored = OutcomeStored(request.id, "result", {"n": 1}, None)
    operation = SettleCallerRequest(
        id=request.id, outcome="result", settled_at=NOW + 2, result={"n": 1}, error=None
    )
    assert effects == (
        ReleaseOpenCall(request.id),
        EndCallWatch(request.id),
        AppendEvent("caller_tool_settled", shown, None, "shop"),
        Store(operation),
        AfterCommit(stored),
    )
    # One who asks while the outcome is written is answered with the others.
    assert client.asks("caller_tool", link="n", tool="find", call_id="c") == ()
    links = enumerate("lmn", 1)
    answers = [ReplyToClient(PendingRpc(link, 1, number), {"n": 1}) for number, link in links]
    assert list(client.router.calls.stored(stored)) == [*answers, AnswerAsk(waits, value=True)]
    assert client.asks("caller_tool", tool="find", call_id="c") == (
        ReadOutcome(rpc(4), request.id),
    )


def test_a_call_is_settled_once() -> None:
    client = Client()
    request = client.calls()
    assert client.router.settled(settled(request, "timeout", error="late"), NOW)
    assert client.router.settled(settled(request, result=1), NOW) == ()
    down = Down(name=f"s/req/{request.id}", reason="failed", error="it broke")
    assert client.router.request_down(down, NOW) == ()


def test_a_call_whose_actor_ends_without_notice_is_cancelled() -> None:
    client = Client()
    request = client.calls()
    effects = client.router.request_down(
        Down(name=f"s/req/{request.id}", reason="failed", error="it broke"), NOW
    )
    assert effects[-1] == AfterCommit(OutcomeStored(request.id, "cancelled", None, "it broke"))


def test_a_callers_answer_goes_through_the_mailbox_and_is_accepted_once() -> None:
    client = Client()
    request = client.calls()
    answer = AnswerCallerTool(principal="alice", request_id=request.id, result={"n": 1})
    calls = client.router.calls
    assert calls.accepts(answer)
    waits = cast("Any", object())
    assert calls.answered(answer, waits) == (SendToSelf(settled(request, result={"n": 1})),)
    assert not calls.accepts(answer)
    client.router.settled(settled(request, result={"n": 1}), NOW)
    effects = calls.stored(OutcomeStored(request.id, "result", {"n": 1}, None))
    assert effects[-1] == AnswerAsk(waits, value=True)


@pytest.mark.parametrize(
    ("method", "field", "params"),
    [
        ("caller_tool", "call_id", {"tool": "find"}),
        ("caller_tool", "tool", {}),
        ("session_message", "call_id", {"message": "x"}),
        ("session_message", "session_id", {"message": "x"}),
        ("session_map", "call_id", {"messages": ["x"]}),
    ],
)
@pytest.mark.parametrize("name", ["a\0b", "\0"])
def test_a_name_that_postgresql_could_not_store_is_refused(
    method: str, field: str, params: Any, name: str
) -> None:
    client = Client()
    (reply,) = client.asks(method, **params, **{field: name})
    assert isinstance(reply, ReplyToClient)
    assert reply.error is not None
    assert reply.error["code"] == -32602
    assert reply.error["message"].startswith(f"{field}: ")
    assert client.calls(call_id="ab").call_id == "ab"


@pytest.mark.parametrize("changes", [{"principal": "bob"}, {"request_id": "other"}])
def test_an_answer_of_others_or_to_what_is_not_open_is_not_accepted(changes: Any) -> None:
    client = Client()
    request = client.calls()
    fields: dict[str, Any] = {"principal": "alice", "request_id": request.id, "result": {}}
    assert not client.router.calls.accepts(AnswerCallerTool(**fields | changes))


def progress_of(request: CallerRequest, message: str) -> ReportCallProgress:
    return ReportCallProgress(principal="alice", request_id=request.id, message=message)


def test_progress_is_logged_then_reported_to_all_who_wait() -> None:
    client = Client()
    request = client.calls(call_id="c")
    client.asks("caller_tool", link="m", tool="find", call_id="c")
    calls = client.router.calls
    report = progress_of(request, "half done")
    assert calls.accepts(report)
    stored = ProgressStored(request.id, "half done")
    shown = {
        "request_id": request.id,
        "tool": "find",
        "message": "half done",
        "caller_id": "shop",
    }
    assert calls.progressed(report, NOW) == (
        AppendEvent("caller_tool_progress", shown, None, "shop"),
        AfterCommit(stored),
    )
    askers = rpc(1), PendingRpc("m", 1, 2)
    reports = [ReportProgress(each, "half done") for each in askers]
    assert list(calls.progress_stored(stored)) == reports


def test_progress_in_quick_succession_is_reported_once_a_second_with_its_newest_message() -> None:
    client = Client()
    request = client.calls()
    calls = client.router.calls
    calls.progressed(progress_of(request, "a"), NOW)
    due = ProgressDue(request_id=request.id)
    assert calls.progressed(progress_of(request, "b"), NOW + 0.25) == (StartTimer(0.75, due),)
    assert calls.progressed(progress_of(request, "c"), NOW + 0.5) == ()
    (event, after) = calls.progress_due(due, NOW + 1)
    assert isinstance(event, AppendEvent)
    assert event.data["message"] == "c"
    assert after == AfterCommit(ProgressStored(request.id, "c"))


def test_no_progress_follows_an_answer() -> None:
    client = Client()
    request = client.calls()
    calls = client.router.calls
    calls.progressed(progress_of(request, "a"), NOW)
    calls.progressed(progress_of(request, "b"), NOW)
    answer = AnswerCallerTool(principal="alice", request_id=request.id, result={})
    calls.answered(answer, cast("Any", object()))
    due = ProgressDue(request_id=request.id)
    assert calls.progress_due(due, NOW + 1) == ()
    assert not calls.accepts(progress_of(request, "c"))
    client.router.settled(settled(request, result={}), NOW)
    assert calls.progress_due(due, NOW + 1) == ()
    assert calls.progress_stored(ProgressStored(request.id, "a")) == ()


@pytest.mark.parametrize("changes", [{"principal": "bob"}, {"request_id": "other"}])
def test_progress_by_others_or_of_what_is_not_open_is_not_accepted(changes: Any) -> None:
    client = Client()
    request = client.calls()
    fields: dict[str, Any] = {"principal": "alice", "request_id": request.id, "message": "m"}
    assert not client.router.calls.accepts(ReportCallProgress(**fields | changes))


def test_an_answer_that_comes_too_late_is_told_so() -> None:
    client = Client()
    request = client.calls()
    waits = cast("Any", object())
    answer = AnswerCallerTool(principal="alice", request_id=request.id, error="broke")
    (sent,) = client.router.calls.answered(answer, waits)
    assert sent == SendToSelf(settled(request, "tool_error", error="broke"))
    client.router.settled(settled(request, "timeout", error="late"), NOW)
    effects = client.router.calls.stored(OutcomeStored(request.id, "timeout", None, "late"))
    assert effects[-1] == AnswerAsk(waits, value=False)
    (reply, _) = effects
    assert isinstance(reply, ReplyToClient)
    assert reply.error == {"code": -32000, "message": "late", "data": {"kind": "timeout"}}


def test_a_call_is_cancelled_when_the_last_who_asked_cancels() -> None:
    client = Client()
    request = client.calls(call_id="c")
    client.asks("caller_tool", link="m", tool="find", call_id="c")
    assert client.asks("notifications/cancelled", requestId=1) == ()
    effects = client.asks("notifications/cancelled", link="m", requestId=2)
    error = "the agent cancelled the call"
    assert effects[-1] == AfterCommit(OutcomeStored(request.id, "cancelled", None, error))
    assert client.asks("notifications/cancelled", requestId=1) == ()
    assert client.over == [3, 1, 4, 2, 5]


def test_after_a_restart_open_calls_have_their_full_time_again() -> None:
    old = Client().calls(call_id="c")
    done = msgspec.structs.replace(
        Client().calls(call_id="d"), outcome="result", settled_at=NOW, result=1
    )
    client = Client()
    effects = client.router.recover(cast("Any", SimpleNamespace(requests=(old, done))), NOW + 50)
    adopted = msgspec.structs.replace(old, deadline=NOW + 50 + TIMEOUT)
    assert effects == (WatchCall(adopted, adopted=True), ReportOpenCalls((old.id,)))
    assert client.asks("caller_tool", tool="find", call_id="c") == ()
    assert client.asks("caller_tool", tool="find", call_id="d") == (ReadOutcome(rpc(2), done.id),)


# ---------------------------------------------------------------- children


def blocked(*, waits: bool) -> NotifyTree:
    return NotifyTree(AgentBlocked(session_id=ID, waits=waits))


def spawned(call_id: str, number: int = 2, **fields: Any) -> ChildSpawned:
    return ChildSpawned(call_id=call_id, session_id=f"gogol_{number}", spawned=True, **fields)


def ended(call_id: str, outcome: str = "completed", number: int = 2) -> ChildTurnEnded:
    return ChildTurnEnded(
        session_id=f"gogol_{number}", call_id=call_id, outcome=outcome, result="done"
    )


def test_a_message_to_a_child_blocks_the_agent_until_the_turn_has_ended() -> None:
    client = Client()
    effects = client.asks("session_message", message="go", call_id="k")
    assert effects == (blocked(waits=True), SpawnChild("k", "go", None, own_workspace=False))
    children = client.router.children
    assert children.spawned(spawned("k"), NOW) == (PassFailpoint("session.child_spawned"),)
    (wait,) = client.router.waits()
    assert (wait.kind, wait.session_id, wait.since) == ("child", "gogol_2", NOW)
    answer = {"session_id": "gogol_2", "result": "done", "spawned": True}
    assert children.turn_ended(ended("k"), NOW) == (
        blocked(waits=False),
        ReplyToClient(rpc(1), answer),
    )
    assert children.turn_ended(ended("k"), NOW) == ()
    assert not client.router.busy


def test_a_turn_that_ends_before_it_is_known_to_be_accepted_is_answered_then() -> None:
    client = Client()
    client.asks("session_message", message="go", call_id="k")
    assert client.router.children.turn_ended(ended("k"), NOW) == ()
    effects = client.router.children.spawned(spawned("k"), NOW)
    assert kinds(effects) == [PassFailpoint, NotifyTree, ReplyToClient]


def test_a_turn_that_had_ended_already_is_answered_at_once() -> None:
    client = Client()
    client.asks("session_message", message="go", call_id="k")
    message = spawned("k", done=True, outcome="failed", result="why")
    *_, reply = client.router.children.spawned(message, NOW)
    assert isinstance(reply, ReplyToClient)
    assert reply.error is not None
    assert reply.error["message"] == "the turn of child gogol_2 failed: why"
    assert reply.error["data"] == {"kind": "child_failed", "session_id": "gogol_2"}


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_the_error_of_a_child_names_it_and_the_reason(outcome: str) -> None:
    for result, reason in (("why", "why"), (None, "no reason is known")):
        client = Client()
        client.asks("session_message", message="go", call_id="k")
        client.router.children.spawned(spawned("k"), NOW)
        message = msgspec.structs.replace(ended("k"), outcome=outcome, result=result)
        *_, reply = client.router.children.turn_ended(message, NOW)
        assert isinstance(reply, ReplyToClient)
        assert reply.error is not None
        assert reply.error["message"] == f"the turn of child gogol_2 {outcome}: {reason}"


def test_an_agent_that_does_not_wait_has_the_childs_id_at_once() -> None:
    client = Client()
    effects = client.asks("session_message", message="go", call_id="k", wait=False)
    assert kinds(effects) == [SpawnChild]
    assert not client.router.busy
    answer = {"session_id": "gogol_2", "result": None, "spawned": True}
    assert client.router.children.spawned(spawned("k"), NOW) == (
        PassFailpoint("session.child_spawned"),
        ReplyToClient(rpc(1), answer),
    )


def test_a_client_of_the_first_form_does_not_wait_by_default() -> None:
    assert kinds(Client().asks("session_message", bare=True, message="go")) == [SpawnChild]


def test_a_refused_child_is_the_error_of_the_call() -> None:
    client = Client()
    client.asks("session_message", message="go", call_id="k")
    error = {"code": -1, "message": "no"}
    effects = client.router.children.spawned(ChildSpawned(call_id="k", error=error), NOW)
    assert effects == (blocked(waits=False), ReplyToClient(rpc(1), error=error))


def test_a_repeated_message_joins_the_turn_and_a_cancelled_one_is_forgotten() -> None:
    client = Client()
    client.asks("session_message", message="go", call_id="k")
    assert client.asks("session_message", link="m", message="go", call_id="k") == ()
    assert client.asks("notifications/cancelled", requestId=1) == ()
    assert client.asks("notifications/cancelled", link="m", requestId=2) == (blocked(waits=False),)
    assert client.over == [3, 1, 4, 2]
    assert client.router.children.spawned(spawned("k"), NOW) == ()


@pytest.mark.parametrize(
    ("params", "field"), [({"message": ""}, "message"), ({"message": "m", "wait": 1}, "wait")]
)
def test_a_message_with_a_wrong_field_is_refused_by_name(params: Any, field: str) -> None:
    assert refused(Client().asks("session_message", **params)).startswith(f"{field}: ")


# ---------------------------------------------------------------- maps


def progress(effects: Effects) -> list[tuple[int, int, int]]:
    return [
        (each.data["total"], each.data["done"], each.data["failed"])
        for each in effects
        if isinstance(each, AppendEvent)
    ]


def started(effects: Effects) -> list[str]:
    return [each.call_id for each in effects if isinstance(each, SpawnChild)]


def test_a_map_starts_as_many_as_it_may_and_answers_in_order() -> None:
    client = Client()
    effects = client.maps("a", "b", "c", max_parallel=2)
    assert started(effects) == ["m/0", "m/1"]
    assert progress(effects) == [(3, 0, 0)]
    (place,) = (each for each in client.router.waits() if each.kind == "place")
    assert "1 of 3" in place.what
    children = client.router.children
    for number in (1, 0):
        children.spawned(spawned(f"m/{number}", number), NOW)
    effects = children.turn_ended(ended("m/1", number=1), NOW)
    assert started(effects) == ["m/2"]
    assert EndChild("gogol_1") in effects
    assert progress(effects) == [(3, 1, 0)]
    children.spawned(spawned("m/2", 2), NOW)
    assert started(children.turn_ended(ended("m/2", "failed", 2), NOW)) == []
    effects = children.turn_ended(ended("m/0", number=0), NOW)
    reply = effects[-1]
    assert isinstance(reply, ReplyToClient)
    assert [(each["session_id"], each["status"]) for each in reply.result["results"]] == [
        ("gogol_0", "completed"),
        ("gogol_1", "completed"),
        ("gogol_2", "failed"),
    ]
    assert not client.router.serves


@pytest.mark.parametrize(
    ("given", "params", "count"),
    [
        ({}, {}, CONFIG.trees.max_agents_at_once or 1),
        ({"record": record(limits=Limits(max_agents_at_once=3))}, {}, 3),
        ({}, {"fitting": 2}, 2),
        ({}, {"fitting": 2, "max_parallel": 50}, 2),
    ],
)
def test_a_map_starts_no_more_than_its_tree_and_its_container_have_room_for(
    given: Any, params: Any, count: int
) -> None:
    messages = [str(number) for number in range(100)]
    effects = Client(**given).maps(*messages, **params)
    assert len(started(effects)) == count


def test_a_part_that_finds_the_tree_full_is_started_again_when_another_has_ended() -> None:
    client = Client()
    client.maps("a", "b", max_parallel=2)
    children = client.router.children
    full = {"code": -1, "message": "max_agents_at_once: full"}
    assert progress(children.spawned(ChildSpawned(call_id="m/1", error=full), NOW)) == []
    children.spawned(spawned("m/0"), NOW)
    assert started(children.turn_ended(ended("m/0"), NOW)) == ["m/1"]


def test_a_map_that_is_cancelled_starts_nothing_more() -> None:
    client = Client()
    client.maps("a", "b", "c", max_parallel=2)
    effects = client.asks("notifications/cancelled", requestId=1)
    assert effects == (blocked(waits=True), blocked(waits=False))
    assert client.router.children.turn_ended(ended("m/0"), NOW) == ()
    assert not client.router.serves


# ---------------------------------------------------------------- others


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("caller_tool", {"tool": "find"}),
        ("session_message", {"message": "go"}),
        ("session_map", {"messages": ["a"]}),
    ],
)
def test_of_the_requests_for_one_call_the_last_of_a_link_waits(method: str, params: Any) -> None:
    """However often an agent asks, and over how many connections."""
    client = Client()
    client.asks(method, call_id="k", **params)
    for number in range(1, 5):
        assert client.asks(method, call_id="k", **params) == (
            ReplyToClient(rpc(number), error=REPLACED),
        )
    replies = [
        each for each in client.router.cancel_all("it ends", NOW) if isinstance(each, ReplyToClient)
    ]
    assert [each.rpc for each in replies] == [rpc(5)]


@pytest.mark.parametrize("method", ["session_events", "oubliette_tools", "oubliette_call_tool"])
def test_what_needs_other_actors_is_served_by_a_job_and_answered_later(method: str) -> None:
    client = Client()
    assert client.asks(method, a=1) == (ServeRequest(rpc(1), method, {"a": 1}),)
    assert client.router.serves
    answered = LinkAnswered(link="l", generation=1, id=1, result={"ok": 1})
    assert client.router.answered_later(answered) == (ReplyToClient(rpc(1), {"ok": 1}),)
    assert not client.router.serves


def test_an_unknown_request_is_an_error_and_an_unknown_notification_is_not() -> None:
    client = Client()
    assert "Method not found: nope" in refused(client.asks("nope"))
    note = LinkRequest(link="l", generation=1, id=None, method="nope", params={})
    assert client.router.request(note, client.given) == (EndRequest(PendingRpc("l", 1, None)),)


def test_the_agents_list_of_tools_lets_it_be_prompted() -> None:
    assert Client().asks("tools_listed") == (TellAgent(ToolsListed()),)


def test_the_end_of_a_session_answers_all_that_wait() -> None:
    client = Client()
    request = client.calls()
    client.asks("session_message", message="go", call_id="k")
    client.maps("a")
    effects = client.router.cancel_all("it ends", NOW)
    assert (
        AfterCommit(OutcomeStored(request.id, "cancelled", None, "cancelled: it ends")) in effects
    )
    replies = [each for each in effects if isinstance(each, ReplyToClient)]
    assert [each.rpc for each in replies] == [rpc(3), rpc(2)]
    assert all(each.error and each.error["data"]["kind"] == "cancelled" for each in replies)
    assert not client.router.busy


def test_only_the_root_tells_its_tree_who_its_caller_is() -> None:
    for parent, told in ((None, True), ("gogol_0", False)):
        own = record(parent_session_id=parent)
        effects, _ = routed(record=own).provide("bank", (), own, attached=False, now=NOW)
        assert (AfterCommit(NotifyRootCaller()) in effects) is told


def test_a_child_asks_the_caller_of_its_root_for_permission() -> None:
    own = record(parent_session_id="gogol_0")
    router = routed(record=own, root=record(caller_id="bank"))
    assert router.place(own) == ("alice", "bank", ["gogol_0", ID])
    router.root_caller_changed(
        RootCaller(root_session_id="gogol_0", principal="alice", caller_id="mill")
    )
    assert router.place(own).caller_id == "mill"
    assert routed().place(record()).caller_id == "shop"
