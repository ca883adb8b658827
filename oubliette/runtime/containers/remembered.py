"""Record of a home's last runtime, so that `auto` does not silently choose a weaker isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError
from oubliette.runtime.containers import registry
from oubliette.runtime.containers.host_paths import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config

FILE: Final = "runtime"
"""In the home: the name of the isolation, one of `walls`."""


def walls() -> dict[str, int]:
    """Return isolation of agents → its strength; engines are equal."""
    specs = registry.known()
    return {name: strength for spec in specs for name, strength in spec.walls.items()}


def wall(runtime: str, config: Config) -> str:
    """Return the isolation of a runtime's agents."""
    return registry.find(runtime).isolation_of(config)


def check(home: Path, runtime: str, config: Config, why: str) -> None:
    """Check that `auto` did not choose a weaker isolation than the home had.

    A runtime that the configuration names is accepted in any case.

    Raises:
        ConfigError: the isolation is weaker; the message names the last one and the remedy.
    """
    if config.containers.runtime != registry.AUTO:
        return
    before, now = recall(home), wall(runtime, config)
    if before is None or walls()[now] >= walls()[before]:
        return
    raise ConfigError(
        f"containers.runtime = auto would run agents in {now} from now on, which keeps them in less"
        f" than {before}, which this home had: {why}",
        hint=f"see that {before} can be used (oubliette doctor); if it is meant, set"
        f" --runtime {runtime} (containers.runtime)",
    )


def recall(home: Path) -> str | None:
    """Return the isolation of the last start; None: there was none, or it is unknown."""
    try:
        found = (home / FILE).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return found if found in walls() else None


def remember(home: Path, runtime: str, config: Config) -> None:
    """Store the isolation for the next start."""
    now = wall(runtime, config)
    if recall(home) != now:
        write_private(home / FILE, f"{now}\n".encode())
