"""An agent that advertises `session/fork` of ACP begins a fork with its own conversation."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import oubliette as ob
from oubliette.runtime.agents import AcpRuntime
from oubliette.runtime.containers import Mount
from tests.system.python_api import settings, short_home

if TYPE_CHECKING:
    from oubliette.runtime.agents import AgentSession
    from oubliette.runtime.agents.base import AgentCommand
    from oubliette.runtime.containers import Inside

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
ACP = importlib.util.find_spec("acp")  # a second to import, in each process of the suite
assert ACP is not None
assert ACP.origin is not None
PROGRAM, SITE = "/opt/forking/program.py", "/opt/forking/site"
MOUNTS = (
    Mount(Path(__file__).with_name("forking_agent.py"), PROGRAM, read_only=True),
    Mount(Path(ACP.origin).parents[1], SITE, read_only=True),
)


class Forking(AcpRuntime):
    """The program `forking_agent.py`."""

    def __init__(self, name: str, *options: str) -> None:
        super().__init__(name, (PROGRAM, SITE, *options), MOUNTS, section=name)

    async def initialize(self, config: Any) -> None:
        await super().initialize({**config, "session_files": [".forking"]})

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        command = super().command(session, inside)
        words = (inside.path(each) for each in command.argv)
        return msgspec.structs.replace(command, argv=(inside.python, *words))


@pytest.fixture
async def system():
    config = {**settings(), "snapshots.mode": "on"}
    agents = [Forking("forking"), Forking("refusing", "--refuse"), Forking("late", "--late")]
    with short_home() as home:
        async with ob.open(home, config=config, agents=agents) as opened:
            yield opened


async def two_turns(system: ob.System, agent: str) -> ob.Session:
    project = await system.project("shop")
    session = await project.spawn("one", agent=agent)
    await session.turn
    await (await session.send("two"))
    return session


async def forked(session: ob.Session, prompt: str, **more: Any) -> tuple[ob.Session, str, Any]:
    (made,) = await session.fork(prompt, **more)
    assert isinstance(made, ob.Session), made
    assert made.fork_info is not None
    return made, made.fork_info.conversation, json.loads((await made.turn).text)


async def test_a_fork_knows_the_conversation_and_the_other_session_nothing_of_it(system) -> None:
    first = await two_turns(system, "forking")
    fork, conversation, told = await forked(first, "three")
    assert (conversation, told) == ("native", ["one", "two", "three"])
    assert (await fork.get()).conversation == "native"
    four = await (await fork.send("four"))
    assert json.loads(four.text) == ["one", "two", "three", "four"]
    other = await (await first.send("other"))
    assert json.loads(other.text) == ["one", "two", "other"]


async def test_a_conversation_that_the_agent_cannot_cut_comes_as_a_record(system) -> None:
    first = await two_turns(system, "forking")
    _, conversation, told = await forked(first, "three", at_turn=1)
    assert conversation == "transcript"
    (text,) = told
    assert "> one\n" in text
    assert "> two\n" not in text
    assert text.endswith("[End of the record.]\n\nthree")


async def test_an_agent_that_refuses_to_fork_gets_the_record_after_all(system) -> None:
    first = await two_turns(system, "refusing")
    fork, _, told = await forked(first, "three")
    assert (await fork.get()).conversation == "transcript"
    (text,) = told
    assert "> one\n" in text
    assert "> two\n" in text
    assert text.endswith("[End of the record.]\n\nthree")


async def test_an_answer_that_goes_on_behind_the_end_of_its_turn_is_whole(system) -> None:
    project = await system.project("shop")
    session = await project.spawn("one", agent="late")
    assert json.loads((await session.turn).text) == ["one"]
    assert json.loads((await (await session.send("two"))).text) == ["one", "two"]
