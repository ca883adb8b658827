"""Rows that the released 0.1.0 has written are read, and written again as they were."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oubliette.records import Limits, Project, Record, Session
from oubliette.runtime.store import codec

PROJECT = b"""
{"id":"proj_1","name":"p","created_at":1.5,"default_workspace_id":"w1","uid":1000,"description":"d",
"remote_url":null,"container_type":null,"agent":"opencode","model":"m","autonomy":"low",
"workspace_isolation":false,"accept_bare":null,"limits":{"max_depth":2,"max_agents":null,
"max_agents_at_once":null,"max_cost_usd":0.5,"max_wall_seconds":null,"max_turn_seconds":null,
"max_turn_steps":null},"mcp_servers":{"s":{"command":"c"}},"owner":"prin_1","deleted_at":null}
"""
SESSION = b"""
{"id":"s1","project_id":"proj_1","workspace_id":"w1","principal":"prin_1","agent":"opencode",
"status":"idle","created_at":1.0,"updated_at":2.0,"exploration_id":"expl_1","depth":0,
"parent_session_id":null,"root_session_id":"s1","model":"m","autonomy":"ask",
"isolation":"container","status_reason":null,"ended_at":null,"ended_by":null,"ending":null,
"ending_final":true,"turn_count":1,"last_prompt":"hello","final_response":"done","caller_id":"c",
"caller_tools":[{"name":"t","description":"x","inputSchema":{"type":"object"},"durable":false}],
"input_tokens":0,"output_tokens":0,"cost_usd":0.25,"limits":{"max_depth":3,"max_agents":50,
"max_agents_at_once":10,"max_cost_usd":10.0,"max_wall_seconds":86400.0,"max_turn_seconds":21600.0,
"max_turn_steps":500},"container_id":"cont_1","process_id":"proc_1","process_out":0,
"process_err":0,"process_frames":3,"pairing_secret":null,"external_id":null,"source":null,
"agent_session_id":"a1","minted_token_id":null,"given_key":false,"agent_ready":true,
"agent_contacted":true,"remembered":{}}
"""


def ours(kind: type[Record], row: bytes) -> dict[str, Any]:
    """The fields of a row that a record still has, in the row's order."""
    return {
        name: value
        for name, value in msgspec.json.decode(row).items()
        if name in kind.__struct_fields__
    }


@pytest.mark.parametrize(
    ("kind", "row", "dropped"), [(Project, PROJECT, set()), (Session, SESSION, {"process_out"})]
)
def test_a_row_is_written_again_with_the_same_fields_in_the_same_order(
    kind: type[Record], row: bytes, dropped: set[str]
) -> None:
    kept = ours(kind, row)
    assert set(msgspec.json.decode(row)) - set(kept) == dropped
    again = msgspec.json.decode(codec.encode(codec.decode(kind, row)))
    assert list({name: again[name] for name in again if name in kept}.items()) == list(kept.items())


def test_a_row_says_what_was_asked_for_and_what_holds() -> None:
    project, session = codec.decode(Project, PROJECT), codec.decode(Session, SESSION)
    assert project.limits == Limits(max_depth=2, max_cost_usd=0.5)
    assert (project.agent, project.model, project.autonomy) == ("opencode", "m", "low")
    assert session.limits.max_turn_steps == 500
    assert (session.agent, session.model, session.autonomy) == ("opencode", "m", "ask")
