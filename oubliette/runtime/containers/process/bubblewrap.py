"""Command line of bubblewrap (bwrap(1)).

The view inside is built up from nothing: system programs read-only, a handful of files of `/etc`, a
separate `/proc`, `/dev` and `/tmp`, the zipapp, and the mounts of the spec. The guest is process 1
of its own pid namespace, so the kernel ends everything in it when the guest ends.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.runtime.containers import layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oubliette.runtime.containers.base import Mount

_SYSTEM_FOLDERS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
"""Files for libraries, names and certificates; none that may hold a secret."""

_GIVEN: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/dev", "/tmp", "/run")  # noqa: S108

_ROOT_CAPABILITIES: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP")
"""Capabilities that root's guest needs to start agents under another user and to end them, and,
for a moment, to empty the bounding set."""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the command line."""

    bwrap: str
    root: bool
    """The server runs as root: no user namespace, agents get a user id of their own."""
    python_prefix: Path | None
    """Bound read-only at the same place when `/usr` has no Python."""
    zipapp: Path
    wrappers: Path
    """Folder with `oubliette-client` and `oubliette-relay`."""
    sizes: bool = True
    """This bwrap supports `--size`."""
    bind_fd: bool = False
    """This bwrap supports `--bind-fd`: the checked file is the mounted one."""


def arguments(
    sandbox: Sandbox,
    *,
    command: Sequence[str],
    network: str = "none",
    runtime_dir: Path | None = None,
    spool: Path | None = None,
    mounts: Sequence[Mount] = (),
    sources: Mapping[str, int] | None = None,
    tmp_bytes: int | None = None,
    data: Mapping[str, int] | None = None,
    filter_fd: int | None = None,
    info_fd: int | None = None,
    status_fd: int | None = None,
) -> list[str]:
    """The whole argv. `data` maps files inside to descriptors of their content.

    `sources` maps the targets of mounts to descriptors of their sources, `filter_fd` is one of the
    filter of system calls; bwrap closes all of them.

    `--die-with-parent` is not used: the container must outlive a killed server. The environment is
    set by the caller's `exec`, since every process can read a command line.
    """
    argv = [sandbox.bwrap, *_namespaces(network, root=sandbox.root)]
    if filter_fd is not None:
        argv += ["--seccomp", str(filter_fd)]
    if info_fd is not None:
        argv += ["--info-fd", str(info_fd)]
    if status_fd is not None:
        argv += ["--json-status-fd", str(status_fd)]
    prefix = [] if sandbox.python_prefix is None else [str(sandbox.python_prefix)]
    targets = [mount.target for mount in mounts]
    given = [layout.ZIPAPP, layout.SPOOL, layout.AGENT_HOME, *prefix, *targets, *(data or {})]
    argv += _folders([*given, *(path for path in _tried() if Path(path).exists())])
    argv += _system()
    for folder in prefix:
        argv += ["--ro-bind", folder, folder]
    for target, fd in (data or {}).items():
        argv += ["--perms", "0444", "--ro-bind-data", str(fd), target]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += _tmpfs("/tmp", "1777", tmp_bytes, sizes=sandbox.sizes)  # noqa: S108
    argv += _tmpfs("/dev/shm", "1777", tmp_bytes, sizes=sandbox.sizes)  # noqa: S108
    argv += _tmpfs("/run", "0755", 16 << 20, sizes=sandbox.sizes)
    argv += ["--symlink", "../tmp", "/var/tmp"]  # noqa: S108
    argv += ["--perms", "0755", "--dir", layout.AGENT_HOME]
    argv += ["--ro-bind", str(sandbox.zipapp), layout.ZIPAPP]
    argv += ["--ro-bind", str(sandbox.wrappers), layout.BIN]
    if runtime_dir is not None:
        argv += ["--bind", str(runtime_dir), "/mcp"]
    if spool is not None:
        argv += ["--bind", str(spool), layout.SPOOL]
    argv += _binds(mounts, sources or {})
    # Last: everything not bound writable is read-only, the root of the sandbox included.
    argv += ["--remount-ro", "/", "--chdir", "/"]
    return [*argv, "--", *command]


def _namespaces(network: str, *, root: bool) -> list[str]:
    argv = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--new-session", "--as-pid-1", "--hostname", "oubliette"]
    if network != "host":
        argv += ["--unshare-net"]
    argv += ["--cap-drop", "ALL"]
    if not root:
        return [*argv, "--unshare-user"]
    for capability in _ROOT_CAPABILITIES:
        argv += ["--cap-add", capability]
    return argv


def _binds(mounts: Sequence[Mount], sources: Mapping[str, int]) -> list[str]:
    argv: list[str] = []
    # A mount below another one's target must come after it.
    for mount in sorted(mounts, key=lambda item: item.target.rstrip("/").count("/")):
        option = "--ro-bind" if mount.read_only else "--bind"
        fd = sources.get(mount.target)
        if fd is None:
            argv += [option, str(mount.source), mount.target]
        else:
            argv += [f"{option}-fd", str(fd), mount.target]
    return argv


def _folders(targets: list[str]) -> list[str]:
    """Make the parents of the targets passable; bwrap's own mode for them is 0700."""
    parents = {PurePosixPath("/etc")}
    for target in map(PurePosixPath, targets):
        # Below another mount, folders belong to that mount's source.
        if not any(str(parent) in {*targets, *_GIVEN} for parent in target.parents):
            parents.update(target.parents)
    argv: list[str] = []
    for parent in sorted(parents - {PurePosixPath("/")}):
        argv += ["--perms", "0755", "--dir", str(parent)]
    return argv


def _tmpfs(target: str, mode: str, size: int | None, *, sizes: bool) -> list[str]:
    sized = ["--size", str(size)] if size is not None and sizes else []
    return ["--perms", mode, *sized, "--tmpfs", target]


def _system() -> list[str]:
    argv = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), str(path)]  # noqa: PTH115 -- as it is written
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    for path in _tried():
        argv += ["--ro-bind-try", path, path]
    return argv


def _tried() -> list[str]:
    """The paths that are bound if the machine has them."""
    return ["/nix/store", *(f"/etc/{name}" for name in _ETC)]


def passwd(uid: int) -> bytes:
    """Return an `/etc/passwd` with root and the agent; the machine's other users are left out."""
    lines = [
        "root:x:0:0:root:/root:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    if uid not in {0, 65534}:
        lines.append(f"agent:x:{uid}:{uid}:agent:{layout.AGENT_HOME}:/bin/sh")
    return ("\n".join(lines) + "\n").encode()


def group(gid: int) -> bytes:
    lines = ["root:x:0:", "nogroup:x:65534:"]
    if gid not in {0, 65534}:
        lines.append(f"agent:x:{gid}:")
    return ("\n".join(lines) + "\n").encode()
