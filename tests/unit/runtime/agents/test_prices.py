"""What a model at a `base_url` costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.errors import ConfigError
from oubliette.runtime.agents import AgentSession, DroidRuntime, OpencodeAcpRuntime, OpencodeRuntime
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
        ({}, 0.0),
        ({"price_input": 3.0, "price_output": 15.0}, 3.0 + 7.5 + 6.0 + 0.3),
        ({"price_input": 3.0, "price_cache_read": 0.3, "price_cache_write": 0.0}, 3.0 + 0.6),
        ({"price_output": 2}, 1.0),
    ],
)
def test_what_droid_has_used_is_priced(prices: dict[str, Any], cost: float) -> None:
    adapter = DroidRuntime({**OWN, **prices}).adapter(SESSION, Inside(), {"ready": True})
    note = {"type": "agent_turn_completed", "reason": "completed", "tokenUsage": USED}
    frame = {"type": "notification", "method": "droid.session_notification"}
    line = json.dumps({**frame, "params": {"notification": note}}).encode() + b"\n"
    (used,) = [event.data for event in adapter.feed(line, 0) if event.type == "usage"]
    assert used["cost_usd"] == pytest.approx(cost)


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
