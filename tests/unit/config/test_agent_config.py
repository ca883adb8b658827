"""`config.json`: its form, how levels are merged, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.config.agent_config import AgentConfig, McpServer, checked, merged, servers
from oubliette.errors import InvalidParameter
from oubliette.runtime.agents.config_views import views


def test_the_later_one_wins_key_by_key_and_lists_as_a_whole() -> None:
    lower = {"model": "a", "mcpServers": {"x": {"command": "c", "args": ["1", "2"]}, "y": {}}}
    upper = {"model": "b", "mcpServers": {"x": {"args": ["3"]}, "z": {}}}
    assert merged(lower, upper) == {
        "model": "b",
        "mcpServers": {"x": {"command": "c", "args": ["3"]}, "y": {}, "z": {}},
    }
    assert lower["mcpServers"] == {"x": {"command": "c", "args": ["1", "2"]}, "y": {}}


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=3), json_trees, max_size=4)


@given(objects, objects, objects)
def test_levels_merge_in_any_grouping_to_the_same(a: dict, b: dict, c: dict) -> None:
    assert merged(a, {}) == a
    assert merged({}, a) == a
    assert merged(a, a) == a
    for key, value in merged(b, c).items():
        if not isinstance(value, dict):
            assert merged(a, merged(b, c))[key] == value


@given(json_trees)
def test_no_tree_breaks_it_in_another_way(tree: object) -> None:
    try:
        checked(tree)
    except InvalidParameter as refused:
        assert refused.message


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({"mcpServers": {"x": {"command": "c", "url": "http://h"}}}, "mcpServers.x"),
        ({"mcpServers": {"x": {}}}, "mcpServers.x"),
        ({"mcpServers": {"x": {"command": "c", "type": "http"}}}, "mcpServers.x.type"),
        ({"mcpServers": {"oubliette": {"command": "c"}}}, "mcpServers.oubliette"),
        ({"mcpServers": {"a/../b": {"command": "c"}}}, "mcpServers"),
        ({"mcpServers": {"x": {"url": "file:///etc/passwd"}}}, "mcpServers"),
        ({"mcpServers": {"x": {"url": "https://me:hunter2@host/"}}}, "mcpServers"),
        ({"mcpServers": {"x": {"command": "c", "env": {"API_KEY": "hunter2"}}}}, "env.API_KEY"),
        (
            {"mcpServers": {"x": {"url": "https://h", "headers": {"Authorization": "hunter2"}}}},
            "headers.Authorization",
        ),
        ({"mcpServers": {"x": {"command": "c", "env": {"A": "${env:HOME}"}}}}, "env.A"),
        ({"mcpServers": {"x": {"command": "c", "env": {"A": "${credential:No}"}}}}, "env.A"),
        ({"hooks": {"Stop": "hunter2"}}, "hooks"),
        ({"autonomy": "hunter2"}, "autonomy"),
    ],
)
def test_what_is_wrong_is_named_and_a_secret_in_clear_not_repeated(
    tree: object, field: str
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        checked(tree)
    assert field in refused.value.message
    assert "hunter2" not in str(refused.value)


def test_what_a_caller_asks_for_is_refused_in_the_callers_words() -> None:
    with pytest.raises(InvalidParameter, match=r"mcp_servers\.x: it needs either") as refused:
        servers({"x": {}})
    assert refused.value.field == "mcp_servers"


def test_secrets_have_places_and_servers_can_be_switched_off() -> None:
    config = checked(
        {
            "mcpServers": {
                "web": {"url": "https://h/mcp", "headers": {"A": "Bearer ${credential:one}"}},
                "off": {"command": "c", "disabled": True, "env": {"K": "${credential:two}"}},
            }
        }
    )
    assert config.credentials == ("one",)
    assert list(config.enabled) == ["web"]
    filled = config.enabled["web"].filled(lambda name: name.upper())
    assert filled.headers == {"A": "Bearer ONE"}


def test_views_say_it_in_each_agents_words_and_hold_no_value() -> None:
    """`config.json` canonical, `opencode.json` and `.factory/` generated."""
    config = AgentConfig(
        model="p/m",
        mcp_servers={
            "t": McpServer(command="tool", args=("-v",), env={"T": "${credential:tracker}"}),
            "w": McpServer(url="https://h/mcp", headers={"A": "Bearer ${credential:tracker}"}),
        },
    )
    made = {path: json.loads(content) for path, content in views(config).items()}
    assert set(made) == {
        "config.json",
        "opencode.json",
        ".factory/mcp.json",
        ".factory/settings.json",
    }
    assert made["config.json"]["mcpServers"]["t"]["env"] == {"T": "${credential:tracker}"}
    opencode = made["opencode.json"]
    assert opencode["model"] == "p/m"
    assert opencode["mcp"]["t"] == {
        "type": "local",
        "command": ["tool", "-v"],
        "environment": {"T": "{env:OUBLIETTE_CREDENTIAL_TRACKER}"},
    }
    factory = made[".factory/mcp.json"]["mcpServers"]
    assert factory["w"]["headers"] == {"A": "Bearer ${OUBLIETTE_CREDENTIAL_TRACKER}"}
    assert factory["oubliette"]["command"] == opencode["mcp"]["oubliette"]["command"][0]
