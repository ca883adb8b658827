"""Base of runtimes whose agent is one program with a section of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from oubliette.errors import ConfigError
from oubliette.runtime.agents.environment import check_reference, check_variables
from oubliette.runtime.agents.executor import StreamExecution
from oubliette.runtime.agents.prices import prices_of
from oubliette.runtime.agents.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import Availability
    from oubliette.runtime.containers.base import Mount


class ConfiguredProgram(StreamExecution):
    """Half of an `AgentRuntime`: handles `path`, `model`, `base_url`, `api_key` and `env`."""

    program: ClassVar[str]
    """Name of the agent, and of its section."""
    package: ClassVar[str]
    """Package that installs it."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._program = Program(self.program, package=self.package, section=self.program)
        self._config: dict[str, Any] = dict(config or {})
        self._take()

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Apply its section of the configuration.

        Raises:
            ConfigError: names the key.
        """
        self._config |= {key: value for key, value in config.items() if value is not None}
        self._take()

    def _take(self) -> None:
        config, section = self._config, self.program
        self._program.configure(config.get("path"))
        check_variables(config.get("env") or (), section)
        if (reference := config.get("api_key")) is not None:
            check_reference(reference, f"{section}.api_key")
        if config.get("base_url") and not config.get("model"):
            raise ConfigError(f"{section}.model: needed beside {section}.base_url")
        self._prices = prices_of(config, section)

    async def is_available(self) -> Availability:
        return self._program.availability

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return self._program.mounts
