"""The connection of a Ray driver, as the agent is one; what serves or stores must never have it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oubliette.cluster.environment import NAMESPACE, ray_environment

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
    """
    os.environ.update(ray_environment(folder, head=False))
    if address.startswith("127."):
        # Ray takes the loopback address for the machine's own, where a local cluster does not
        # listen; this is its switch for machines that have the loopback address alone.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from oubliette.cluster.ray_calls import RAY

    RAY.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)


def disconnect() -> None:
    """End the connection; detached actors go on."""
    from oubliette.cluster.ray_calls import RAY

    RAY.shutdown()
