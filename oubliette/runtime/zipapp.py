"""Path of the zipapp that runs inside containers: relay, guest, client, scripted agent."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from oubliette.errors import ConfigError
from oubliette.incontainer import build

BUNDLED = Path(__file__).resolve().parents[1] / "_bundled" / "oubliette.pyz"


def zipapp_path(cache: Path | None = None) -> Path:
    """The path of the zipapp of this very version.

    A wheel contains it. A checkout builds it into `cache` (by default the user's cache folder)
    under a name made of its content, so that a changed module never gets a stale zipapp.

    Raises:
        OSError: It had to be built and the cache folder cannot be written.
        ConfigError: It had to be built, and this user has no cache folder.
    """
    if BUNDLED.exists():
        return BUNDLED
    folder = _user_cache() if cache is None else cache
    target = folder / f"oubliette-{build.fingerprint()}.pyz"
    if not target.exists():
        build.build(target)
    return target


def _user_cache() -> Path:
    try:
        return platformdirs.user_cache_path("oubliette")
    except RuntimeError as error:
        raise ConfigError(
            "a checkout of Oubliette builds the program of its containers into the cache folder of"
            " this user, who has none",
            hint="set HOME or XDG_CACHE_HOME, or install the package, which contains the program",
        ) from error
