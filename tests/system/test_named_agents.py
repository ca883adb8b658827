"""Several ACP agents in one configuration: folders and files of their own, found by their names."""

from __future__ import annotations

import json

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.system.conftest import ROOMY
from tests.system.site import TURN, Site

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.requires("bubblewrap")]

# An agent in the words of `sh`: it says its arguments, a file of its HOME, and one of its folder.
AGENT = r"""
say() { printf '%s\n' "$1"; }
while read -r line; do
  id=${line#*'"id":"'}; id=${id%%'"'*}
  case $line in
  *'"method":"initialize"'*)
    say '{"jsonrpc":"2.0","id":"initialize","result":{"protocolVersion":1}}' ;;
  *'"method":"session/new"'*)
    say '{"jsonrpc":"2.0","id":"session","result":{"sessionId":"s","modes":{"currentModeId":"ask",
      "availableModes":[{"id":"ask","name":"Ask"},{"id":"yolo","name":"Yolo"}]},
      "configOptions":[{"id":"m","name":"Model","category":"model","type":"select",
      "currentValue":"small","options":[{"value":"small","name":"Small"},
      {"value":"large","name":"Large"}]}]}}' | tr -d '\n'; say ;;
  *'"method":"session/set_'*)
    chosen="$chosen${line##*'"params":'}"
    say '{"jsonrpc":"2.0","id":"'"$id"'","result":{}}' ;;
  *'"method":"session/prompt"'*)
    text="$* $(cat "$HOME/.agent/config") $(cat "${0%/*}/data") $(printf %s "$chosen" | tr -dc 'a-zA-Z')"
    say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":
      {"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$text"'"}}}}' |
      tr -d '\n'; say
    say '{"jsonrpc":"2.0","id":"'"$id"'","result":{"stopReason":"end_turn"}}' ;;
  esac
done
"""


@pytest.fixture
async def site(tmp_path, zygote):
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.sh").write_text(AGENT, encoding="utf-8")
    (folder / "data").write_text("data", encoding="utf-8")
    tmp_path.chmod(0o755)
    source = tmp_path / "source"
    source.write_text("from a file\n", encoding="utf-8")
    settings = {
        **ROOMY,
        "acp_agents.one.command": json.dumps(["sh", "/opt/one/agent.sh", "first"]),
        "acp_agents.one.mounts": f"{folder}:/opt/one",
        "acp_agents.one.files": ".agent/config=by its text",
        "acp_agents.one.mode": "Yolo",
        "acp_agents.two.command": json.dumps(["sh", "/opt/two/agent.sh", "second"]),
        "acp_agents.two.mounts": f"{folder}:/opt/two",
        "acp_agents.two.files": f".agent/config=file:{source}",
        "acp_agents.two.model": "large",
    }
    named = {key.replace(".", "__"): value for key, value in settings.items()}
    async with ServerProcess(settings=named, zygote=zygote) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            try:
                yield site
            finally:
                await site.tidy()


async def said(site: Site, caller, **more) -> str:
    agent = await site.spawn(caller, "hello", **more)
    return (await agent.turn(TURN))[0]


async def test_agents_of_the_configuration_are_asked_for_by_their_names(site):
    """Each with its command, its folder, its file in HOME, and the model and mode it was given."""
    assert {"one", "two"} <= set((await site.eyes.call("project_options"))["agents"])
    async with site.caller("http-auto") as caller:
        one = await said(site, caller, agent="one")
        assert one == "first by its text data sessionIdsmodeIdyolo"
        assert await said(site, caller, agent="two") == (
            "second from a file data sessionIdsconfigIdmvaluelarge"
        )
        # What the message says goes before what the configuration says, and is checked.
        assert await said(site, caller, agent="two", model="small") == "second from a file data "
        agent = await site.spawn(caller, "hello", agent="two", model="huge")
        failed = await agent.event("status", status="failed", timeout=TURN)
        assert failed["reason"] == "the agent has no model 'huge'; it offers 'small', 'large'"
        with pytest.raises(ToolFailed, match="no 'three' here; choose one of: one, two"):
            await site.spawn(caller, "hello", agent="three")
