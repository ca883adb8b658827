"""The same in a test that blocks."""

from __future__ import annotations

from shop import find_order


def test_a_tool_gets_arguments_and_its_result_comes_back(oubliette_project) -> None:
    result = oubliette_project.run('call find_order {"order": "A-17"}', tools=[find_order])
    assert result.tool_calls[0].result == {"state": "refunded", "reason": "arrived broken"}
