"""Validation of specs common to all runtimes; errors name the field."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oubliette.errors import InvalidParameter, RuntimeFailure
from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from oubliette.runtime.containers.base import ContainerSpec, Mount


def check_spec(spec: ContainerSpec, base: Path) -> None:
    """Refuse labels that cannot be found again, a foreign runtime folder, root and broken mounts.

    Raises:
        InvalidParameter: names the field.
        RuntimeFailure: an agent has planted a link where a mount's source should be.
    """
    labels = spec.labels
    if LABEL_INSTANCE not in labels or labels.get(LABEL_CONTAINER) != spec.id:
        raise InvalidParameter(
            f"labels: {LABEL_INSTANCE} and {LABEL_CONTAINER} (the id) are needed", field="labels"
        )
    if spec.runtime_dir.parent != base:
        raise InvalidParameter(
            f"runtime_dir: {spec.runtime_dir} is not in {base}", field="runtime_dir"
        )
    if spec.uid == 0:
        raise InvalidParameter("uid: agents never run as root", field="uid")
    for mount in spec.mounts:
        check_mount(mount)


def check_mount(mount: Mount) -> None:
    """Refuse a source that is missing, irregular, or redirected by an agent's link.

    Raises:
        InvalidParameter: the source or the target is invalid.
        RuntimeFailure: an agent has planted a link.
    """
    source, target = mount.source, mount.target
    if not target.startswith("/") or os.path.normpath(target) != target or target == "/":
        raise InvalidParameter(
            f"mounts: target {target!r} is not a plain absolute path", field="mounts"
        )
    if not source.is_absolute():
        raise InvalidParameter(f"mounts: {source} is not absolute", field="mounts")
    try:
        os.close(host_paths.open_source(source))
    except OSError as error:
        raise InvalidParameter(f"mounts: {source}: {error.strerror}", field="mounts") from error


def check_oci_runtime(spec: ContainerSpec, engine: str, runtimes: Collection[str]) -> None:
    """Refuse an OCI runtime that the engine lacks; podman would silently run its default instead.

    Raises:
        RuntimeFailure: the runtime is missing; names it and the available ones.
    """
    wanted = spec.hardening.oci_runtime if spec.hardening is not None else None
    if wanted is not None and wanted not in runtimes:
        others = ", ".join(sorted(runtimes)) or "none that it names"
        raise RuntimeFailure(
            f"{engine} has no OCI runtime {wanted!r}; it has {others}",
            hint="register it with the engine, or unset oci_runtime",
        )
