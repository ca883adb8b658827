"""What a model at a `base_url` costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.errors import ConfigError
from oubliette.runtime.agents import AgentSession, DroidRuntime, OpencodeAcpRuntime, OpencodeRuntime
from oubliette.runtime.agents.silence import events_of_silence
from oubliette.runtime.containers import Inside

OWN: dict[str, Any] = {"model": "m", "base_url": "http://127.0.0.1:1/v1"}
SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace",
    home="/home/agent/gogol_1",
    pairing_secret="secret",
)
USED = {
    "inputTokens": 1_000_000,
    "outputTokens": 500_000,
    "cacheReadTokens": 2_000_000,
    "cacheCreationTokens": 100_000,
}


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        ({}, None),
        ({"price_input": 3.0, "price_output": 15.0}, 3.0 + 7.5 + 6.0 + 0.3),
        ({"price_input": 3.0, "price_cache_read": 0.3, "price_cache_write": 0.0}, 3.0 + 0.6),
        ({"price_output": 2}, 1.0),
    ],
)
def test_what_droid_has_used_is_priced(prices: dict[str, Any], cost: float | None) -> None:
    adapter = DroidRuntime({**OWN, **prices}).adapter(SESSION, Inside(), {"ready": True})
    note = {"type": "agent_turn_completed", "reason": "completed", "tokenUsage": USED}
    frame = {"type": "notification", "method": "droid.session_notification"}
    line = json.dumps({**frame, "params": {"notification": note}}).encode() + b"\n"
    (used,) = [event.data for event in adapter.feed(line, 0) if event.type == "usage"]
    assert used.get("cost_usd") == (None if cost is None else pytest.approx(cost))
    assert used.get("measured") is (None if cost is None else True)


COST = {"sessionUpdate": "usage_update", "cost": {"amount": 0.5, "currency": "USD"}}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({}, {"cost_usd": 0.5}),
        (OWN, {}),
        ({**OWN, "price_input": 3.0}, {"cost_usd": 0.5, "measured": True}),
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_a_cost_is_measured_by_configured_prices_and_unknown_for_a_model_that_has_none(
    config: dict[str, Any], fields: dict[str, Any], *, told: bool
) -> None:
    """The agent counts 0 for a model of which it knows no price."""
    adapter = OpencodeAcpRuntime(config).adapter(SESSION, Inside(), {"ready": True})
    update = {"method": "session/update", "params": {"sessionId": "s", "update": COST}}
    end = {"id": "prompt-1", "result": {"stopReason": "end_turn", "usage": {"totalTokens": 3}}}
    lines = [update, end] if told else [end]
    text = b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in lines)
    events = adapter.feed(text, 0) + events_of_silence(adapter)
    (used,) = [event.data for event in events if event.type == "usage"]
    assert used == {"turn": 1, "tokens": 3, **(fields if told else {})}


@pytest.mark.parametrize("runtime", [OpencodeRuntime, OpencodeAcpRuntime])
def test_opencode_is_told_the_prices(runtime: Any) -> None:
    told = runtime({**OWN, "price_input": 3, "price_output": 15, "price_cache_read": 0.3})
    settings = json.loads(told.command(SESSION, Inside()).env["OPENCODE_CONFIG_CONTENT"])
    model = settings["provider"]["oubliette"]["models"]["m"]
    assert model["cost"] == {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3}
    free = json.loads(runtime(OWN).command(SESSION, Inside()).env["OPENCODE_CONFIG_CONTENT"])
    assert "cost" not in free["provider"]["oubliette"]["models"]["m"]


@pytest.mark.parametrize(
    ("runtime", "section"), [(OpencodeRuntime, "opencode"), (DroidRuntime, "droid")]
)
def test_prices_are_those_of_the_model_at_base_url(runtime: Any, section: str) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.price_output: .*{section}\.base_url"):
        runtime({"model": "anthropic/claude", "price_output": 1.0})
