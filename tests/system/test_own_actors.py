"""An actor of an embedding program follows real sessions, over failures of every part."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oubliette.messages as m
from oubliette.actors.subscriptions import subscribe
from oubliette.config.loader import load
from oubliette.kit import Actor, ChildSpec, Message, Supervisor, WhichChildren, handles
from oubliette.server import Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.config.schema import Config
    from oubliette.records import Event

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PAGE = Path(__file__).parents[2] / "docs" / "python-actors.md"
TURN = 30.0  # seconds that a turn may take on a busy machine


class Seen:
    """What a subscriber acknowledged, over its incarnations."""

    def __init__(self) -> None:
        self.logs: dict[str, list[int]] = defaultdict(list)
        self.turns = 0
        self.changed = asyncio.Condition()

    async def until(self, turns: int) -> None:
        async with asyncio.timeout(TURN), self.changed:
            await self.changed.wait_for(lambda: self.turns >= turns)


class Stumble(Message):
    """Fail."""


class Witness(Actor):
    """Takes the events of all sessions."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    @handles(m.EventsCommitted)
    async def _take(self, message: m.EventsCommitted) -> None:
        async with self._seen.changed:
            for event in message.events:
                self._seen.logs[event.session_id].append(event.index)
                self._seen.turns += event.type == "completion"
            self._seen.changed.notify_all()

    @handles(Stumble)
    def _stumble(self, _: Stumble) -> None:
        raise RuntimeError("told to")


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))  # short: sockets lie below it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def config(home: Path) -> Config:
    settings = {
        "server.port": 0,
        "server.on_stop": "end",
        "containers.runtime": "process",
        "containers.runtime_dir": str(home / "r"),
        "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
    }
    return load(home, {}, settings).config


async def project_of(server: Server) -> Any:
    made = await server.system.ref("projects").ask(
        m.CreateProject(principal="program", name="p", init_git=False)
    )
    return await open_project(server, made.id)


async def open_project(server: Server, project_id: str) -> Any:
    projects = server.system.ref("projects")
    return server.system.ref(await projects.ask(m.OpenProject(project_id=project_id)))


async def say(project: Any, prompt: str, session_id: str | None = None) -> m.SpawnResult:
    return await project.ask(
        m.SpawnSession(
            principal="program",
            prompt=prompt,
            agent="scripted",
            session_id=session_id,
            new_session=session_id is None,
        )
    )


async def witness(server: Server, seen: Seen) -> Any:
    spec = ChildSpec(name="witness", cls=Witness, args=(seen,), known_as="witness")
    mine = server.system.spawn(Supervisor, [spec], name="mine", max_restarts=1000)
    assert await mine.ask(WhichChildren())
    return server.system.ref("witness")


async def log_of(server: Server, session_id: str) -> list[Event]:
    return await server.context.reader.events(session_id)


async def fail(server: Server, name: str) -> None:
    """Fail an actor, and wait until its supervisor has started it again."""
    actor: Any = server.system.actor(name)
    actor._actor_post_broke(RuntimeError("told to"))
    async with asyncio.timeout(TURN):
        while server.system.actor(name) in {actor, None}:
            await asyncio.sleep(0.001)


# A session whose commit got no answer restarts, and leaves its link to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_own_actor_gets_each_event_once_while_parts_fail(home, config) -> None:
    seen = Seen()
    async with running(home, config) as server:
        auditor = await witness(server, seen)
        await subscribe(server.system, auditor, after=-1)
        project = await project_of(server)
        spawned = await say(project, "emit 300")
        for part in range(3):
            auditor.tell(Stumble())
            await fail(server, "stores/store")
            await seen.until(part + 1)
            await say(project, f"say part {part}", spawned.session_id)
        await seen.until(4)
        log = await log_of(server, spawned.session_id)
        assert len(log) > 300
        upto = seen.logs[spawned.session_id]
        assert upto == list(range(len(upto)))
        assert len(upto) > next(e.index for e in log if e.type == "message")
        registry = server.system.ref("session_registry")
        name = await registry.ask(m.FindSession(session_id=spawned.session_id))
        assert (await server.system.ref(name).ask(m.GetSession())).id == spawned.session_id
        assert await registry.ask(m.FindSession(session_id="gogol_none")) is None


async def test_a_named_subscription_continues_with_the_next_server_on_the_home(
    home, config
) -> None:
    seen = Seen()
    async with running(home, config) as server:
        await witness(server, seen)
        project = await project_of(server)
        spawned = await say(project, "say before")
        subscription = await subscribe(
            server.system, "witness", session_id=spawned.session_id, after=-1, name="audit"
        )
        assert subscription.after == -1
        await seen.until(1)
    async with running(home, config) as server:  # its stop has added events
        project = await open_project(server, spawned.project_id)
        await say(project, "say after", spawned.session_id)
        await witness(server, seen)
        again = await subscribe(
            server.system, "witness", session_id=spawned.session_id, name="audit"
        )
        assert again.after >= 0
        await seen.until(2)
        upto = seen.logs[spawned.session_id]
        # The last batch comes twice only if the server ended before its cursor was stored.
        assert sorted(set(upto)) == list(range(len(set(upto))))
        assert upto == list(range(again.after + 1)) + list(range(again.after + 1, len(upto)))


async def test_the_page_on_own_actors_runs(home, config) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    counted, began = asyncio.Event(), asyncio.Event()

    class Auditor(names["Auditor"]):
        def on_start(self) -> None:
            began.set()

        @handles(m.EventsCommitted)
        def _count(self, message: m.EventsCommitted) -> None:
            self._seen(message)
            if self.turns:
                counted.set()

    names["Auditor"] = Auditor
    async with asyncio.timeout(3 * TURN):
        async with running(home, config) as server:
            names["supervised"](server.system)
            assert await server.system.ref("mine").ask(WhichChildren())
            await subscribe(server.system, "auditor", after=-1, name="audit")
            await say(await project_of(server), "say hello")
            await counted.wait()
        began.clear()
        audited = asyncio.create_task(names["audited"](home, config))
        await began.wait()
        done, _ = await asyncio.wait({audited}, timeout=0.2)
        assert not done
        audited.cancel()
        await asyncio.gather(audited, return_exceptions=True)
