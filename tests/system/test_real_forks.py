"""A real agent is forked over a scripted model: it knows the conversation of a turn itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.system.real_agents import SLOW, site_on

if TYPE_CHECKING:
    from oubliette.testing.model_server import ModelServer
    from tests.system.site import Agent, Site

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.requires("opencode"),
]


def heard(model: ModelServer) -> list[tuple[str, str]]:
    """The conversation in the model's newest request, without what an agent puts before it."""
    return [(each.kind, each.text) for each in model.requests[-1].asked.said]


async def forked(site: Site, caller: Any, session: Agent, prompt: str, **more: Any) -> Agent:
    done = await caller.call("session_fork", session_id=session.session_id, prompt=prompt, **more)
    (made,) = done["sessions"]
    assert made["error"] is None
    assert made["conversation"] == "native"
    fork = site.agent(made["session_id"])
    await fork.turn(SLOW)
    assert (await fork.get())["conversation"] == "native"
    return fork


async def test_a_fork_of_opencode_knows_what_was_said_up_to_its_turn(
    zygote: Any, model: ModelServer
) -> None:
    async with (
        site_on("process", zygote, model, **{"snapshots.mode": "on"}) as site,
        site.caller("http-auto") as caller,
    ):
        project = await site.new_project()
        first = await site.spawn(
            caller, "say the colour is blue", agent="opencode", project_id=project["id"]
        )
        await first.turn(SLOW)
        await first.say("say the shape is round")
        await first.turn(SLOW)

        place = 'call bash {"command": "pwd", "description": "where"}'
        earlier = await forked(site, caller, first, place, at_turn=1)
        assert heard(model)[:3] == [
            ("user", "say the colour is blue"),
            ("assistant", "the colour is blue"),
            ("user", place),
        ]
        found = await earlier.get()
        assert found["workspace_id"] in heard(model)[-1][1]

        newest = await forked(site, caller, first, "history")
        told = ["say the colour is blue", "say the shape is round"]
        assert [text for kind, text in heard(model) if kind == "user"] == [*told, "history"]
        again = await forked(site, caller, newest, "say again")
        said = [text for kind, text in heard(model) if kind == "user"]
        assert said == [*told, "history", "say again"]
        assert (await again.get())["agent"] == "opencode"

        await first.say("say the end")
        await first.turn(SLOW)
        said = [text for kind, text in heard(model) if kind == "user"]
        assert said == [*told, "say the end"]
