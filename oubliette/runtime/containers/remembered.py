"""Which runtime a home had last: `auto` does not put its agents behind a weaker wall unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError
from oubliette.runtime.containers.host_paths import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config

FILE: Final = "runtime"
"""In the home: the wall's name, one of `WALLS`."""
WALLS: Final = {"best-effort": 1, "bubblewrap": 2, "podman": 3, "docker": 3, "apple": 3}
"""What keeps agents in → how well; engines are as good as each other."""


def wall(runtime: str, config: Config) -> str:
    """What keeps the agents of a runtime in."""
    return config.process.sandbox if runtime == "process" else runtime


def check(home: Path, runtime: str, config: Config, why: str) -> None:
    """See that `auto` did not come upon less than the home had.

    A runtime that is named by the configuration is wanted, whatever was before.

    Raises:
        ConfigError: it is less; says what was, and how to have it or to do without.
    """
    if config.containers.runtime != "auto":
        return
    before, now = recall(home), wall(runtime, config)
    if before is None or WALLS[now] >= WALLS[before]:
        return
    raise ConfigError(
        f"containers.runtime = auto would run agents in {now} from now on, which keeps them in less"
        f" than {before}, which this home had: {why}",
        hint=f"see that {before} can be used (oubliette doctor); if it is meant, say so:"
        f" --runtime {runtime} (containers.runtime)",
    )


def recall(home: Path) -> str | None:
    """The wall of the last start; None: there was none, or it is not known."""
    try:
        found = (home / FILE).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return found if found in WALLS else None


def remember(home: Path, runtime: str, config: Config) -> None:
    """Note the wall for the next start."""
    now = wall(runtime, config)
    if recall(home) != now:
        write_private(home / FILE, f"{now}\n".encode())
