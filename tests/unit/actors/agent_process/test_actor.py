"""The actor of one agent's process: starts it or attaches to it, carries what both sides say."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.agent_process.actor import RECONNECT, AgentProcessActor
from oubliette.actors.agent_process.output import OutputHalf
from oubliette.actors.container.guest_connection import GuestConnectionState
from oubliette.actors.container.messages import Acquire
from oubliette.actors.session.messages import (
    AckOutput,
    AgentAttached,
    AgentGone,
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    EndAgent,
    StdinFrame,
    WithdrawPrompt,
)
from oubliette.actors.start_pace import HELD_SECONDS, StartPace
from oubliette.runtime.agents.memory import need_of
from oubliette.runtime.guest.control_link import ControlLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.records import Session
    from tests.unit.actors.fake_guest import FakeProcess
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


class Scene:
    """One session whose agent has yet to be started, in a container that is up."""

    def __init__(self, world: World, record: Session) -> None:
        self.world, self.record = world, record
        self.told: list[Any] = world.record("session")
        self.to_container: list[Any] = world.record("container", answer="ctr_x")
        self.guest = GuestConnectionState()
        self.unit = world.unit(self.guest)
        self.played = world.open_guest(self.guest)
        self.ref = world.system.ref("agent")

    async def connect(self) -> None:
        assert self.guest.info is not None
        self.control = await ControlLink.connect(self.played.dial, self.played.key, epoch=1)
        self.guest.opened(self.control, self.guest.info)

    @property
    def need(self) -> int:
        """Megabytes that the agent is counted with."""
        return need_of(self.world.config, "scripted", self.world.context.agents["scripted"])

    def begin(self, offset: int = 0, api_key: str | None = None, *, paced: bool = False) -> None:
        self.world.system.spawn(
            AgentProcessActor,
            self.world.context,
            self.unit,
            self.world.system.ref("session"),
            self.record,
            offset,
            turns_done=0,
            has_turn=True,
            paced=paced,
            api_key=api_key,
            name="agent",
        )

    def of(self, kind: type) -> list[Any]:
        return [told for told in self.told if isinstance(told, kind)]

    async def attached(self, number: int = 1) -> FakeProcess:
        await self.world.until(lambda: len(self.of(AgentAttached)) == number)
        return self.played.process

    async def gone(self) -> AgentGone:
        await self.world.until(lambda: self.of(AgentGone))
        (gone,) = self.of(AgentGone)
        await self.world.until(lambda: not self.ref.is_alive())
        return gone

    def said(self) -> list[str]:
        items = [item for output in self.of(AgentOutput) for item in output.items]
        return [item.data["text"] for item in items]

    def runs_already(self) -> None:
        """A server before this one has started the agent."""
        assert self.guest.info is not None
        self.record = msgspec.structs.replace(
            self.record, status="idle", process_id="proc_x", container_id=self.guest.info.id
        )
        self.played.start(proc="proc_x")


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    scene = Scene(world, await world.session(await world.project()))
    await scene.connect()
    yield scene
    await scene.ref.stop()
    await scene.control.aclose()


async def test_it_takes_the_container_and_starts_the_agent_that_the_log_knows_of(
    scene: Scene,
) -> None:
    scene.begin(api_key="key-of-the-agent")
    process = await scene.attached()
    assert scene.to_container == [Acquire(session_id=scene.record.id, memory_mb=scene.need)]
    (starting,) = scene.of(AgentStarting)
    assert process.request["proc"] == starting.process_id
    assert process.request["session"] == scene.record.id
    assert "key-of-the-agent" in process.request["env"].values()
    assert scene.told.index(starting) < scene.told.index(scene.of(AgentStartProgress)[0])
    (attached,) = scene.of(AgentAttached)
    assert (attached.started, attached.stdin_accepted) == (True, 0)


async def test_agents_that_come_back_with_a_server_start_a_few_at_a_time(scene: Scene) -> None:
    """One that says nothing gives its place to the next after a while."""
    pace = StartPace(1)
    scene.world.context = dataclasses.replace(scene.world.context, start_pace=pace)
    before = await pace.take()
    scene.begin(paced=True)
    await scene.world.settle()
    assert not scene.of(AgentStarting)
    before.give_back()
    process = await scene.attached()
    after = asyncio.ensure_future(pace.take())
    await scene.world.settle()
    assert not after.done()
    process.say(type="message", turn=1, text="one")
    await scene.world.until(scene.said)
    scene.ref.tell(AckOutput(out=len(process.output)))
    await after


async def test_an_agent_that_hangs_at_its_start_keeps_no_other_from_its_own(scene: Scene) -> None:
    pace = StartPace(1)
    scene.world.context = dataclasses.replace(scene.world.context, start_pace=pace)
    scene.begin(paced=True)
    await scene.attached()
    after = asyncio.ensure_future(pace.take())
    await scene.world.settle()
    scene.world.clock.advance(HELD_SECONDS)
    await after


async def test_frames_reach_the_agent_in_its_own_words_and_in_order(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    scene.ref.tell(StdinFrame(seq=2, kind="interrupt", turn=1))
    scene.ref.tell(StdinFrame(seq=1, kind="prompt", turn=1, text="hello"))
    await scene.world.until(lambda: len(process.accepted) == 2)
    assert process.heard == [
        {"type": "prompt", "turn": 1, "text": "hello"},
        {"type": "interrupt", "turn": 1},
    ]


async def test_a_prompt_can_be_withdrawn_until_the_agent_has_it(scene: Scene) -> None:
    scene.begin()
    prompt = StdinFrame(seq=1, kind="prompt", turn=1, text="hello")
    scene.ref.tell(prompt)
    assert await scene.ref.ask(WithdrawPrompt(seq=1)) is True
    process = await scene.attached()
    scene.ref.tell(msgspec.structs.replace(prompt, seq=2, text="instead"))
    await scene.world.until(lambda: process.heard)
    assert [heard["text"] for heard in process.heard] == ["instead"]
    assert await scene.ref.ask(WithdrawPrompt(seq=2)) is False


async def test_what_the_agent_says_is_told_and_acked_once_it_is_in_the_log(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    process.say(type="message", turn=1, text="one")
    process.say(type="message", turn=1, text="two")
    await scene.world.until(lambda: len(scene.said()) == 2)
    assert scene.said() == ["one", "two"]
    await scene.world.settle()
    assert process.acked == 0
    first = process.output.index(b"\n") + 1
    scene.ref.tell(AckOutput(out=first))
    await scene.world.until(lambda: process.acked)
    assert process.acked == first


async def test_much_output_is_read_in_pieces_so_that_others_have_their_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, pieces = OutputHalf.read, []

    def noted(self: OutputHalf, data: bytes, offset: int) -> None:
        pieces.append(len(data))
        read(self, data, offset)

    monkeypatch.setattr(OutputHalf, "read", noted)
    scene.begin()
    process = await scene.attached()
    process.say(type="message", turn=1, text="x" * 200_000)
    await scene.world.until(scene.said)
    assert sum(pieces) == len(process.output)
    assert max(pieces) <= 8 * 1024


async def test_a_broken_stream_is_attached_to_again_where_it_broke(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    scene.ref.tell(StdinFrame(seq=1, kind="prompt", turn=1, text="hello"))
    process.say(type="message", turn=1, text="one")
    await scene.world.until(lambda: scene.said() and process.heard)
    process.cut()
    process.say(type="message", turn=1, text="two")
    await scene.attached(2)
    await scene.world.until(lambda: len(scene.said()) == 2)
    assert scene.said() == ["one", "two"]
    again = scene.of(AgentAttached)[1]
    assert (again.started, again.stdin_accepted) == (False, 1)
    assert len(scene.played.asked("start")) == 1
    assert len(process.heard) == 1


async def test_each_attachment_asks_for_what_was_not_read_before(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    process.complain("hm\n")
    process.say(type="message", turn=1, text="one")
    await scene.world.until(scene.said)
    process.cut()
    await scene.attached(2)
    assert process.attached_at == [(0, 0), (len(process.output), len("hm\n"))]


async def test_output_is_not_acked_with_standard_error_before_it_is_in_the_log(
    scene: Scene,
) -> None:
    scene.begin()
    process = await scene.attached()
    process.say(type="message", turn=1, text="one")
    process.complain("hm\n")
    await scene.world.until(lambda: scene.played.asked("ack"))
    (ack,) = scene.played.asked("ack")
    assert (ack["out"], ack["err"]) == (0, len("hm\n"))


async def test_a_frame_that_an_earlier_server_had_written_is_not_given_back(
    scene: Scene,
) -> None:
    scene.runs_already()
    process = scene.played.process
    process.accepted.append(b'{"type": "prompt", "turn": 1, "text": "hello"}\n')
    scene.begin()
    scene.ref.tell(StdinFrame(seq=1, kind="prompt", turn=1, text="hello"))
    await scene.attached()
    assert await scene.ref.ask(WithdrawPrompt(seq=1)) is False, "the agent has it"
    scene.ref.tell(StdinFrame(seq=2, kind="interrupt", turn=1))
    await scene.world.until(lambda: len(process.accepted) == 2)
    assert [heard["type"] for heard in process.heard] == ["prompt", "interrupt"]


async def test_an_agent_of_an_earlier_server_is_taken_over_where_the_log_ends(
    scene: Scene,
) -> None:
    scene.runs_already()
    process = scene.played.process
    process.say(type="message", turn=1, text="in the log")
    end_of_log = len(process.output)
    process.say(type="message", turn=1, text="new")
    scene.begin(end_of_log)
    await scene.world.until(scene.said)
    assert scene.said() == ["new"]
    assert process.attached_at == [(end_of_log, 0)]
    assert scene.played.asked("start") == []
    lease = Acquire(session_id=scene.record.id, start=False, memory_mb=scene.need)
    assert scene.to_container == [lease]
    assert not scene.of(AgentAttached)[0].started


async def test_an_agent_that_did_not_outlive_the_server_is_gone(scene: Scene) -> None:
    scene.runs_already()
    scene.played.processes.clear()
    scene.begin()
    gone = await scene.gone()
    assert "the agent's process is gone" in gone.reason
    assert not gone.start_failed


REFUSALS = ["no header within 5 seconds", "bad ticket", "header too long", "offset beyond the end"]


@pytest.mark.parametrize("reason", REFUSALS)
async def test_an_agent_outlives_refusals_of_a_guest_that_was_frozen(
    scene: Scene, reason: str
) -> None:
    scene.begin()
    process = await scene.attached()
    scene.played.refusing_attach = reason
    process.cut()
    await scene.world.until(lambda: scene.played.refused_attaches == 2)
    scene.played.refusing_attach = ""
    process.say(type="message", turn=1, text="still here")
    await scene.world.until(scene.said)
    assert scene.said() == ["still here"]
    assert (scene.of(AgentGone), process.signals) == ([], [])


async def test_a_guest_that_goes_on_refusing_is_given_up_with_its_reason(scene: Scene) -> None:
    scene.runs_already()
    scene.played.refusing_attach = "no header within 5 seconds"
    scene.begin()
    await scene.world.until(lambda: scene.played.refused_attaches)
    await scene.world.clock.elapse(RECONNECT + 1)
    assert "cannot be reached" in (gone := await scene.gone()).reason
    assert "no header within 5 seconds" in gone.reason
    assert scene.played.refused_attaches == 2


async def test_a_container_that_is_lost_is_the_agent_s_end(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    scene.guest.lost("container lost: it ended")
    process.cut()
    assert (await scene.gone()).reason == "container lost: it ended"


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        ({"code": 3}, "the agent ended with exit code 3: out of ideas"),
        ({"signal": 11}, "the agent was killed by signal 11: out of ideas"),
    ],
)
async def test_the_end_of_the_agent_is_told_once_with_its_last_words(
    scene: Scene, ended: dict[str, int], reason: str
) -> None:
    scene.begin()
    process = await scene.attached()
    process.complain("out of ideas\n")
    process.exit(**ended)
    gone = await scene.gone()
    assert gone.reason == reason
    assert (gone.exit_code, gone.signal) == (ended.get("code"), ended.get("signal"))
    assert process.signals == ["KILL"], "what it left behind in its process group goes too"


async def test_a_program_that_is_missing_is_named_as_the_reason(scene: Scene) -> None:
    scene.played.refusing["start"] = {"code": "not_found", "message": "python3: not found"}
    scene.begin()
    gone = await scene.gone()
    assert gone.start_failed
    (stage,) = scene.of(AgentStartProgress)
    assert (stage.state, stage.container_id) == ("failed", scene.guest.info.id)
    assert "python3" in stage.error


async def test_an_agent_that_is_to_end_gets_a_term_and_after_the_grace_a_kill(
    scene: Scene,
) -> None:
    scene.begin()
    process = await scene.attached()
    process.stubborn.add("TERM")
    scene.ref.tell(EndAgent(grace=3.0))
    await scene.world.settle(2.9)
    assert process.signals == ["TERM"]
    await scene.world.settle(0.2)
    assert "signal 9" in (await scene.gone()).reason
    assert process.signals[:2] == ["TERM", "KILL"]


async def test_an_agent_that_is_to_end_before_its_start_is_never_started(scene: Scene) -> None:
    scene.guest.closed()  # the guest is away for a moment
    scene.begin()
    scene.ref.tell(EndAgent())
    assert (await scene.gone()).reason == "the agent was ended before it started"
    assert scene.played.asked("start") == []


async def test_a_stop_of_the_actor_leaves_the_agent_alone(scene: Scene) -> None:
    scene.begin()
    process = await scene.attached()
    await scene.ref.stop()
    assert process.signals == []
    assert scene.of(AgentGone) == []


async def test_output_that_is_stored_after_the_actors_end_needs_no_acknowledgement(
    scene: Scene,
) -> None:
    scene.begin()
    await scene.attached()
    await scene.ref.stop()
    scene.ref.tell(AckOutput(out=1))
    assert list(scene.world.system.dead_letters) == []


async def test_an_agent_that_is_found_when_its_session_has_ended_is_of_no_more_interest(
    scene: Scene,
) -> None:
    scene.runs_already()
    await scene.world.system.ref("session").stop()
    scene.begin()
    scene.ref.tell(StdinFrame(seq=1, kind="prompt", turn=1, text="hello"))
    await scene.world.until(lambda: scene.played.process.heard)  # so it has attached
    assert list(scene.world.system.dead_letters) == []
