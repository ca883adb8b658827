"""The actor of one session, over a store in memory, with an agent played by the test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.container.guest_connection import GuestConnectionState
from oubliette.actors.container.messages import GetContainer, Release
from oubliette.actors.messages import EndSession, GetSession, InterruptSession, ReadEvents
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallsActor
from oubliette.actors.session.actor import SessionActor
from oubliette.actors.session.messages import (
    AgentOutput,
    LinkRequest,
    OpenLink,
    OutputEvent,
    SubmitTurn,
)
from oubliette.actors.session.session_end import END_LIMIT
from oubliette.actors.session.state import SessionMemory
from oubliette.config.schema import Config, SessionsConfig
from oubliette.errors import Conflict, LimitExceeded, SessionHandover
from oubliette.kit import UnhandledMessage
from oubliette.kit.fair_loop import working_for
from oubliette.records import CallerTool, IdempotencyKey, Used
from oubliette.runtime.guest.control_link import ControlLink
from oubliette.runtime.store import queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.records import Session
    from tests.unit.actors.fake_guest import FakeProcess
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


class Scene:
    """One session that was just recorded, with two prompts, and its container."""

    def __init__(self, world: World, record: Session) -> None:
        self.world, self.record = world, record
        self.to_container: list[Any] = world.record("container", answer="ctr_x")
        self.guest = GuestConnectionState()
        self.to_socket: list[Any] = []
        self.unit = world.unit(self.guest, self.to_socket)
        self.played = world.open_guest(self.guest)
        self.memory = SessionMemory()
        self.ref = world.system.ref("session")

    async def connect(self) -> None:
        assert self.guest.info is not None
        self.control = await ControlLink.connect(self.played.dial, self.played.key, epoch=1)
        self.guest.opened(self.control, self.guest.info)

    def begin(self) -> None:
        self.world.system.spawn(
            SessionActor,
            self.world.context,
            self.unit,
            self.record.id,
            self.memory,
            name="session",
        )

    async def heard(self, *texts: str) -> FakeProcess:
        """The agent, once it has heard these prompts and no others."""

        def prompts() -> list[str]:
            processes = self.played.processes.values()
            said = [said for process in processes for said in process.heard]
            return [each["text"] for each in said if each["type"] == "prompt"]

        await self.world.until(lambda: len(prompts()) >= len(texts))
        assert prompts() == list(texts)
        return self.played.process

    async def rested(self) -> Session:
        await self.world.until(lambda: not self.ref.is_alive(), seconds=0.1)
        return await self.world.stored(self.record)

    async def outcomes(self) -> list[str | None]:
        return [turn.outcome for turn in await self.world.reader.turns(self.record.id)]


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    scene = Scene(world, await world.session(await world.project(), prompts=("one", "two")))
    await scene.connect()
    yield scene
    await scene.ref.stop()
    await scene.control.aclose()


def complete(process: FakeProcess, turn: int, text: str) -> None:
    process.say(type="completion", turn=turn, final_text=text, status="completed")


async def test_the_prompts_that_are_stored_are_given_one_after_the_other(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    await scene.world.settle()
    await scene.heard("one")
    complete(process, 1, "first")
    await scene.heard("one", "two")
    complete(process, 2, "second")
    await scene.world.until(lambda: process.acked == len(process.output))
    assert await scene.outcomes() == ["completed", "completed"]
    record = await scene.ref.ask(GetSession())
    assert (record.status, record.final_response) == ("idle", "second")


async def test_what_the_agent_says_can_be_read_once_it_is_stored(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    process.say(type="message", turn=1, text="hi")
    await scene.world.until(lambda: process.acked == len(process.output))
    read = await scene.ref.ask(ReadEvents())
    assert read.events[-1].type == "message"
    assert read.events[-1].data["text"] == "hi"
    log = await scene.world.reader.log(scene.record.id, -1, 100, 1 << 20)
    assert list(log.events) == list(read.events)


async def test_a_child_at_any_depth_works_for_who_has_started_the_tree(world: World) -> None:
    """Each session has a principal for its children, which would have a part of the loop's time."""
    project = await world.project()
    above = root = await world.session(project, principal="alice")
    for _ in range(2):
        above = await world.session(
            project,
            principal=f"session:{above.id}",
            parent_session_id=above.id,
            root_session_id=root.id,
        )
    scene = Scene(world, above)
    scene.begin()
    await world.until(lambda: any(type(each) is OpenLink for each in scene.to_socket))
    (link,) = (each for each in scene.to_socket if type(each) is OpenLink)
    assert link.principal == "alice"
    assert [each.principal for each in (root, above)] == [
        "alice",
        f"session:{above.parent_session_id}",
    ]
    actor: Any = scene.ref.resolve()
    assert actor._actor_context[working_for] == "alice"
    await scene.ref.stop()


async def test_a_session_that_begins_without_the_database_begins_once_it_is_back(
    scene: Scene,
) -> None:
    away = scene.world.database_away(fails=6)
    scene.begin()
    await scene.heard("one")
    assert (away.fails, scene.memory.crashed_too_often(scene.world.clock.monotonic())) == (0, False)


async def test_a_successor_goes_on_where_the_log_ends(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    process.say(type="message", turn=1, text="before")
    await scene.world.until(lambda: process.acked == len(process.output))
    await scene.ref.kill()
    process.say(type="message", turn=1, text="meanwhile")
    scene.begin()
    complete(process, 1, "done")
    await scene.heard("one", "two")
    read = await scene.ref.ask(ReadEvents())
    said = [event.data["text"] for event in read.events if event.type == "message"]
    assert said == ["before", "meanwhile"]
    assert len(scene.played.asked("start")) == 1
    assert await scene.outcomes() == ["completed", None]


async def test_output_that_is_read_twice_is_taken_in_once(scene: Scene) -> None:
    scene.begin()
    await scene.heard("one")
    await scene.world.settle()
    record = await scene.world.stored(scene.record)
    items = tuple(
        OutputEvent(type=kind, data=data, offset=offset, ordinal=ordinal, ack=offset)
        for kind, data, offset, ordinal in (
            ("message", {"text": "a"}, 10_000, 0),
            ("usage", {"cost_usd": 0.5, "input_tokens": 3}, 10_000, 1),
            ("completion", {"status": "completed", "final_text": "first"}, 20_000, 0),
        )
    )
    output = AgentOutput(process_id=record.process_id or "", items=items)
    await scene.ref.ask(output)
    await scene.heard("one", "two")
    before = await scene.ref.ask(ReadEvents())
    await scene.ref.ask(output)
    await scene.ref.ask(AgentOutput(process_id=output.process_id, items=items[1:]))
    await scene.world.settle()
    after = await scene.ref.ask(ReadEvents())
    assert (after.events, after.turn_done) == (before.events, False)
    assert (after.session.status, after.session.cost_usd) == ("running", 0.5)
    assert (after.session.input_tokens, await scene.outcomes()) == (3, ["completed", None])
    counted = await scene.world.reader.run(queries.usage_sums, "session")
    assert counted.total == Used(input_tokens=3, reported_usd=0.5, turns=1)


async def test_a_turn_that_is_over_keeps_when_and_at_which_cost_it_began(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    began = (await scene.world.reader.turns(scene.record.id))[0]
    assert (began.state, began.cost_before) == ("running", 0.0)
    process.say(type="usage", turn=1, cost_usd=0.5, tokens=3)
    complete(process, 1, "done")
    await scene.heard("one", "two")
    await scene.world.settle()
    over, following = await scene.world.reader.turns(scene.record.id)
    assert (over.state, over.began_at, over.began_index) == (
        "done",
        began.began_at,
        began.began_index,
    )
    assert following.cost_before == 0.5


async def test_one_more_prompt_than_may_wait_is_refused_and_not_stored(scene: Scene) -> None:
    scene.world.configure(Config(sessions=SessionsConfig(max_queued_messages=2)))
    scene.begin()
    process = await scene.heard("one")
    submitted = await scene.ref.ask(SubmitTurn(prompt="three"))
    assert submitted.turn == 3
    with pytest.raises(LimitExceeded, match="2 messages wait"):
        await scene.ref.ask(SubmitTurn(prompt="four"))
    complete(process, 1, "")
    await scene.heard("one", "two")
    assert len(await scene.outcomes()) == 3


def keyed(prompt: str, *, digest: bytes = b"d") -> SubmitTurn:
    key = IdempotencyKey(
        principal="p", tool="session_message", key="k", digest=digest, created_at=1e12, answer={}
    )
    return SubmitTurn(prompt=prompt, idempotency=key)


async def test_a_request_that_is_repeated_while_it_is_stored_runs_once(scene: Scene) -> None:
    scene.begin()
    await scene.heard("one")
    answers = await asyncio.gather(*(scene.ref.ask(keyed("three")) for _ in range(3)))
    assert {answer.turn for answer in answers} == {3}
    assert (await scene.ref.ask(keyed("three"))).turn == 3
    with pytest.raises(Conflict, match="other arguments"):
        await scene.ref.ask(keyed("four", digest=b"e"))
    assert len(await scene.outcomes()) == 3


async def test_the_answer_that_is_kept_for_a_repeated_request_names_the_turn(scene: Scene) -> None:
    scene.begin()
    await scene.heard("one")
    submitted = await scene.ref.ask(keyed("three"))
    kept = await scene.world.reader.idempotency("p", "session_message", "k")
    assert kept is not None
    assert kept.answer is not None
    assert kept.answer["turn"] == 3
    assert -1 <= kept.answer["last_index"] <= submitted.log_end


async def test_an_interrupt_ends_the_turn_and_the_next_begins(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    assert await scene.ref.ask(InterruptSession()) == "running"
    await scene.world.until(lambda: {"type": "interrupt", "turn": 1} in process.heard)
    process.say(type="completion", turn=1, final_text="", status="interrupted")
    await scene.heard("one", "two")
    assert await scene.outcomes() == ["interrupted", None]


async def test_an_agent_that_ends_fails_its_session_and_what_waited_did_not_run(
    scene: Scene,
) -> None:
    scene.begin()
    process = await scene.heard("one")
    process.exit(3)
    record = await scene.rested()
    assert record.status == "failed"
    assert record.status_reason == "the agent ended with exit code 3"
    assert await scene.outcomes() == ["failed", "failed"]
    assert Release(session_id=record.id) in scene.to_container
    assert scene.played.processes == {}


async def test_a_session_that_is_ended_ends_its_agent_and_is_over_for_good(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    assert await scene.ref.ask(EndSession(reason="session_end")) == "completed"
    record = await scene.rested()
    assert (record.status, record.ended_by) == ("completed", "session_end")
    assert process.signals[0] == "TERM"
    assert scene.world.context.session_registry.session(record.id) is None


@pytest.mark.parametrize("final", [True, False])
async def test_a_message_to_a_session_that_ends_is_told_what_to_do(
    scene: Scene, final: bool
) -> None:
    """One that a message resumes is to be tried again in a moment."""
    scene.begin()
    process = await scene.heard("one")
    process.stubborn = {"TERM"}
    ending = asyncio.ensure_future(scene.ref.ask(EndSession(reason="it ends", final=final)))
    await scene.world.until(lambda: process.signals)
    with pytest.raises(Conflict) as refused:
        await scene.ref.ask(SubmitTurn(prompt="three"))
    assert isinstance(refused.value, SessionHandover) is not final
    assert "another" in str(refused.value.hint) if final else "again" in str(refused.value.hint)
    scene.world.clock.advance(END_LIMIT)
    await ending


async def test_a_session_without_a_prompt_ends_after_its_idle_timeout(scene: Scene) -> None:
    scene.begin()
    process = await scene.heard("one")
    complete(process, 1, "")
    await scene.heard("one", "two")
    complete(process, 2, "")
    await scene.world.until(lambda: process.acked == len(process.output))
    limit = scene.world.config.sessions.idle_timeout_seconds
    await scene.world.settle(limit / 2)
    assert scene.ref.is_alive()
    # No further than this: a write under way would be overdue by the clock that jumps
    await scene.world.settle(limit / 2 + 0.5)
    record = await scene.rested()
    assert (record.status, record.ended_by) == ("timed_out", None)
    assert process.signals[0] == "TERM"


async def test_an_actor_that_fails_again_and_again_fails_its_session(scene: Scene) -> None:
    now = scene.world.clock.monotonic()
    scene.memory.crashes = [now - 30.0, now - 20.0, now - 10.0, now]
    scene.begin()
    record = await scene.rested()
    assert record.status == "failed"
    assert "failed repeatedly" in (record.status_reason or "")
    assert scene.played.asked("start") == []


async def test_a_message_for_somebody_else_is_refused_and_changes_nothing(scene: Scene) -> None:
    scene.begin()
    await scene.heard("one")
    with pytest.raises(UnhandledMessage, match="GetContainer"):
        await scene.ref.ask(GetContainer())
    assert (await scene.ref.ask(GetSession())).status == "running"


# ---------------------------------------------------------------------- the limit of open calls


async def calling(scene: Scene) -> list[Any]:
    """Have the session make calls of its caller's tool `add`; what its client is answered."""
    world = scene.world
    caller = {"caller_id": "shop", "caller_tools": (CallerTool(name="add"),)}
    project = await world.project(name="shop")
    scene.record = await world.session(project, prompts=("one",), **caller)
    world.record("callers", answer="caller")
    world.record("caller")
    answers = world.record("link")
    scene.begin()
    await scene.heard("one")
    return answers


def call(scene: Scene, number: int) -> None:
    params = {"tool": "add", "arguments": {"n": number}, "call_id": f"call-{number}"}
    scene.ref.tell(
        LinkRequest(link="link", generation=1, id=number, method="caller_tool", params=params)
    )


async def requests(scene: Scene) -> list[Any]:
    """The arguments of the calls in the log."""
    events = (await scene.ref.ask(ReadEvents())).events
    return [each.data["arguments"] for each in events if each.type == "caller_tool_request"]


async def test_an_open_call_is_counted_until_it_is_settled_over_a_failure_of_the_session(
    scene: Scene,
) -> None:
    await calling(scene)
    world, table = scene.world, scene.world.open_calls
    for number in range(2):
        call(scene, number)
    await world.until(lambda: table.total("alice") == 2)
    while len(await requests(scene)) < 2:
        await world.settle()
    await scene.ref.kill()
    await world.until(lambda: table.total("alice") == 0)
    scene.begin()
    await world.until(lambda: table.total("alice") == 2)
    await scene.ref.ask(EndSession(reason="session_end"))
    await world.until(lambda: table.total("alice") == 0)


async def test_calls_that_are_over_the_limit_are_refused_and_not_in_the_log(scene: Scene) -> None:
    await scene.world.limit_calls(1)
    answers = await calling(scene)
    for number in range(3):
        call(scene, number)
    await scene.world.until(lambda: len(answers) == 2)
    assert all("callers.max_pending_requests: 1" in each.error["message"] for each in answers)
    await scene.world.settle()
    assert await requests(scene) == [{"n": 0}]
    call(scene, 1)
    await scene.world.until(lambda: len(answers) == 3)
    assert answers[2].error == answers[0].error, "a call that was refused may be made again"


async def test_a_call_that_is_asked_for_while_its_owner_is_away_is_made_when_it_is_back(
    scene: Scene,
) -> None:
    await calling(scene)
    await scene.world.system.ref(OPEN_CALLS).kill()
    call(scene, 0)
    await scene.world.settle()
    assert scene.world.open_calls.total("alice") == 0
    scene.world.system.spawn(OpenCallsActor, 1, scene.world.open_calls, name=OPEN_CALLS)
    await scene.world.until(lambda: scene.world.open_calls.total("alice") == 1)
