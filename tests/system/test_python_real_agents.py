"""Tools and typed results of Python programs with real agents, in process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import oubliette
from oubliette.testing.model_server import ModelServer
from tests.system.python_api import settings, short_home
from tests.system.real_agents import AGENTS, SLOW, program_settings

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(240)]

REAL = [
    pytest.param(each, marks=pytest.mark.requires(each.requires), id=each.name)
    for each in AGENTS
    if each.requires is not None
]


class Verdict(msgspec.Struct):
    guilty: bool
    why: str


async def find_order(order: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "state": "refunded"}


@pytest.mark.parametrize("agent", REAL)
async def test_a_real_agent_calls_functions_and_gives_values_of_a_type(agent):
    name = agent.prefix + "program_find_order"
    with short_home() as home:
        async with ModelServer() as model:
            config = settings() | program_settings(agent.requires, model)
            config["agents.start_timeout_seconds"] = SLOW
            async with oubliette.open(home, config=config) as ob:
                project = await ob.project("shop", agent=agent.name)
                answer = await project.run(
                    f'call {name} {{"order": "A-17"}}\nsay done', tools=[find_order]
                )
                assert answer.text == "done"
                call = answer.tool_calls[-1]  # Droid looks the tool up before
                assert call.arguments == {"order": "A-17"}
                assert "refunded" in str(call.result)
                said = 'say {"guilty": true, "why": "it was late"}'
                verdict = await project.run(said, returns=Verdict)
                assert verdict == Verdict(guilty=True, why="it was late")
                with pytest.raises(oubliette.ResultInvalid):
                    await project.run("say perhaps", returns=Verdict, attempts=2)
