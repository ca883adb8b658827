"""The model of a session that names none is the one of its agent's section."""

from __future__ import annotations

from oubliette.config.schema import Config, DroidConfig, OpencodeConfig
from oubliette.config.sections import configured_model
from oubliette.tools.schema.views import known

CONFIG = Config(opencode=OpencodeConfig(model="anthropic/big"), droid=DroidConfig(model="small"))


def test_both_ways_to_speak_to_opencode_have_its_model() -> None:
    agents = ("opencode", "opencode-acp", "droid")
    assert [configured_model(CONFIG, agent) for agent in agents] == ["anthropic/big"] * 2 + [
        "small"
    ]
    assert known(CONFIG, agents) == ("anthropic/big", "small")


def test_agents_without_a_section_choose_themselves() -> None:
    for agent in ("scripted", "acp", "server", "trees", "of-a-package"):
        assert configured_model(CONFIG, agent) is None
    assert known(Config(), ("opencode", "scripted")) == ()
