"""Specs of containers, derived from the current configuration, and a hash of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from oubliette.errors import OublietteError
from oubliette.runtime.agents import loopback_ports
from oubliette.runtime.agents.loopback_ports import LoopbackPorts
from oubliette.runtime.containers import options
from oubliette.runtime.containers.base import (
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    LABEL_PROJECT,
    LABEL_SPEC,
    ContainerSpec,
    Mount,
)
from oubliette.runtime.containers.host_paths import new_runtime_dir
from oubliette.runtime.files.agent_configs import FILE
from oubliette.runtime.files.project_dirs import CONTEXT

if TYPE_CHECKING:
    from oubliette.actors.container.messages import ContainerKey
    from oubliette.actors.context import ActorContext
    from oubliette.records import Container, Project
    from oubliette.runtime.containers.base import Hardening

log = structlog.get_logger("oubliette.containers")


class ContainerSpecBuilder:
    """Builder of the specs of one ContainerKey."""

    def __init__(self, context: ActorContext, project: Project, key: ContainerKey) -> None:
        self._context = context
        self.project = project
        self.key = key

    @property
    def image(self) -> str | None:
        """Its image; None for runtimes without images.

        Raises:
            RuntimeFailure: its container type is not configured any more.
        """
        if not self._context.runtime.capabilities.images:
            return None
        config = self._context.config
        options.check_type(config, self.key.container_type)
        return options.image_of(config, self.key.container_type, self.project)

    def digest(self) -> str:
        """A hash that is the same for containers that differ only in names and folders."""
        context = self._context
        parts = (
            context.runtime.name,
            _content(context.zipapp, context.zipapp.stat().st_mtime_ns),
            context.config.process if self.image is None else None,
            self.key.container_type,
            self.key.workspace_id,
            self._draft("", Path()),
        )
        data = msgspec.json.encode([repr(part) for part in parts])
        return hashlib.sha256(data).hexdigest()[:16]

    def is_current(self, record: Container) -> bool:
        """Whether a container was made with the present settings."""
        try:
            return record.spec_hash == self.digest()
        except OublietteError:  # its type is not configured any more
            return False

    def spec(self, container_id: str) -> ContainerSpec:
        """A spec with a new runtime folder. Blocks."""
        context = self._context
        draft = self._draft(container_id, new_runtime_dir(context.runtime_base))
        labels = {
            LABEL_INSTANCE: context.instance,
            LABEL_PROJECT: self.project.id,
            LABEL_CONTAINER: container_id,
            LABEL_SPEC: self.digest(),
        }
        return msgspec.structs.replace(
            draft, labels=labels, spool_dir=context.folders.spool(container_id)
        )

    def _draft(self, container_id: str, runtime_dir: Path) -> ContainerSpec:
        context, project, kind = self._context, self.project, self.key.container_type
        config, name = context.config, context.runtime.name
        network = options.network_of(config, name, kind, project)
        needed = self._loopback_ports() if network in {"auto", "own"} else LoopbackPorts()
        if network == "auto" and context.loopback_ports.beyond:
            network = "host"  # the server's owner wants it; a project does not decide that
        if needed.beyond and container_id:
            log.warning(
                "agents need an address that a network of their own cannot reach",
                container=container_id,
                addresses=", ".join(needed.beyond),
                network=network,
            )
        return ContainerSpec(
            id=container_id,
            labels={},
            runtime_dir=runtime_dir,
            mounts=tuple(self._mounts()),
            image=self.image,
            network=network,
            loopback_ports=needed.ports,
            limits=options.limits_of(config, name, kind, project),
            hardening=self._hardening(),
            uid=project.uid if context.runtime.capabilities.uid_per_container else None,
            orphan_grace=config.containers.orphan_grace_seconds,
            accept_bare=options.accepts_bare(config, project),
        )

    def _loopback_ports(self) -> LoopbackPorts:
        """The ports of this machine that its agents need, MCP servers included. Blocks."""
        folder = self._context.folders.configs.projects / self.project.id
        if self.key.workspace_id is not None:
            folder = folder / "workspaces" / self.key.workspace_id
        texts = [msgspec.json.encode(self.project.mcp_servers).decode()]
        for file in (folder / FILE, *folder.glob(f"workspaces/*/{FILE}")):
            with contextlib.suppress(OSError):  # it is made with the workspace
                texts.append(file.read_text(encoding="utf-8", errors="replace"))
        return self._context.loopback_ports + loopback_ports.named(texts)

    def _hardening(self) -> Hardening | None:
        if self.image is None:
            return None
        context, kind = self._context, self.key.container_type
        return options.hardening_of(context.config, context.runtime.name, kind, self.project)

    def _mounts(self) -> list[Mount]:
        context, project = self._context, self.project
        folders = context.folders
        if self.key.workspace_id is None:
            workspace = folders.project(project.id)
            mounts = [Mount(workspace, "/workspace")]
            mounts += [
                Mount(workspace / name, f"/workspace/{name}", read_only=True)
                for name in ("metadata.json", "config.json")
            ]
        else:
            name = self.key.workspace_id
            workspace = folders.workspace(project.id, name)
            mounts = [Mount(workspace, f"/workspace/workspaces/{name}")]
            if context.runtime.capabilities.isolation != "none":
                root = folders.workspace_root(project.id, name)
                mounts.insert(0, Mount(root, "/workspace", read_only=True))
            else:  # nothing is mounted: it is where the workspace is
                mounts.append(Mount(workspace / CONTEXT, f"/workspace/{CONTEXT}"))
        mounts.append(Mount(folders.session_homes(project.id), "/home/agent"))
        # The agents' programs, each once: two agents may share one. Without a sandbox they are used
        # where they are.
        if context.runtime.capabilities.isolation != "none":
            agents = context.agents.values()
            mounts += dict.fromkeys(mount for agent in agents for mount in agent.mounts)
        return mounts


@functools.lru_cache(maxsize=8)
def _content(path: Path, changed: int) -> str:
    """Return a hash of the zipapp; read once, as long as it is not written again."""
    del changed
    return hashlib.sha256(path.read_bytes()).hexdigest()
