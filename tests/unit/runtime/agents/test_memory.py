"""What one agent of a kind is counted with."""

from __future__ import annotations

from oubliette.config.container_options import ContainerOptions
from oubliette.config.schema import AgentsConfig, Config
from oubliette.runtime.agents.memory import NEEDS, need_of


class Package:
    """The runtime of an agent of somebody else's package."""

    memory_mb = 50


def test_the_configuration_goes_before_the_package_and_that_before_what_was_measured() -> None:
    said = Config(agents=AgentsConfig(memory=("opencode=700", "mine=60")))
    assert [need_of(said, "opencode"), need_of(said, "mine", Package())] == [700, 60]
    assert [need_of(Config(), "mine", Package()), need_of(Config(), "droid")] == [50, 400]
    assert need_of(Config(), "unheard-of") == 400


def test_the_default_memory_is_enough_for_the_default_number_of_any_agent() -> None:
    most = Config().trees.max_agents_at_once
    assert ContainerOptions().memory_mb >= most * max(NEEDS.values())
