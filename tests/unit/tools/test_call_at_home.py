"""Calls that another machine of a cluster carries out: two machines that share a store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.clock import SystemClock
from oubliette.errors import Unavailable
from oubliette.kit import System
from oubliette.kit.fair_loop import working_for
from oubliette.tools import forwarded_calls
from oubliette.tools.forwarded_calls import ForwardedCallsActor
from oubliette.tools.home_nodes import CALLS, CallProgressed, ForwardedCall, ProgressReceiver
from oubliette.tools.registry import TABLE
from tests.unit.tools import toolkit
from tests.unit.tools.test_both_doors import masked, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from oubliette.kit import Ref
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

SECONDS = 10.0


class Placed:
    """The placements that all machines share, and the machines by name."""

    def __init__(self) -> None:
        self.homes: dict[str, str] = {}
        self.next = "b"
        """Where new projects go, and those without a home."""
        self.refusal: Exception | None = None
        self.machines: dict[str, Machine] = {}


class Machine:
    """One machine: its tools, and what it believes of the placements."""

    def __init__(self, name: str, bench: Bench, placed: Placed) -> None:
        self.name = name
        self.bench = bench
        self.believed: dict[str, str] = {}
        self._placed = placed
        placed.machines[name] = self
        bench.services.nodes = self
        bench.system.spawn(ForwardedCallsActor, bench.services, name=CALLS)

    @property
    def system(self) -> System:
        return self.bench.system

    async def home(self, project_id: str, *, needed: bool) -> str | None:
        node = self.believed.get(project_id)
        if node is None:
            if needed:
                self._placed.homes.setdefault(project_id, self._placed.next)
            node = self._placed.homes.get(project_id)
        if node is None:
            return None
        self.believed[project_id] = node
        return None if node == self.name else node

    async def home_of_new(self, arguments: Mapping[str, Any]) -> str | None:
        if self._placed.refusal is not None:
            raise self._placed.refusal
        assert "name" in arguments
        return None if self._placed.next == self.name else self._placed.next

    def forget(self, project_id: str) -> None:
        self.believed.pop(project_id, None)

    def ref(self, node: str, name: str) -> Ref:
        return self._placed.machines[node].system.ref(name)


class Two:
    """Two machines with one store; calls come to `a`."""

    def __init__(self, a: Bench, b: Bench, placed: Placed) -> None:
        self.a, self.b, self.placed = a, b, placed
        self.at_a, self.at_b = Machine("a", a, placed), Machine("b", b, placed)


@contextlib.asynccontextmanager
async def two_machines() -> AsyncIterator[Two]:
    clock = SystemClock()
    async with toolkit.bench(clock) as a, System("b", clock=clock) as other:
        b = toolkit.Bench(other, a.store, a.reader, clock)
        yield Two(a, b, Placed())
        await b.keys.aclose()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with two_machines() as made:
        yield made


async def test_a_session_is_spawned_at_the_home_of_its_project(two: Two) -> None:
    project = await two.b.project()
    made = await two.a.do("session_spawn", project_id=project.id, prompt="p")
    assert [len(two.a.spawns), len(two.b.spawns)] == [0, 1]
    assert two.b.session_registry.session(made["session_id"]) is not None
    assert two.placed.homes == {project.id: "b"}


async def test_a_call_is_work_for_its_principal_at_the_home_too(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await two.b.project()
    worked_for: list[str] = []
    call = forwarded_calls.call_here

    async def call_here(*given: Any) -> Any:
        worked_for.append(working_for.get())
        return await call(*given)

    monkeypatch.setattr(forwarded_calls, "call_here", call_here)
    given = {"project_id": project.id, "prompt": "p"}
    for principal in ("alice", "bob"):
        await two.a.call("session_spawn", given, principal=principal)
    assert worked_for == ["alice", "bob"]


async def test_a_project_is_created_where_there_is_room_for_it(two: Two) -> None:
    made = await two.a.do("project_create", name="new")
    assert [len(two.a.asked), len(two.b.asked)] == [0, 1]
    two.placed.next = "a"
    await two.a.do("project_create", name="another")
    assert [len(two.a.asked), len(two.b.asked)] == [1, 1]
    assert (await two.b.do("project_get", project_id=made["id"]))["name"] == "new"


async def test_a_project_that_no_machine_can_take_is_refused_with_the_reasons(two: Two) -> None:
    two.placed.refusal = Unavailable("no machine can take it: b has no memory left")
    assert "b has no memory left" in await two.a.error("project_create", name="new")


async def test_reads_give_no_project_a_home(two: Two) -> None:
    project = await two.a.project()
    session = await two.a.session(project)
    two.placed.homes.clear()
    await two.a.do("session_get", session_id=session.id)
    await two.a.do("session_events", session_id=session.id)
    await two.a.do("project_get", project_id=project.id)
    assert two.placed.homes == {}


@pytest.mark.parametrize(
    ("scope", "project"), [("read", "its"), ("admin", "unknown"), ("bound", "its")]
)
async def test_a_call_that_is_refused_gives_no_project_a_home(
    two: Two, scope: str, project: str
) -> None:
    its = await two.b.project()
    other = await two.b.project("other")
    project_id = its.id if project == "its" else ids.new_id(ids.PROJECT)
    level = f"project:{other.id}" if scope == "bound" else scope
    said = await two.a.error("session_spawn", scope=level, project_id=project_id, prompt="p")
    assert said == await two.b.error(
        "session_spawn", scope=level, project_id=project_id, prompt="p"
    )
    assert two.placed.homes == {}
    assert two.b.spawns == []


async def test_a_machine_that_is_not_the_home_any_more_says_so_and_the_new_one_is_asked(
    two: Two,
) -> None:
    project = await two.b.project()
    two.placed.homes[project.id] = "a"
    two.at_a.believed[project.id] = "b"
    two.at_b.believed[project.id] = "b"
    await two.a.do("session_spawn", project_id=project.id, prompt="p")
    assert [len(two.a.spawns), len(two.b.spawns)] == [1, 0]


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled_at_its_home(two: Two) -> None:
    project = await two.b.project()
    session = await two.b.session(project, live=True)
    two.placed.homes[project.id] = "b"
    reading = asyncio.create_task(
        two.a.do("session_events", session_id=session.id, wait_seconds=30)
    )
    async with asyncio.timeout(SECONDS):
        await two.b.waited.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        calls = two.b.system.actor(CALLS)
        assert isinstance(calls, ForwardedCallsActor)
        while calls.running:
            await asyncio.sleep(0)


async def test_a_machine_that_is_lost_in_a_call_is_an_error_that_says_what_to_do(
    two: Two,
) -> None:
    project = await two.b.project()
    session = await two.b.session(project, live=True)
    two.placed.homes[project.id] = "b"
    asked = asyncio.create_task(
        two.a.call("session_events", {"session_id": session.id, "wait_seconds": 30})
    )
    ending = asyncio.create_task(two.a.call("session_interrupt", {"session_id": session.id}))
    async with asyncio.timeout(SECONDS):
        assert not (await ending).is_error
        await two.b.waited.wait()
        await two.b.system.ref(CALLS).kill()
        # What only reads is asked again until the machine is back.
        two.b.system.spawn(ForwardedCallsActor, two.b.services, name=CALLS)
        await two.b.write(session, text="t")
        assert (await asked).structured["events"][0]["text"] == "t"
        await two.b.system.ref(CALLS).kill()
        lost = await two.a.call("session_interrupt", {"session_id": session.id})
    assert lost.code == "unavailable"
    assert "look whether it was done" in lost.text


async def test_progress_of_a_forwarded_call_arrives_where_its_caller_is(two: Two) -> None:
    project = await two.b.project()
    two.placed.homes[project.id] = "b"
    two.b.services.imaging = Imaging()  # type: ignore[assignment] - pulls nothing
    heard: list[str] = []
    result = await two.a.call(
        "container_refresh", {"project_id": project.id}, progress=heard.append
    )
    assert result.structured["log_tail"] == "done"
    assert heard == ["layer 1", "layer 2"]
    assert not [name for name in two.a.system.names if name.startswith("progress/")]


class Imaging:
    """Images that are there after two steps."""

    def image_of(self, kind: str, project: object) -> str:
        return kind

    async def refresh(self, kind: str, project: object, progress: Any) -> str:
        progress("layer 1")
        progress("layer 2")
        return "done"


async def test_a_receiver_of_progress_gives_each_text_to_the_call(two: Two) -> None:
    heard: list[str] = []
    receiver = two.a.system.spawn(ProgressReceiver, heard.append)
    receiver.tell(CallProgressed(text="layer 1"))
    await receiver.stop()
    assert heard == ["layer 1"]


async def test_a_call_for_a_project_that_lives_elsewhere_is_not_carried_out(two: Two) -> None:
    project = await two.b.project()
    two.placed.homes[project.id] = "a"
    call = ForwardedCall(
        call_id="c",
        tool="session_spawn",
        arguments=b"{}",
        caller=toolkit.CallContext(
            principal="alice", token_id="t", scope=toolkit.scopes.parse("admin"), transport="http"
        ),
        project_id=project.id,
    )
    assert (await two.b.system.ref(CALLS).ask(call)).result is None


@pytest.mark.parametrize(
    "tool", [each for each in TABLE.values() if each.runs_on != "local"], ids=lambda each: each.name
)
@pytest.mark.parametrize("scope", ["admin", "read"])
async def test_the_answer_is_the_one_that_the_home_gives(tool: Any, scope: str) -> None:
    answers: list[str] = []
    for asked in ("a", "b"):
        async with two_machines() as two:
            two.placed.next = "b"
            known = await world(two.b)
            two.placed.homes[known["project_id"]] = "b"
            given = {
                name: known[name]
                for name in tool.params.__struct_fields__
                if name in known and name != "container_type"
            }
            result = await getattr(two, asked).call(tool.name, given, scope=scope)
            answers.append(masked(f"{result.is_error}: {result.text}"))
    assert answers[0] == answers[1]
