"""Commands with a client: who may run one, how many, and what ends them, at each machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.container.attached_command import CommandClient
from oubliette.incontainer import wire
from oubliette.runtime.guest import Exit
from oubliette.tools import attached_commands
from oubliette.tools.attached_commands import (
    KIND,
    PER_PLACE,
    PER_PRINCIPAL,
    AttachedCommands,
)
from oubliette.tools.auth import scopes
from oubliette.tools.home_streams import STREAMS, HomeStreamsActor
from oubliette.tools.spec import OPERATOR, CallContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.records import Project
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

SECONDS = 20.0


class Client(CommandClient):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.sends: asyncio.Queue[bytes] = asyncio.Queue()
        self.answers: list[dict[str, Any]] = []
        self.got = b""
        self.began = asyncio.Event()

    async def read(self) -> bytes:
        return await self.sends.get()

    async def write(self, data: bytes) -> None:
        self.got += data

    async def answer(self, answer: dict[str, Any]) -> None:
        self.answers.append(answer)
        self.began.set()

    @property
    def error(self) -> dict[str, Any]:
        """What ended the command."""
        if self.got:
            (frame,) = wire.FrameDecoder().feed(self.got)
            assert frame.kind == wire.EXIT
            return json.loads(frame.payload)["error"]
        return self.answers[-1]["error"]


class House:
    """Commands of one machine, which echo; and the audit log."""

    def __init__(self, bench: Bench, project: Project) -> None:
        self.bench = bench
        self.project = project
        self.commands = AttachedCommands(bench.services)
        self.noted: list[Any] = []
        self.was_noted = asyncio.Event()
        self.ran: list[Any] = []
        bench.services.audit = cast("Any", self)

    def write(self, entry: Any) -> None:
        self.noted.append(entry)
        self.was_noted.set()

    async def run(self, socket: Any, command: Any, client: CommandClient) -> Exit | None:
        """In the place of `run_at`: echo, and end with a frame `bye`."""
        assert socket.name == f"projects/{self.project.id}/base/socket"
        self.ran.append(command)
        await client.begin()
        while data := await client.read():
            await client.write(data)
            if data == b"bye":
                return Exit(code=3)
        return None

    @contextlib.asynccontextmanager
    async def serving(
        self, context: CallContext = OPERATOR, commands: AttachedCommands | None = None, **more: Any
    ) -> AsyncIterator[tuple[Client, asyncio.Task[None]]]:
        client = Client()
        wanted: dict[str, Any] = {"command": ["sh"], "project_id": self.project.id, **more}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        task = asyncio.create_task((commands or self.commands).serve(context, wanted, client))
        try:
            async with asyncio.timeout(SECONDS):
                yield client, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def house(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> House:
    made = House(bench, await bench.project())
    monkeypatch.setattr(attached_commands, "run_at", made.run)
    return made


def key(scope: str = "write", principal: str = "alice", **more: Any) -> CallContext:
    return CallContext(
        principal=principal,
        token_id="tok_test",
        scope=scopes.parse(scope),
        transport=more.pop("transport", "http"),
        **more,
    )


async def test_a_command_runs_in_the_workspace_of_a_session_and_is_noted(house: House) -> None:
    session = await house.bench.session(house.project, live=True)
    terminal = {"rows": 24, "cols": 80, "term": "screen"}
    wanted = {"session_id": session.id, "project_id": None, "terminal": terminal}
    async with house.serving(key(), **wanted) as (client, task):
        await client.began.wait()
        client.sends.put_nowait(b"bye")
        await task
    assert client.answers == [{"ok": {}}]
    (command,) = house.ran
    assert command.working_dir == f"/workspace/workspaces/{session.workspace_id}"
    assert command.window == (24, 80)
    assert command.env["TERM"] == "screen"
    (entry,) = house.noted
    assert (entry.tool, entry.outcome, entry.principal) == ("exec", "ok", "alice")
    assert entry.target_session_id == session.id


@pytest.mark.parametrize(
    ("context", "more", "code"),
    [
        (key("read"), {}, "forbidden"),
        (key("project:proj_00000000000000000000000000"), {}, "not_found"),
        (key(minted=True), {}, "forbidden"),
        (key(transport="socket", session_id="gogol_1"), {}, "forbidden"),
        (key(), {"project_id": None}, "invalid_parameter"),
        (key(), {"project_id": "proj_00000000000000000000000000"}, "not_found"),
        (key(), {"session_id": "gogol_00000000000000000000000000"}, "invalid_parameter"),
        (key(), {"command": []}, "invalid_parameter"),
        (key(), {"command": "sh"}, "invalid_parameter"),
        (key(), {"command": ["x" * 200_000]}, "invalid_parameter"),
        (key(), {"terminal": {"rows": 0, "cols": 80}}, "invalid_parameter"),
        (key(), {"terminal": {"rows": 24, "cols": 1 << 40}}, "invalid_parameter"),
        (key(), {"terminal": {"rows": 24, "cols": 80, "term": "a\nb"}}, "invalid_parameter"),
        (key(), {"working_dir": "../etc"}, "invalid_parameter"),
        (key(), {"unknown": 1}, "invalid_parameter"),
    ],
)
async def test_who_may_not_run_a_command_is_told_why_and_noted(
    house: House, context: CallContext, more: dict[str, Any], code: str
) -> None:
    async with house.serving(context, **more) as (client, task):
        await task
    assert client.error["code"] == code
    assert house.ran == []
    assert [entry.outcome for entry in house.noted] == [code]


@pytest.mark.parametrize("asked", [[], "no", 1])
async def test_a_request_that_is_no_object_is_refused(house: House, asked: Any) -> None:
    client = Client()
    await house.commands.serve(OPERATOR, asked, client)
    assert client.error["code"] == "invalid_parameter"


async def test_a_session_has_a_limit_of_commands_and_so_has_a_principal(house: House) -> None:
    others = [await house.bench.session(house.project) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:

        async def attach(principal: str, **place: Any) -> Client:
            serving = house.serving(key(principal=principal), **place)
            client, task = await stack.enter_async_context(serving)
            await client.began.wait()
            if not client.begun:
                await task
            return client

        for _ in range(PER_PLACE):
            assert (await attach("alice")).answers == [{"ok": {}}]
        refused = await attach("bob")
        assert refused.error["code"] == "limit_exceeded"
        assert str(PER_PLACE) in refused.error["message"]
        for number in range(PER_PRINCIPAL - PER_PLACE):
            session = others[number % 2].id
            assert (await attach("alice", session_id=session, project_id=None)).begun
        place = {"session_id": others[2].id, "project_id": None}
        refused = await attach("alice", **place)
        assert refused.error["code"] == "limit_exceeded"
        assert str(PER_PRINCIPAL) in refused.error["message"]
        assert (await attach("bob", **place)).begun
    async with house.serving() as (client, _):  # all places are free again
        await client.began.wait()
        assert client.begun


async def test_a_command_ends_with_its_key_and_with_its_session(house: House) -> None:
    bench = house.bench
    session = await bench.session(house.project, live=True)
    place = {"session_id": session.id, "project_id": None}
    text, context = await bench.key("write", principal="alice")
    async with house.serving(context, **place) as (client, task):
        await client.began.wait()
        await bench.keys.revoke(context.token_id)
        await task
    assert client.error["code"] == "unauthenticated"
    async with house.serving(**place) as (client, task):
        await client.began.wait()
        ref = bench.session_registry.session(session.id)
        assert ref is not None
        await ref.stop()
        await task
    assert client.error["code"] == "conflict"
    assert "the session has ended" in client.error["message"]
    assert text not in str(house.noted)


class Nodes:
    """A machine of two that are one system: `home` has the project."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.name, self.system = name, bench.system
        self.gone = False
        self.forgotten: list[str] = []

    async def home(self, _project_id: str, *, needed: bool) -> str | None:
        return None if self.name == "home" and not self.gone else "home"

    def forget(self, project_id: str) -> None:
        self.forgotten.append(project_id)

    def ref(self, _node: str, name: str) -> Any:
        return self.system.ref(name)


@pytest.fixture
def front(house: House) -> AttachedCommands:
    bench = house.bench
    homes, fronts = Nodes(bench, "home"), Nodes(bench, "front")
    there = AttachedCommands(dataclasses.replace(bench.services, nodes=cast("Any", homes)))
    works = {KIND: there.serve_elsewhere}
    bench.system.spawn(HomeStreamsActor, works, cast("Any", homes), name=STREAMS)
    house.nodes = homes  # type: ignore[attr-defined]
    return AttachedCommands(dataclasses.replace(bench.services, nodes=cast("Any", fronts)))


async def test_a_command_runs_at_the_home_of_its_project(
    house: House, front: AttachedCommands
) -> None:
    async with house.serving(key(), front) as (client, task):
        await client.began.wait()
        for data in (b"a frame, cut", b" anywhere", b"bye"):
            client.sends.put_nowait(data)
        await task
    assert client.answers == [{"ok": {}}]
    assert client.got == b"a frame, cut anywherebye"
    assert [entry.outcome for entry in house.noted] == ["ok"]


async def test_a_client_that_goes_from_its_machine_ends_the_command_at_home(
    house: House, front: AttachedCommands
) -> None:
    async with house.serving(key(), front) as (client, task):
        await client.began.wait()
        client.sends.put_nowait(b"")
        await task
        await house.was_noted.wait()
    assert house.noted[0].outcome in {"ok", "cancelled"}


async def test_a_refusal_of_the_home_arrives_and_so_does_a_move(
    house: House, front: AttachedCommands
) -> None:
    async with house.serving(key(), front, command=[]) as (client, task):
        await task
    assert client.error["code"] == "invalid_parameter"
    house.nodes.gone = True  # type: ignore[attr-defined]
    async with house.serving(key(), front) as (client, task):
        await task
    assert client.error["code"] == "project_moves"
    assert house.ran == []
