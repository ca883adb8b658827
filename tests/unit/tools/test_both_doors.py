"""Both doors are one table: the same call gets the same answer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette import ids
from oubliette.clock import SystemClock
from oubliette.errors import Forbidden
from oubliette.tools.registry import TABLE, call, input_schema
from tests import selection
from tests.unit.tools import toolkit

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

BOTH = [tool for tool in TABLE.values() if {"http", "socket"} <= tool.transports]
ID = re.compile(
    r"[a-z]+_[0-9a-hjkmnp-tv-z]{26}(?:_[A-Za-z0-9_-]{43})?|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
TIME = re.compile(r"\d{9,}\.\d+|\d+\.\d+(?:e-?\d+)?")

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)


def masked(text: str) -> str:
    """Without what is new in each call: ids, keys, times."""
    return TIME.sub("T", ID.sub("I", text))


class Noon(SystemClock):
    """It is always noon: times have as many digits in both worlds."""

    def time(self) -> float:
        return 1_800_000_000.5


async def world(bench: Bench) -> dict[str, Any]:
    """Good values, about things that exist; the same ones at both doors."""
    project = await bench.project("shared")
    session = await bench.session(project, live=True)
    await bench.write(session, text="t")
    return {
        "project_id": project.id,
        "session_id": session.id,
        "workspace_id": project.default_workspace_id,
        "prompt": "p",
        "message": "m",
        "command": "true",
        "index": 0,
        "name": "n",
        "scope": "read",
        "token_id": ids.new_id(ids.TOKEN),
        "container_type": "base",
        "limit": 2,
        "wait_seconds": 0,
        "max_age_hours": 0,
    }


async def asked(tool: Any, scope: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """What each door answers, each in a world of its own that is made the same way."""
    answers: list[str] = []
    for door in ("http", "socket"):
        async with toolkit.bench(Noon()) as bench:
            known = await world(bench)
            given = {
                name: known[name] if value == "good" and name in known else value
                for name, value in arguments.items()
            }
            new = await bench.keys.create(
                name="k", scope=toolkit.scopes.parse(scope), principal="alice"
            )
            link = known["session_id"]
            if door == "socket":
                try:
                    result = await bench.agents.call(new.key, link, tool.name, given)
                except Forbidden as refused:
                    answers.append(refused.message)
                    continue
                said, failed = result["content"][0]["text"], result["isError"]
                if not failed:
                    assert json.loads(said) == result["structuredContent"]
            else:
                token = bench.keys.verify(new.key, "http")
                context = toolkit.context_of(token, "http", link)
                outcome = await call(bench.services, context, tool.name, given)
                said, failed = outcome.text, outcome.is_error
                if outcome.code == "forbidden" and said.startswith("tool not allowed"):
                    said, failed = "tool not allowed for this token scope", None
                    answers.append(said)
                    continue
            answers.append(masked(f"{failed}: {said}"))
    return answers[0], answers[1]


@pytest.mark.parametrize("tool", BOTH, ids=lambda tool: tool.name)
@settings(
    max_examples=selection.examples(6), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_the_same_call_gets_the_same_answer_at_both_doors(tool: Any, data: st.DataObject) -> None:
    import anyio

    schema = input_schema(tool)
    required = dict.fromkeys(schema.get("required", ()), "good")
    others = sorted(set(schema["properties"]) - set(required) - {"wait_seconds"})
    extra = data.draw(
        st.dictionaries(
            st.sampled_from([*others, *required, "zzz"]), st.just("good") | ANY, max_size=2
        )
    )
    scope = data.draw(st.sampled_from(["admin", "write", "read"]))
    http, socket = anyio.run(asked, tool, scope, {**required, **extra})
    assert http == socket
