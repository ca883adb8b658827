"""Whatever happens to its children, a supervisor keeps its word: a model walks beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import tenacity
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from oubliette.kit import (
    ChildSpec,
    Down,
    StartChild,
    StopChild,
    Supervisor,
    System,
    WhichChildren,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import Boom, Counter, Downs, Get, Watch, Watcher, inside

MAX_RESTARTS = 3
WITHIN = 5.0
DELAY = 1.0

RESTARTS = st.sampled_from(["permanent", "permanent", "transient", "temporary"])
ENDS = st.sampled_from(["boom", "stop", "kill"])


@dataclass
class Model:
    """What the supervisor must look like."""

    strategy: str
    backoff: bool
    restart: dict[str, str] = field(default_factory=dict)
    """Specs in start order: name to kind of restart."""

    live: dict[str, int] = field(default_factory=dict)
    """Incarnations of the live children."""

    due: dict[str, float] = field(default_factory=dict)
    """When children that wait for their backoff come back."""

    restarts: list[float] = field(default_factory=list)
    """When it restarted."""

    over: bool = False
    """Whether it has given up."""

    def ended(self, name: str, how: str, now: float) -> set[str]:
        """A child has ended; who must have a new incarnation (or wait for one)."""
        del self.live[name]
        kind = self.restart[name]
        if kind == "temporary" or (kind == "transient" and how == "stop"):
            del self.restart[name]
            return set()
        self.restarts = [at for at in self.restarts if now - at < WITHIN] + [now]
        if len(self.restarts) > MAX_RESTARTS:
            self.over = True
            self.restart, self.live, self.due = {}, {}, {}
            return set()
        order = list(self.restart)
        group = {
            "one_for_one": [name],
            "one_for_all": order,
            "rest_for_one": order[order.index(name) :],
        }[self.strategy]
        again = set()
        for member in group:
            self.live.pop(member, None)
            if self.restart[member] == "temporary":
                del self.restart[member]
            else:
                again.add(member)
        if self.backoff:
            self.due |= dict.fromkeys(again, now + DELAY)
            return set()
        return again


class SupervisorMachine(RuleBasedStateMachine):
    """Drives a real supervisor and the model with the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.expected_downs: set[int] = set()
        self.counter = 0
        self.model: Model

    def run(self, coroutine: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(10):
                return await coroutine

        return self.runner.run(bounded())

    # ------------------------------------------------------------ set-up and end
    @initialize(
        strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
        backoff=st.booleans(),
        kinds=st.lists(RESTARTS, min_size=2, max_size=4),
    )
    def begin(self, strategy: Any, backoff: bool, kinds: list[Any]) -> None:
        self.model = Model(strategy, backoff)
        specs = [self.new_spec(kind) for kind in kinds]

        async def begin() -> None:
            system = System("model", self.clock, roundtrip_messages=True, watchdog=None)
            self.system = await system.__aenter__()
            self.watcher = system.spawn(Watcher, name="watcher")
            self.sup = system.spawn(
                Supervisor,
                specs,
                strategy,
                MAX_RESTARTS,
                WITHIN,
                tenacity.wait_fixed(DELAY) if backoff else None,
                name="s",
            )
            self.sup_incarnation = self.sup.incarnation
            await self.watch("s")
            await self.learn({spec.name for spec in specs})

        self.run(begin())

    def teardown(self) -> None:
        async def end() -> None:
            await self.system.stop()
            assert self.system.actor_count == 0
            assert len(self.system.waits) == 0
            assert self.clock.pending == 0
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

        try:
            if hasattr(self, "system"):
                self.run(end())
        finally:
            self.runner.close()

    # ------------------------------------------------------------ steps
    def new_spec(self, kind: Any) -> ChildSpec:
        self.counter += 1
        name = f"c{self.counter}"
        self.model.restart[name] = kind
        return ChildSpec(name=name, cls=Counter, restart=kind)

    async def watch(self, name: str) -> None:
        await self.watcher.ask(Watch(name=name))

    async def learn(self, changed: set[str]) -> None:
        """Look at the supervisor; only `changed` may have new incarnations."""
        if self.model.over:
            return
        seen = await self.sup.ask(WhichChildren())
        for name, incarnation in seen.items():
            if name in changed:
                assert incarnation > self.model.live.get(name, 0), f"{name} was not started anew"
                self.model.live[name] = incarnation
                await self.watch(f"s/{name}")
                assert await self.system.ref(f"s/{name}").ask(Get()) == 0
        self.model.live = {
            n: self.model.live[n] for n in self.model.restart if n in self.model.live
        }
        assert seen == self.model.live
        assert list(seen) == list(self.model.live), "start order"

    async def gone(self, name: str) -> None:
        watcher = inside(self.watcher)
        incarnation = self.model.live[name]
        while not any(down.incarnation == incarnation for down in watcher.downs):
            watcher.came.clear()
            await watcher.came.wait()

    def some(self, data: Any) -> str:
        return data.draw(st.sampled_from(sorted(self.model.live)))

    # ------------------------------------------------------------ rules
    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), how=ENDS)
    def a_child_ends(self, data: Any, how: str) -> None:
        self.end_child(self.some(data), how)

    @precondition(lambda self: len(self.model.live) > 1)
    @rule(how=ENDS, seconds=st.sampled_from([0.5, 1.0]))
    def the_last_child_ends_and_soon_after_the_first(self, how: str, seconds: float) -> None:
        self.end_child(list(self.model.live)[-1], how)
        self.time_passes(0.5)
        if self.model.live:
            self.end_child(next(iter(self.model.live)), how)
        self.time_passes(seconds)

    def end_child(self, name: str, how: str) -> None:
        async def step() -> None:
            ref = self.system.ref(f"s/{name}")
            if how == "boom":
                ref.tell(Boom())
            elif how == "stop":
                await ref.stop()
            else:
                await ref.kill()
            await self.gone(name)
            before = dict(self.model.live)
            changed = self.model.ended(name, how, self.clock.monotonic())
            if self.model.over:
                watcher = inside(self.watcher)
                while not any(d.incarnation == self.sup_incarnation for d in watcher.downs):
                    watcher.came.clear()
                    await watcher.came.wait()
            await self.learn(changed)
            self.expected_downs |= {
                incarnation
                for name, incarnation in before.items()
                if self.model.live.get(name) != incarnation
            }

        self.run(step())

    @precondition(lambda self: not self.model.over)
    @rule(kind=RESTARTS)
    def a_child_is_added(self, kind: Any) -> None:
        spec = self.new_spec(kind)

        async def step() -> None:
            assert await self.sup.ask(StartChild(spec=spec)) == f"s/{spec.name}"
            await self.learn({spec.name})

        self.run(step())

    @precondition(lambda self: self.model.restart)
    @rule(data=st.data())
    def a_child_is_taken_out(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.restart)))

        async def step() -> None:
            assert await self.sup.ask(StopChild(name=name)) is True
            del self.model.restart[name]
            self.model.due.pop(name, None)
            if name in self.model.live:
                self.expected_downs.add(self.model.live.pop(name))
            await self.learn(set())

        self.run(step())

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        async def step() -> None:
            await self.clock.elapse(seconds)
            now = self.clock.monotonic()
            back = {name for name, due in self.model.due.items() if due <= now}
            for name in back:
                del self.model.due[name]
            await self.learn(back)

        self.run(step())

    # ------------------------------------------------------------ invariants
    @invariant()
    def the_names_are_the_live_tree(self) -> None:
        if not hasattr(self, "system"):
            return
        expected = {"watcher"} | {f"s/{name}" for name in self.model.live}
        if not self.model.over:
            expected.add("s")
        assert set(self.system.names) == expected
        assert self.system.actor_count == len(expected)

    @invariant()
    def every_watcher_hears_of_each_end_exactly_once(self) -> None:
        if not hasattr(self, "system"):
            return

        async def downs() -> list[Down]:
            return await self.watcher.ask(Downs())

        expected = set(self.expected_downs)
        if self.model.over:
            expected.add(self.sup_incarnation)
        assert sorted(down.incarnation for down in self.run(downs())) == sorted(expected)

    @invariant()
    def it_gives_up_exactly_when_the_intensity_is_passed(self) -> None:
        if hasattr(self, "system"):
            assert self.sup.is_alive() is not self.model.over


SupervisorMachine.TestCase.settings = settings(stateful_step_count=25)
TestSupervisor = SupervisorMachine.TestCase
