"""The shop's agent, without a model: scripts stand for what a model would do."""

from __future__ import annotations

import pytest
from shop import explain, find_order


@pytest.mark.anyio
async def test_the_agent_looks_the_order_up(oubliette_project_async, agent) -> None:
    agent.script('call find_order {"order": "A-17"}', "say It arrived broken.")
    async with oubliette_project_async as project:
        assert await explain(project, "A-17") == "It arrived broken."
    assert "A-17" in agent.prompts[0]


@pytest.mark.anyio
async def test_a_tool_gets_arguments_and_its_result_comes_back(oubliette_project_async) -> None:
    async with oubliette_project_async as project:
        result = await project.run('call find_order {"order": "A-17"}', tools=[find_order])
    assert result.tool_calls[0].result == {"state": "refunded", "reason": "arrived broken"}
