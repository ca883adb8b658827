"""Supervisors: who is started again, when, and when they give up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tenacity

from oubliette.errors import AlreadyExists
from oubliette.kit import (
    ActorDead,
    ChildSpec,
    Ref,
    StartChild,
    StopChild,
    Supervisor,
    System,
    WhichChildren,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Message,
    Watch,
    Watcher,
    handles,
    inside,
    until_gone,
)

pytestmark = pytest.mark.anyio


def specs(*names: str, **settings: Any) -> list[ChildSpec]:
    return [ChildSpec(name=name, cls=Counter, **settings) for name in names]


async def fail(system: System, ref: Ref) -> None:
    """Let a child fail, and wait until its supervisor has seen it."""
    actor = ref.resolve()
    assert actor is not None
    ref.tell(Boom())
    while actor._actor_phase != "gone":
        await asyncio.sleep(0)


async def test_children_are_started_in_order_under_their_supervisors_name(
    system: System,
) -> None:
    notes: list[Any] = []
    sup = system.spawn(
        Supervisor, specs("a", "b", "c", kwargs={"notes": notes}), name="s", shutdown=9.0
    )
    children = await sup.ask(WhichChildren())
    assert list(children) == ["a", "b", "c"]
    assert list(children.values()) == sorted(children.values())
    for name in ("s/a", "s/b", "s/c"):
        await system.ref(name).ask(Get())
    await sup.stop()
    assert [note[1] for note in notes if note[0] == "exit"] == ["s/c", "s/b", "s/a"]


@pytest.mark.parametrize(
    ("strategy", "changed"),
    [
        ("one_for_one", {"b"}),
        ("one_for_all", {"a", "b", "c"}),
        ("rest_for_one", {"b", "c"}),
    ],
)
async def test_the_strategy_says_who_is_started_anew(
    system: System, strategy: Any, changed: set[str]
) -> None:
    sup = system.spawn(Supervisor, specs("a", "b", "c"), strategy, name="s")
    before = await sup.ask(WhichChildren())
    await fail(system, system.ref("s/b"))
    after = await sup.ask(WhichChildren())
    assert {name for name in before if before[name] != after[name]} == changed
    assert list(after) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("restart", "how", "comes_back"),
    [
        ("permanent", "boom", True),
        ("permanent", "stop", True),
        ("permanent", "kill", True),
        ("transient", "boom", True),
        ("transient", "stop", False),
        ("transient", "kill", True),
        ("temporary", "boom", False),
        ("temporary", "stop", False),
        ("temporary", "kill", False),
    ],
)
async def test_the_kind_of_restart_says_after_which_endings(
    system: System, restart: Any, how: str, comes_back: bool
) -> None:
    sup = system.spawn(Supervisor, specs("a", restart=restart), name="s")
    child = system.ref("s/a")
    before = await sup.ask(WhichChildren())
    if how == "boom":
        await fail(system, child)
    else:
        await getattr(child, how)()
    after = await sup.ask(WhichChildren())
    assert ("a" in after) is comes_back
    assert after != before


async def test_more_restarts_than_allowed_end_the_supervisor_and_all_below(
    system: System, clock: VirtualClock
) -> None:
    sup = system.spawn(Supervisor, specs("a", "b"), max_restarts=2, within=5.0, name="s")
    watcher = system.spawn(Watcher)
    await watcher.ask(Watch(name="s"))
    for _ in range(2):
        await fail(system, system.ref("s/a"))
        await sup.ask(WhichChildren())
    await clock.elapse(5.0)
    for _ in range(2):
        await fail(system, system.ref("s/b"))
        await sup.ask(WhichChildren())
    await fail(system, system.ref("s/a"))
    await until_gone(sup)
    [down] = await watcher.ask(Downs())
    assert down.reason == "failed"
    assert down.error == (
        "RestartIntensity: s: more than 2 restarts within 5 s; "
        "the last was a, failed: ValueError: boom"
    )
    assert set(system.names) == {watcher.name}


async def test_a_supervisor_that_gives_up_is_started_again_by_its_own(system: System) -> None:
    inner = ChildSpec(name="inner", cls=Supervisor, args=(specs("a"),), kwargs={"max_restarts": 0})
    outer = system.spawn(Supervisor, [inner], name="outer")
    before = (await outer.ask(WhichChildren()), system.ref("outer/inner/a").incarnation)
    await system.ref("outer/inner").ask(WhichChildren())
    inner_actor = inside(system.ref("outer/inner"))
    await fail(system, system.ref("outer/inner/a"))
    while inner_actor._actor_phase != "gone":
        await asyncio.sleep(0)
    after = (await outer.ask(WhichChildren()), system.ref("outer/inner/a").incarnation)
    assert after[0]["inner"] > before[0]["inner"]
    await system.ref("outer/inner").ask(WhichChildren())
    assert system.ref("outer/inner/a").incarnation > before[1]


async def test_backoff_waits_longer_with_each_failure_in_a_row(
    system: System, clock: VirtualClock
) -> None:
    sup = system.spawn(
        Supervisor,
        specs("a"),
        max_restarts=100,
        within=5.0,
        backoff=tenacity.wait_exponential(multiplier=1, max=4),
        name="s",
    )
    await sup.ask(WhichChildren())
    waits: list[float | None] = []
    for _ in range(4):
        await fail(system, system.ref("s/a"))
        assert await sup.ask(WhichChildren()) == {}
        waits.append(clock.next_due())
        await clock.elapse(clock.next_due() or 0)
        assert list(await sup.ask(WhichChildren())) == ["a"]
    await clock.elapse(5.0)
    await fail(system, system.ref("s/a"))
    await sup.ask(WhichChildren())
    waits.append(clock.next_due())
    assert waits == [1, 2, 4, 4, 1]


async def test_a_wider_group_takes_over_children_that_wait_for_their_backoff(
    system: System, clock: VirtualClock
) -> None:
    sup = system.spawn(
        Supervisor,
        specs("a", "b", "c"),
        "rest_for_one",
        max_restarts=9,
        backoff=tenacity.wait_fixed(2),
        name="s",
    )
    await sup.ask(WhichChildren())
    await fail(system, system.ref("s/b"))
    assert list(await sup.ask(WhichChildren())) == ["a"]
    await clock.elapse(1)
    await fail(system, system.ref("s/a"))
    assert await sup.ask(WhichChildren()) == {}
    await clock.elapse(1.5)
    assert await sup.ask(WhichChildren()) == {}, "b must not come before a"
    await clock.elapse(0.5)
    assert list(await sup.ask(WhichChildren())) == ["a", "b", "c"]


async def test_a_wider_group_takes_over_those_that_wait_with_a_child_that_was_taken_out(
    system: System, clock: VirtualClock
) -> None:
    sup = system.spawn(
        Supervisor,
        specs("a", "b"),
        "one_for_all",
        max_restarts=9,
        backoff=tenacity.wait_fixed(2),
        name="s",
    )
    await sup.ask(WhichChildren())
    await fail(system, system.ref("s/a"))
    [new] = specs("c")
    await sup.ask(StartChild(spec=new))
    assert await sup.ask(StopChild(name="a")) is True
    await clock.elapse(1)
    await fail(system, system.ref("s/c"))
    assert await sup.ask(WhichChildren()) == {}
    await clock.elapse(1.5)
    assert await sup.ask(WhichChildren()) == {}, "b must not come before its group"
    await clock.elapse(0.5)
    assert list(await sup.ask(WhichChildren())) == ["b", "c"]


async def test_children_come_and_go_while_the_supervisor_runs(system: System) -> None:
    sup = system.spawn(Supervisor, specs("a"), name="s")
    [extra] = specs("x", args=(7,))
    assert await sup.ask(StartChild(spec=extra)) == "s/x"
    assert await system.ref("s/x").ask(Get()) == 7
    with pytest.raises(AlreadyExists):
        await sup.ask(StartChild(spec=extra))
    assert await sup.ask(StopChild(name="x")) is True
    assert await sup.ask(StopChild(name="x")) is False
    assert list(await sup.ask(WhichChildren())) == ["a"]
    assert not system.ref("s/x").is_alive()


async def test_a_dynamic_child_that_cannot_be_made_is_forgotten(system: System) -> None:
    class Broken(Counter):
        def __init__(self) -> None:
            raise OSError("no")

    sup = system.spawn(Supervisor, [], name="s")
    with pytest.raises(OSError, match="no"):
        await sup.ask(StartChild(spec=ChildSpec(name="x", cls=Broken)))
    assert await sup.ask(WhichChildren()) == {}
    assert await sup.ask(StartChild(spec=ChildSpec(name="x", cls=Counter))) == "s/x"


async def test_a_child_whose_constructor_fails_at_a_restart_counts_as_failing_again(
    system: System,
) -> None:
    made: list[int] = []

    class Flaky(Counter):
        def __init__(self) -> None:
            super().__init__()
            made.append(1)
            if len(made) in {2, 3}:
                raise OSError("not now")

    sup = system.spawn(Supervisor, [ChildSpec(name="a", cls=Flaky)], max_restarts=3, name="s")
    await sup.ask(WhichChildren())
    await fail(system, system.ref("s/a"))
    while len(made) < 4:
        await asyncio.sleep(0)
    assert list(await sup.ask(WhichChildren())) == ["a"]


async def test_a_child_that_fails_in_on_start_counts_as_failing(system: System) -> None:
    class Stillborn(Counter):
        async def on_start(self) -> None:
            raise OSError("never")

    sup = system.spawn(Supervisor, [ChildSpec(name="a", cls=Stillborn)], name="s")
    watcher = system.spawn(Watcher)
    await watcher.ask(Watch(name="s"))
    await until_gone(sup)
    [down] = await watcher.ask(Downs())
    assert "the last was a, failed: OSError: never" in (down.error or "")


async def test_a_child_may_be_known_by_another_name_in_the_system(system: System) -> None:
    sup = system.spawn(Supervisor, specs("a", known_as="session/a"), name="s")
    assert list(await sup.ask(WhichChildren())) == ["a"]
    await fail(system, system.ref("session/a"))
    assert list(await sup.ask(WhichChildren())) == ["a"]
    assert await system.ref("session/a").ask(Get()) == 0
    assert await sup.ask(StopChild(name="a"))
    assert not system.ref("session/a").is_alive()


async def test_two_children_of_one_name_are_refused(system: System) -> None:
    with pytest.raises(AlreadyExists):
        system.spawn(Supervisor, specs("a", "a"))


async def test_a_child_that_hangs_is_cancelled_after_its_own_limit(
    system: System, clock: VirtualClock
) -> None:
    sup = system.spawn(
        Supervisor, [ChildSpec(name="a", cls=Holder, shutdown=2.0), *specs("b")], name="s"
    )
    await sup.ask(WhichChildren())
    child = system.ref("s/a")
    holding = asyncio.create_task(child.ask(Hold()))
    await inside(child).held.wait()
    stopping = asyncio.create_task(sup.ask(StopChild(name="a")))
    await clock.elapse(1.9)
    assert not stopping.done()
    await clock.elapse(0.2)
    assert await stopping is True
    with pytest.raises(ActorDead):
        await holding


async def test_a_child_that_asks_its_supervisor_while_it_is_halted_does_not_hold_it_up(
    system: System,
) -> None:
    class AskUp(Message):
        """Ask the supervisor, which one should not."""

    class Upward(Counter):
        @handles(AskUp)
        async def _ask_up(self, _: AskUp) -> None:
            await asyncio.sleep(0)
            await self.system.ref("s").ask(WhichChildren())

    sup = system.spawn(
        Supervisor, [*specs("a"), ChildSpec(name="b", cls=Upward)], "one_for_all", name="s"
    )
    before = await sup.ask(WhichChildren())
    system.ref("s/b").tell(AskUp())
    system.ref("s/a").tell(Boom())
    while (after := await sup.ask(WhichChildren())) == before:
        await asyncio.sleep(0)
    assert set(after) == {"a", "b"}
    assert not set(after.values()) & set(before.values())


async def test_temporary_siblings_are_ended_with_the_group_but_not_started_again(
    system: System,
) -> None:
    children = [*specs("a"), *specs("t", restart="temporary"), *specs("b")]
    sup = system.spawn(Supervisor, children, "one_for_all", name="s")
    await sup.ask(WhichChildren())
    await fail(system, system.ref("s/a"))
    assert list(await sup.ask(WhichChildren())) == ["a", "b"]
    assert not system.ref("s/t").is_alive()


async def test_a_named_ref_works_over_a_restart_and_state_begins_anew(system: System) -> None:
    sup = system.spawn(Supervisor, specs("a"), name="s")
    await sup.ask(WhichChildren())
    child = system.ref("s/a")
    child.tell(Add(n=5))
    assert await child.ask(Get()) == 5
    await fail(system, child)
    await sup.ask(WhichChildren())
    assert await child.ask(Get()) == 0
