"""The environment of Ray's processes: settings that Ray reads only from variables.

They must be set in every process that imports `ray` and belongs to the cluster, before it does:
nodes, agents and what starts them. Ray's own processes inherit them.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACE: Final = "oubliette"
"""Ray namespace of all our actors."""

TOKEN_FILE: Final = "ray-token"  # noqa: S105 - the name of a file
GCS_FOLDER: Final = "gcs"

HEALTH: Final = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A machine that is silent is given up after about six seconds; Ray's own setting takes 65."""

SETTINGS: Final = HEALTH | {
    # Without the GCS a node goes on for this time (seconds); Ray's own setting ends it after 60.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    # A caller learns of the end of a process after this time (milliseconds) instead of 1000.
    "RAY_timeout_ms_task_wait_for_death_info": "200",
    "RAY_core_worker_internal_heartbeat_ms": "100",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A driver must not prepare an environment with uv for its actors.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # The number of GPUs that an actor sees is its containers' business.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray gives way to everything else on the machine by 15; a node that waits loses its lease.
    "RAY_worker_niceness": "0",
    # The program of a node runs on a loop that Ray makes.
    "RAY_USE_UVLOOP": "0",
    "RAY_AUTH_MODE": "token",
}

OTHER_MACHINES: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch, "0" where a cluster is on the loopback address alone.

Ray takes that address for the machine's own otherwise, where a local cluster does not listen.
"""


def ray_environment(folder: Path, *, head: bool) -> dict[str, str]:
    """The variables for a cluster whose secrets and state are in `folder`.

    The token is in a file of mode 0600 in a folder of mode 0700, which no container mounts: a
    process that has it can run code on every node.

    Args:
        folder: where the token is, and on the head Ray's own database.
        head: whether the process runs Ray's head; that alone has the database.

    Raises:
        ConfigError: the token is missing and this is not the head, or others may read it.
    """
    token = folder / TOKEN_FILE
    if head:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_token(token)
    check_token(token)
    found = SETTINGS | {"RAY_AUTH_TOKEN_PATH": str(token)}
    if head:
        # Kept in memory alone, it is lost with the process, and no node recovers from that.
        database = folder / GCS_FOLDER
        database.mkdir(mode=0o700, exist_ok=True)
        found |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(database)}
    return found


def check_token(token: Path) -> None:
    """Refuse a file of the token that is missing, or that others than its owner may read.

    Raises:
        ConfigError: it is so.
    """
    try:
        mode = token.stat().st_mode
    except FileNotFoundError:
        raise ConfigError(
            f"{token} is missing", hint="copy it from the head of the cluster, with mode 0600"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"Others may read {token}", hint=f"chmod 600 {token}")


def _make_token(token: Path) -> None:
    try:
        made = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
