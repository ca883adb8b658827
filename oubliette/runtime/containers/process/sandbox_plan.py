"""Plan of the process runtime for a spec: users, folders, mounts, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oubliette.errors import InvalidParameter
from oubliette.runtime.containers import host_paths, layout, validation
from oubliette.runtime.containers.base import (
    KEY_FILE,
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    RELAY_DIR,
    RELAY_SOCKET,
    ContainerSpec,
    Inside,
)
from oubliette.runtime.containers.layout import NOBODY
from oubliette.runtime.containers.process import unsandboxed

if TYPE_CHECKING:
    from oubliette.runtime.containers.guest_bundle import Kit


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan for one spec on this server."""

    spec: ContainerSpec
    sandboxed: bool
    root: bool
    """The server runs as root and gives agents another user."""
    home: Path | None = None
    """The server's own folder: agents may be given access through it."""

    @property
    def agent_uid(self) -> int | None:
        """User of the agents; None = the server's own."""
        if not self.root:
            return None
        return NOBODY if self.spec.uid is None else self.spec.uid

    @property
    def host_uid(self) -> int | None:
        """User of the guest; None = the server's own."""
        # In the sandbox root's guest has three capabilities left; without one it must not be root.
        return None if self.sandboxed else self.agent_uid

    @property
    def spool(self) -> Path:
        """Folder where the guest keeps unread output."""
        return self.spec.spool_dir or host_paths.beside(self.spec.runtime_dir, "spool")

    @property
    def log(self) -> Path:
        """File with the standard streams of bwrap and the guest."""
        return host_paths.beside(self.spec.runtime_dir, "log")

    @property
    def status(self) -> Path:
        """File where bwrap writes how it ended."""
        return host_paths.beside(self.spec.runtime_dir, "status")

    def prepare(self) -> None:
        """Make the folders; give the agents' user access to the relay socket, and to nothing else.

        Sources of mounts stay unchanged.
        """
        spec = self.spec
        spec.runtime_dir.mkdir(mode=0o700, exist_ok=True)
        self.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.root and self.sandboxed:
            spec.runtime_dir.chmod(0o711)
        elif self.root:
            self.open_ways()
            for folder in (spec.runtime_dir, self.spool):
                host_paths.give_folder(folder, uid=self.host_uid, mode=0o700)

    def inside(self, python: str, kit: Kit) -> Inside:
        wrappers = layout.BIN if self.sandboxed else str(kit.wrappers)
        path = layout.PATH.replace(layout.BIN, wrappers)
        env = {"PATH": path, "LANG": "C.UTF-8", unsandboxed.COOKIE: self.spec.id}
        if self.sandboxed:
            return Inside(python=python, zipapp=layout.ZIPAPP, env=env, uid=self.agent_uid)
        socket = str(self.spec.runtime_dir / RELAY_SOCKET)
        return Inside(
            python=python,
            zipapp=str(kit.zipapp),
            relay_socket=socket,
            env={**env, "OUBLIETTE_RELAY_SOCKET": socket},
            places=unsandboxed.places(self.spec.mounts, str(self.spec.runtime_dir)),
            stranger=self.host_uid,
        )

    def command(self, inside: Inside, ready_fd: int) -> list[str]:
        spec = self.spec
        if spec.command is not None:
            return list(spec.command)
        folder = RELAY_DIR if self.sandboxed else str(spec.runtime_dir)
        spool = layout.SPOOL if self.sandboxed else str(self.spool)
        command = [*inside.program("host")]
        command += ["--socket", f"{folder}/{RELAY_SOCKET}", "--key", f"{folder}/{KEY_FILE}"]
        command += ["--spool", spool, "--orphan-grace", f"{spec.orphan_grace:g}"]
        command += ["--ready-fd", str(ready_fd)]
        if spec.accept_bare:
            command.append("--accept-bare")
        for name, value in sorted(spec.labels.items()):
            command += ["--label", f"{name}={value}"]
        return command

    def check(self, base: Path, *, network_none: bool) -> None:
        """Refuse a spec that cannot be carried out.

        Raises:
            InvalidParameter: the spec is unsupported; names its field and the remedy, if any.
        """
        spec = self.spec
        labels = spec.labels
        if LABEL_INSTANCE not in labels or labels.get(LABEL_CONTAINER) != spec.id:
            raise InvalidParameter(
                f"labels: {LABEL_INSTANCE} and {LABEL_CONTAINER} (the id) are needed",
                field="labels",
            )
        if spec.runtime_dir.parent != base:
            raise InvalidParameter(
                f"runtime_dir: {spec.runtime_dir} is not in {base}", field="runtime_dir"
            )
        if spec.uid == 0:
            raise InvalidParameter("uid: agents never run as root", field="uid")
        if spec.network not in {"auto", "own", "host", "none"}:
            raise InvalidParameter(
                f"network: the process runtime knows auto, own, host and none, not {spec.network}",
                field="network",
            )
        if spec.network in {"own", "none"} and not network_none:
            raise InvalidParameter(
                "network: this sandbox cannot cut a container from the network",
                field="network",
                hint='set process.network = "host", or make bubblewrap work here',
            )
        self._check_way(base.parent)
        if spec.spool_dir is not None:
            self._check_way(spec.spool_dir.parent)
        for mount in spec.mounts:
            validation.check_mount(mount)
            self._check_way(mount.source.parent)

    def _check_way(self, source: Path) -> None:
        """Refuse a source that unsandboxed agents cannot reach and we may not open for them."""
        if self.sandboxed or self.agent_uid is None:
            return
        for closed in host_paths.closed_folders(source, self.agent_uid):
            if not self._may_open(closed):
                raise InvalidParameter(
                    f"mounts: without a sandbox user {self.agent_uid} must be able to pass {closed}"
                    f" to reach {source}",
                    field="mounts",
                    hint=f"chmod o+x {closed}, use another --home, or install bubblewrap",
                )

    def _may_open(self, folder: Path) -> bool:
        return self.home is not None and folder.is_relative_to(self.home.resolve())

    def open_ways(self) -> None:
        """Let the agents' user pass through the server's own folders, where nothing is mounted."""
        if self.sandboxed or self.agent_uid is None:
            return
        base = self.spec.runtime_dir.parent
        host_paths.let_pass(base)
        mounted = (mount.source.parent for mount in self.spec.mounts)
        for end in (base.parent, self.spool.parent, *mounted):
            for closed in host_paths.closed_folders(end, self.agent_uid):
                if self._may_open(closed):
                    host_paths.let_pass(closed)
