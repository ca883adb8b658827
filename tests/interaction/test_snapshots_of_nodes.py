"""The files of a workspace are there on another node when a machine is lost."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import oubliette
from oubliette.node import held_copies
from oubliette.runtime.agents.scripted.adapter import ScriptedRuntime
from tests.consent import delete_with_all
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.requires("postgres"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
WITHIN = 60.0


@pytest.fixture(params=["folder", "postgres", "node"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A value of `cluster.snapshots`."""
    return str(tmp_path) if request.param == "folder" else request.param


async def lose(cluster: Nodes, name: str) -> None:
    """Cut a node off, and give it up."""
    lost = cluster.servers[name]
    cluster.network.cut(name)
    cluster.give_up(name)
    async with asyncio.timeout(WITHIN):
        await asyncio.shield(lost.failed)


async def ended(session: Any) -> None:
    """Wait until a session was ended because of its machine."""
    async with asyncio.timeout(WITHIN):
        assert "its machine is gone" in str([e async for e in session.events(follow=True)][-1])


def ask(url: str, sql: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql).fetchone()[0]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)  # nobody tells when a copy is sent or removed


async def events(ob: Any, session_id: str, kind: str) -> list[dict[str, Any]]:
    page = await ob.call("session_events", session_id=session_id)
    return [event for event in page["events"] if event.get("kind") == kind]


def held(cluster: Nodes) -> list[Path]:
    """The parts that nodes hold for others."""
    return list(cluster.folder.glob("*/copies/*/*"))


HOLDER = "SELECT max(holder) FROM snapshot_copies"


async def test_the_files_of_the_last_turn_are_there_when_its_machine_is_lost(
    postgres_url: str, place: str
) -> None:
    async with Nodes(postgres_url, **{"cluster.snapshots": place}) as cluster:
        await cluster.start("alpha")
        key = await cluster.key("alpha")
        await cluster.start("beta")
        cluster.drain("beta")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            project = await ob.project("shop")
            cluster.drain("beta", draining=False)
            session = await project.spawn("exec echo one > file; mkdir -p d; ln -s ../file d/link")
            await (await session.send("exec echo two >> file"))
            await (await session.send("say the copy of the turn before is stored by now"))
            await lose(cluster, "alpha")
            await ended(session)
            assert (await project.exec("cat file"))["stdout"] == "one\ntwo\n", "before any turn"
            answer = await project.run("exec cat d/link")
            restored = await events(ob, answer.session_id, "workspace_restored")
        assert "one\\ntwo\\n" in answer.text
        assert len(restored) == 1


async def test_a_session_that_is_resumed_elsewhere_finds_the_files_of_its_agent_and_no_others(
    postgres_url: str, place: str, tmp_path: Path
) -> None:
    def copied(turns: int) -> bool:
        sql = f"SELECT count(*) FROM snapshot_copies WHERE name LIKE '%.home' AND version = {turns}"
        turn = f"*/*.home.git/refs/oubliette/*/{turns}"
        return ask(postgres_url, sql) == 1 or len(list(tmp_path.glob(turn))) == 1

    async with Nodes(postgres_url, **{"cluster.snapshots": place}) as cluster:
        await cluster.start("alpha")
        key = await cluster.key("alpha")
        await cluster.start("beta")
        cluster.drain("beta")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            project = await ob.project("shop")
            cluster.drain("beta", draining=False)
            session = await project.spawn("remember ticket 4711\nexec echo key > ~/auth.json")
            await until(lambda: copied(1))
            await (await session.send("remember place here\nexec echo a > file"))
            await (await session.send("say the copy of the workspace is stored by now"))
            await until(lambda: copied(2))
            await lose(cluster, "alpha")
            await ended(session)
            assert (await (await session.send("recall ticket"))).text == "4711"
            assert (await (await session.send("recall place"))).text == "here"
            assert "auth.json" not in (await (await session.send("exec ls -A ~"))).text
            await (await session.send("say the news is in the log by now"))
            restored = await events(ob, session.id, "workspace_restored")
        texts = sorted(event["message"] for event in restored)
        assert texts[0].startswith("the files of the agent's session came from another node: 2")
        assert texts[1].startswith("the files of the workspace came from another node: 1")


async def test_an_agent_without_files_of_its_session_is_named_in_the_log(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedRuntime, "session_files", ())
    async with Nodes(postgres_url, **{"cluster.snapshots": "postgres"}) as cluster:
        await cluster.start("alpha")
        key = await cluster.key("alpha")
        await cluster.start("beta")
        cluster.drain("beta")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            session = await (await ob.project("shop")).spawn("exec echo a > file")
            cluster.drain("beta", draining=False)
            await (await session.send("say the copy of the turn before is stored by now"))
            await lose(cluster, "alpha")
            await ended(session)
            await (await session.send("exec cat file"))
            (restored,) = await events(ob, session.id, "workspace_restored")
        assert "does not know what came before" in restored["message"]


async def test_a_project_that_is_deleted_leaves_no_copy(
    postgres_url: str, place: str, tmp_path: Path
) -> None:
    async with Nodes(postgres_url, **{"cluster.snapshots": place}) as cluster:

        def copies() -> int:
            found = ask(postgres_url, "SELECT count(*) FROM snapshot_chunks")
            found += ask(postgres_url, "SELECT count(*) FROM snapshot_copies")
            return found + len(list(tmp_path.glob("*/*"))) + len(held(cluster))

        await cluster.start("alpha", "beta")
        async with oubliette.connect(
            cluster.servers["alpha"].url, await cluster.key("alpha")
        ) as ob:
            project = await ob.project("shop")
            answer = await project.run("exec echo one > file")
            await until(lambda: copies() > 0)
            await ob.call("session_end", session_id=answer.session_id)
            await delete_with_all(ob.call, project.id)
            await until(lambda: copies() == 0)


async def test_a_copy_that_would_be_too_large_is_announced_in_the_log(postgres_url: str) -> None:
    settings = {"cluster.snapshots": "postgres", "cluster.snapshots_max_bytes": 1 << 20}
    async with Nodes(postgres_url, **settings) as cluster:
        await cluster.start("alpha")
        async with oubliette.connect(
            cluster.servers["alpha"].url, await cluster.key("alpha")
        ) as ob:
            project = await ob.project("shop")
            session = await project.spawn("exec echo small > file")
            await (await session.send("exec head -c 1100000 /dev/urandom > large"))
            await (await session.send("say something"))
            await (await session.send("say something more"))
            (found,) = await events(ob, session.id, "snapshot_not_copied")
        assert "cluster.snapshots_max_bytes" in found["message"]
        assert ask(postgres_url, "SELECT sum(octet_length(data)) FROM snapshot_chunks") < 1 << 20


async def test_many_turns_leave_few_parts_in_the_database(postgres_url: str) -> None:
    parts = "SELECT coalesce(max(cardinality(parts)), 0) FROM snapshot_copies"
    stored = "SELECT coalesce(sum(octet_length(data)), 0) FROM snapshot_chunks"
    async with Nodes(postgres_url, **{"cluster.snapshots": "postgres"}) as cluster:
        await cluster.start("alpha")
        async with oubliette.connect(
            cluster.servers["alpha"].url, await cluster.key("alpha")
        ) as ob:
            project = await ob.project("shop")
            session = await project.spawn("exec echo small > file")
            for _ in range(3):
                await (await session.send("exec head -c 5000000 /dev/urandom > file"))
            await (await session.send("say the copy of the turn before is stored by now"))
        assert ask(postgres_url, parts) == 1
        assert ask(postgres_url, stored) > 15_000_000


async def test_the_copies_of_a_node_that_is_gone_are_sent_to_another(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_copies, "LOOK_SECONDS", 1.0)
    async with Nodes(postgres_url, **{"cluster.snapshots": "node"}) as cluster:
        await cluster.start("alpha", "beta", "gamma")
        cluster.drain("beta")
        cluster.drain("gamma")
        key = await cluster.key("alpha")
        async with oubliette.connect(cluster.servers["alpha"].url, key) as ob:
            project = await ob.project("shop")
            cluster.drain("beta", draining=False)
            cluster.drain("gamma", draining=False)
            await project.run("exec echo one > file")
            await until(lambda: ask(postgres_url, HOLDER) is not None)
        first = ask(postgres_url, HOLDER)
        (second,) = {"beta", "gamma"} - {first}
        await lose(cluster, first)
        await until(lambda: ask(postgres_url, HOLDER) == second)
        await lose(cluster, "alpha")
        async with oubliette.connect(cluster.servers[second].url, key) as ob:
            answer = await (await ob.project("shop")).run("exec cat file")
        assert "one" in answer.text


async def test_a_copy_is_brought_from_a_third_node_and_tidied_there_after_its_project(
    postgres_url: str,
) -> None:
    async with Nodes(postgres_url, **{"cluster.snapshots": "node"}) as cluster:
        await cluster.start("alpha", "beta", "gamma")
        cluster.drain("beta")
        cluster.drain("gamma")
        key = await cluster.key("alpha")
        async with oubliette.connect(cluster.servers["alpha"].url, key) as ob:
            project = await ob.project("shop")
            cluster.drain("beta", draining=False)
            cluster.drain("gamma", draining=False)
            await project.run("exec head -c 2000000 /dev/urandom > file; sha256sum file > sum")
            await until(lambda: ask(postgres_url, HOLDER) is not None)
        holder = ask(postgres_url, HOLDER)
        (home,) = {"beta", "gamma"} - {holder}
        cluster.drain(holder)
        await lose(cluster, "alpha")
        async with oubliette.connect(cluster.servers[home].url, key) as ob:
            answer = await (await ob.project("shop")).run("exec sha256sum -c sum")
            assert "file: OK" in answer.text
            assert project.id in await cluster.servers[home].context.projects_here()
            await cluster.stop(holder)
            assert held(cluster)
            await ob.call("session_end", session_id=answer.session_id)
            await delete_with_all(ob.call, project.id)
        await cluster.start(holder)
        await until(lambda: not held(cluster))


@pytest.mark.slow
async def test_a_session_of_a_lost_machine_is_forked_on_another_one(
    postgres_url: str, tmp_path: Path
) -> None:
    def stored(turn: int) -> bool:
        return len(list(tmp_path.glob(f"*/*.home.git/refs/oubliette/*/{turn}"))) == 1

    async with Nodes(postgres_url, **{"cluster.snapshots": str(tmp_path)}) as cluster:
        await cluster.start("alpha")
        key = await cluster.key("alpha")
        await cluster.start("beta")
        cluster.drain("beta")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            project = await ob.project("shop")
            cluster.drain("beta", draining=False)
            session = await project.spawn("remember ticket 4711\nexec echo one > file")
            await session.turn
            await (await session.send("remember ticket 4712\nexec echo two > file"))
            await (await session.send("say the copy of the workspace is stored by now"))
            await until(lambda: stored(2))
            await lose(cluster, "alpha")
            await ended(session)
            prompt = "recall ticket\nexec cat file"
            for turn, ticket, text in ((1, "4711", "one"), (2, "4712", "two")):
                (fork,) = await session.fork(prompt, at_turn=turn)
                assert isinstance(fork, oubliette.Session), fork
                assert fork.fork_info is not None
                assert fork.fork_info.conversation == "native"
                await fork.turn
                page = await ob.call("session_events", session_id=fork.id)
                said = [e["text"] for e in page["events"] if e["type"] == "message"]
                assert said[0] == ticket
                assert f"{text}\\n" in said[1]
