"""All ways of one call of a caller's tool, on plain data: they are those of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from oubliette.actors.agent_requests.caller_tools import CALL_STEPS
from oubliette.actors.messages import AnswerCallerTool
from oubliette.actors.session.effects import AfterCommit, OutcomeStored, SendToSelf, Store
from oubliette.actors.session.messages import RequestSettled
from oubliette.runtime.store.operations import SettleCallerRequest
from tests.unit.actors.agent_requests.test_router import NOW, Client

if TYPE_CHECKING:
    from oubliette.actors.session.effects import Effects

INPUTS = (
    "counted",
    "refused",
    "agent cancels",
    "caller answers",
    "caller fails",
    "answer arrives",
    "deadline",
    "caller leaves",
    "commit",
)


class Call:
    """A call, and what is under way to it."""

    def __init__(self, *inputs: str) -> None:
        self.client = Client()
        self.request_id = self.client.reserves()
        self.sent: list[RequestSettled] = []
        self.unstored: list[OutcomeStored] = []
        self.outcomes: list[str] = []
        for each in inputs:
            self.take(each)

    @property
    def state(self) -> str:
        call = self.client.router.calls._calls.find(self.request_id)
        return "over" if call is None else call.state

    def take(self, name: str) -> None:
        for effect in self.effects(name):
            match effect:
                case SendToSelf(RequestSettled() as message):
                    self.sent.append(message)
                case AfterCommit(OutcomeStored() as stored):
                    self.unstored.append(stored)
                case Store(SettleCallerRequest(outcome=outcome)):
                    self.outcomes.append(outcome)
                case _:
                    pass

    def effects(self, name: str) -> Effects:
        router, request_id = self.client.router, self.request_id
        match name:
            case "counted":
                return self.client.reserved(request_id)
            case "refused":
                return self.client.reserved(request_id, error={"code": -1, "message": "full"})
            case "agent cancels":
                return self.client.asks("notifications/cancelled", requestId=1)
            case "caller answers" | "caller fails":
                error = "broke" if name == "caller fails" else None
                answer = AnswerCallerTool(principal="alice", request_id=request_id, error=error)
                if not router.calls.accepts(answer):
                    return ()
                return router.calls.answered(answer, cast("Any", object()))
            case "answer arrives":
                return router.settled(self.sent.pop(), NOW) if self.sent else ()
            case "commit":
                return router.calls.stored(self.unstored.pop()) if self.unstored else ()
            case _:
                outcome = "timeout" if name == "deadline" else "caller_gone"
                return router.settled(RequestSettled(request_id=request_id, outcome=outcome), NOW)


def step(name: str, before: str, outcomes: list[str]) -> str:
    """What the table calls an input in a state that it has changed."""
    if before == "reserving":
        return "reserved" if name == "counted" else "withdrawn"
    if before == "open" and name.startswith("caller") and name != "caller leaves":
        return "answered"
    return "stored" if before == "settling" else outcomes[-1]


def test_a_call_takes_the_steps_of_its_table_and_each_of_them_and_has_one_outcome() -> None:
    taken: dict[tuple[str, str], str] = {}
    known: set[tuple[object, ...]] = set()
    paths: list[tuple[str, ...]] = [()]
    while paths:
        path = paths.pop()
        before = Call(*path).state
        for name in INPUTS:
            call = Call(*path, name)
            assert len(call.outcomes) == (call.state == "settling" or before == "settling"), path
            if call.state == before:
                continue
            taken[before, step(name, before, call.outcomes)] = call.state
            place = (call.state, *(each.outcome for each in (*call.sent, *call.unstored)))
            if place not in known and call.state != "over":
                known.add(place)
                paths.append((*path, name))
    assert taken == CALL_STEPS
