"""An agent that cannot begin with another conversation gets a record of it before its prompt."""

from __future__ import annotations

import shutil

import pytest

import oubliette as ob
from tests.system import own_agents
from tests.system.python_api import settings, short_home

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


@pytest.fixture
async def system():
    config = {**settings(), "snapshots.mode": "on"}
    with short_home() as home:
        async with ob.open(home, config=config, agents=own_agents.AGENTS) as opened:
            yield opened


async def forked(session: ob.Session, prompt: str, **options: str) -> ob.Session:
    (made,) = await session.fork(prompt, at_turn=1, **options)
    assert isinstance(made, ob.Session), made
    assert made.fork_info is not None
    assert made.fork_info.conversation == "transcript"
    return made


async def test_a_record_of_the_turns_comes_before_the_prompt(system) -> None:
    project = await system.project("shop")
    session = await project.spawn("hello\nexec rm -rf .", agent="echo")
    await session.turn
    await (await session.send("later"))
    made = await forked(session, "and now?")
    said = (await made.turn).text
    assert said.startswith(f"You said [Record of the conversation of session {session.id}")
    assert "> hello\n> exec rm -rf .\n" in said
    assert "> You said hello\n" in said
    assert "later" not in said
    assert said.endswith("[End of the record.]\n\nand now?")
    found = await made.get()
    assert found.last_prompt == "and now?"
    assert [each.prompt for each in await made.log()] == ["and now?"]
    second = await (await made.send("again"))
    assert second.text == "You said again"


async def test_another_agent_gets_the_record_and_a_fork_of_a_fork_all_of_it(system) -> None:
    project = await system.project("shop")
    session = await project.spawn("remember colour red", agent="scripted")
    await session.turn
    made = await forked(session, "one", agent="echo")
    assert "> remember colour red\n" in (await made.turn).text
    again = await forked(made, "two")
    said = (await again.turn).text
    assert "> > remember colour red\n" in said
    assert "> one\n" in said


@pytest.mark.whole
async def test_a_session_whose_agent_is_not_there_any_more_is_forked_with_another_one() -> None:
    config = {**settings(), "snapshots.mode": "on"}
    with short_home() as home:
        async with ob.open(home, config=config, agents=own_agents.AGENTS) as system:
            project = await system.project("shop")
            session = await project.spawn("hello", agent="echo")
            await session.turn
        async with ob.open(home, config=config) as system:
            session = await system.session(session.id)
            with pytest.raises(ob.InvalidParameter, match="agent: .*echo"):
                await session.fork("again", at_turn=1, count=3)
            await forked(session, "again", agent="scripted")
