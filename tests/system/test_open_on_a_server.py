"""`oubliette.open` on a home on which a server of the same user runs: the program uses that one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import oubliette
from oubliette.errors import HomeInUse
from tests.system.own_agents import echo
from tests.system.site import TURN

pytestmark = pytest.mark.anyio


@oubliette.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def keys_of_programs(site: Any) -> list[Any]:
    found = (await site.eyes.call("token_list"))["tokens"]
    return [each for each in found if each["name"].startswith("oubliette.open of process")]


async def test_the_program_uses_the_server_with_a_key_of_its_own(site, caplog):
    caplog.set_level(logging.INFO, "oubliette")
    home = site.server.home
    before = len(await keys_of_programs(site))
    async with oubliette.open(home) as ob, oubliette.open(home) as other, asyncio.timeout(TURN):
        assert f"a server runs on {home}: it is used, at {site.server.url}" in caplog.text
        project = await ob.create_project("of a program on a server")
        assert project.id in {each.id for each in await other.projects()}
        both = [
            (await each.project(project.id)).spawn(
                f'call {each.caller_id}_add {{"a": {n}, "b": 1}}', tools=[add]
            )
            for n, each in enumerate((ob, other), 1)
        ]
        for n, session in enumerate([await each for each in both], 1):
            events = [each async for each in session.events()]
            (result,) = [each for each in events if each.type == "tool_result"]
            assert (result.is_error, str(n + 1) in str(result.result)) == (False, True)
        with pytest.raises(HomeInUse, match="in the process of the server"):
            _ = ob.system
    after = (await keys_of_programs(site))[before:]
    assert [each["revoked_at"] is None for each in after] == [False, False]
    assert {each["principal"] for each in after} == {"program"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", {"agents.default": "scripted"}),
        ("agents", [echo]),
        ("runtime", object()),
        ("on_exit", "keep"),
    ],
)
async def test_what_only_a_process_of_its_own_can_have_is_refused_by_its_name(site, name, value):
    before = len(await keys_of_programs(site))
    with pytest.raises(HomeInUse) as refused:
        await oubliette.open(site.server.home, **{name: value}).start()
    assert f"{name}= is for a process of its own" in refused.value.message
    assert "leave it out" in refused.value.hint
    assert len(await keys_of_programs(site)) == before
