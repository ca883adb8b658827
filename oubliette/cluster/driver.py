"""The connection of a Ray driver, as the agent is one; what serves or stores must never have it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from oubliette.cluster.environment import NAMESPACE, OTHER_MACHINES, SETTINGS, ray_environment

if TYPE_CHECKING:
    from pathlib import Path


def connect(folder: Path, address: str) -> None:
    """Make this process a driver of the cluster, for what `oubliette.cluster.nodes` does.

    Args:
        folder: where the token is.
        address: of Ray's head, `host:port`.

    Raises:
        ConfigError: the token is missing, or others may read it.
        ConnectionError: no head answers there.
        RuntimeError: this process has imported Ray without the settings, which Ray reads but then.
    """
    settings = SETTINGS
    if address.startswith("127."):
        settings = SETTINGS | {OTHER_MACHINES: "0"}
    if "ray" in sys.modules:
        missing = [name for name, value in settings.items() if os.environ.get(name) != value]
        if missing:
            raise RuntimeError(f"ray was imported before these were set: {', '.join(missing)}")
    os.environ.update(ray_environment(folder, head=False) | settings)
    from oubliette.cluster.ray_calls import RAY

    RAY.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)


def disconnect() -> None:
    """End the connection; detached actors go on."""
    from oubliette.cluster.ray_calls import RAY

    RAY.shutdown()
