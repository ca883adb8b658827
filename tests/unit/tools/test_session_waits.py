"""`waiting` of session_get: told by the actors, completed by the callers and containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.caller.messages import OpenListener
from oubliette.actors.container import start_stages
from oubliette.actors.container.start_stages import StartStages, start_of
from oubliette.actors.session.waits import ContainerStartProgress, GetStart, SessionWaits, Wait
from oubliette.config.schema import ContainersConfig
from oubliette.kit import Actor, handles
from oubliette.records import TERMINAL
from oubliette.tools import session_waits

if TYPE_CHECKING:
    from oubliette.actors.container.messages import StageName
    from oubliette.records import Session
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

LONE = "its actor did not answer"


class Starting(Actor):
    """A container's actor that says what its start waits for."""

    def __init__(self, start: ContainerStartProgress | None) -> None:
        super().__init__()
        self.start = start

    @handles(GetStart)
    def tell(self, _: GetStart) -> ContainerStartProgress | None:
        return self.start


class Stuck(Actor):
    """A session's actor that says nothing."""


async def live(
    bench: Bench, *waits: Wait, container: str | None = None, reached: Wait | None = None
) -> Session:
    session = await bench.session(await bench.project(), live=True)
    bench.waits[session.id] = SessionWaits(waits=waits, container=container, reached=reached)
    return session


async def waiting(bench: Bench, session: Session) -> list[dict[str, Any]]:
    return (await bench.do("session_get", session_id=session.id))["waiting"]


async def test_what_the_actor_says_is_told_as_it_is(bench: Bench) -> None:
    session = await live(
        bench,
        Wait(kind="child", what="its child ses_2", since=5.0, session_id="ses_2"),
        Wait(kind="model", what="the model", since=1.0, until=9.0, last_event_at=2.0, detail="x"),
    )
    child, model = await waiting(bench, session)
    assert (child["kind"], child["session_id"], child["since"]) == ("child", "ses_2", 5.0)
    assert (model["until"], model["last_event_at"], model["detail"]) == (9.0, 2.0, "x")
    assert child["caller_present"] is None


async def test_a_caller_that_never_came_is_absent(bench: Bench) -> None:
    session = await live(bench, Wait(kind="caller_tool", what="add", caller=("alice", "app")))
    (wait,) = await waiting(bench, session)
    assert (wait["caller_id"], wait["caller_present"]) == ("app", False)
    assert wait["detail"] == "caller app has not been seen since the server's start"


async def test_whether_a_caller_is_there_is_told_with_the_reason(bench: Bench) -> None:
    session = await live(
        bench, Wait(kind="permission", what="a decision", caller=("alice", "app"), detail="more")
    )
    caller = await bench.services.caller_ref("alice", "app")
    await caller.ask(OpenListener(listener_id="one"))
    (wait,) = await waiting(bench, session)
    assert wait["caller_present"] is True
    assert wait["detail"] == "caller app is connected; more"


async def test_the_stage_of_a_container_is_told_by_its_actor(bench: Bench) -> None:
    start = ContainerStartProgress(what="the image", since=3.0, until=8.0, detail="2 of 5 layers")
    bench.system.spawn(Starting, start, name="unit/container")
    session = await live(
        bench,
        Wait(kind="storage", what="the database"),
        Wait(kind="container", what="the link into its container", since=1.0),
        container="unit/container",
    )
    storage, container = await waiting(bench, session)
    assert storage["what"] == "the database"
    told = {name: container[name] for name in ("kind", "what", "since", "until", "detail")}
    assert told == {"kind": "container", "what": "the image", "since": 3.0, "until": 8.0,
                    "detail": "2 of 5 layers"}  # fmt: skip


async def test_of_a_container_that_is_up_the_session_knows_the_rest(bench: Bench) -> None:
    bench.system.spawn(Starting, None, name="unit/container")
    wait = Wait(kind="container", what="the link into its container", since=1.0, detail="it broke")
    session = await live(bench, wait, container="unit/container")
    (told,) = await waiting(bench, session)
    assert (told["what"], told["detail"]) == ("the link into its container", "it broke")


async def test_of_a_container_that_is_up_and_linked_the_agent_is_waited_for(bench: Bench) -> None:
    bench.system.spawn(Starting, None, name="unit/container")
    wait = Wait(kind="container", what="the link into its container", since=1.0)
    reached = Wait(kind="agent", what="the process of its agent", since=2.0)
    session = await live(bench, wait, container="unit/container", reached=reached)
    (told,) = await waiting(bench, session)
    assert (told["kind"], told["what"]) == ("agent", "the process of its agent")


async def test_a_container_whose_actor_is_gone_hides_nothing(bench: Bench) -> None:
    wait = Wait(kind="container", what="the link into its container")
    session = await live(bench, wait, container="unit/nobody")
    (told,) = await waiting(bench, session)
    assert told["what"] == "the link into its container"


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_an_ended_session_waits_for_nothing_and_says_why(bench: Bench, status: str) -> None:
    project = await bench.project()
    session = await bench.session(project, status=status, status_reason="so it is", ended_at=7.0)
    (told,) = await waiting(bench, session)
    words = status.replace("_", " ")
    assert (told["kind"], told["since"]) == ("ended", 7.0)
    assert told["what"] == f"nothing: it has {words} (so it is)"
    assert told["detail"] == "session_message wakes it up"


async def test_a_session_ended_for_good_is_not_woken_up(bench: Bench) -> None:
    session = await bench.session(await bench.project(), status="completed", ended_by="me")
    (told,) = await waiting(bench, session)
    assert told["detail"] == "it was ended for good"


async def test_a_session_that_nobody_runs_waits_for_a_server(bench: Bench) -> None:
    session = await bench.session(await bench.project(), status="running")
    (told,) = await waiting(bench, session)
    assert (told["kind"], told["what"]) == ("server", "a server to take it over")


async def test_an_actor_that_does_not_answer_is_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await bench.session(await bench.project(), status="running")
    ref = bench.system.spawn(Stuck, name="stuck")
    bench.sessions.enter(session.id, ref)
    monkeypatch.setattr(session_waits, "ASK_SECONDS", 0.05)
    (told,) = await waiting(bench, session)
    assert told["kind"] == "server"
    assert told["detail"].startswith(LONE)


# ---------------------------------------------------------------------- the stages themselves


@pytest.mark.parametrize("name", ["image", "create", "start", "relay"])
def test_a_stage_that_runs_says_since_when_and_until_when(name: StageName) -> None:
    config = ContainersConfig(pull_timeout_seconds=900.0, start_timeout_seconds=60.0)
    stages = StartStages(lambda _: None)
    state = "relay" if name == "relay" else "starting"
    assert start_of(state, stages, config, 1000.0) is None
    with stages.stage(name):
        told = start_of(state, stages, config, 1000.0)
        assert told is not None
        assert told.since is not None
        assert told.until is not None
        assert 990.0 < told.since <= 1000.0
        assert told.until - told.since == pytest.approx(900.0 if name == "image" else 60.0)
        assert told.what == start_stages._DOING[name]
    assert start_of(state, stages, config, 1000.0) is None
    assert start_of("up", stages, config, 1000.0) is None


async def test_how_far_a_pull_is_can_be_asked_though_it_was_told_a_moment_ago() -> None:
    stages = StartStages(lambda _: None)
    with stages.stage("image"):
        stages.progress("image", "1 of 5 layers")
        stages.progress("image", "2 of 5 layers")
        told = start_of("starting", stages, ContainersConfig(), 0.0)
        assert told is not None
        assert told.detail == "2 of 5 layers"


def test_a_container_on_its_way_out_is_waited_for() -> None:
    told = start_of("stopping", None, ContainersConfig(), 0.0)
    assert told == ContainerStartProgress(what="the container before it to be removed")
