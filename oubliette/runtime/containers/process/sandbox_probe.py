"""Probe of the sandbox before it is used: the real argv, with a program that prints hello.

The presence of bubblewrap does not show that it works: user namespaces may be forbidden by a
sysctl, by AppArmor (Ubuntu 24.04) or by the container that we run in ourselves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from oubliette.runtime.containers import host_paths, layout
from oubliette.runtime.containers.process import bubblewrap, syscall_filter

_WAYS: Final = (("none", True), ("none", False), ("host", True), ("host", False))
"""Networks, each with and without a filter of system calls, the closest first."""
PROBE_TIMEOUT: Final = 15.0  # seconds
OLDEST_PYTHON: Final = (3, 9)
_SYSTEM_PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
_HELLO: Final = "import sys, json, hmac, selectors; print('hello', *sys.version_info[:2])"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a probe."""

    ok: bool
    version: str | None = None
    python: str | None = None
    """The interpreter inside."""
    python_prefix: Path | None = None
    network_none: bool = False
    sizes: bool = True
    bind_fd: bool = False
    filtered: bool = False
    """System calls are filtered."""
    bwrap: str = "bwrap"
    reason: str | None = None
    remedy: str | None = None


_INSTALL: Final = (
    "install bubblewrap (apt install bubblewrap, dnf install bubblewrap), or set process.sandbox ="
    ' "best-effort" to run agents without any isolation'
)
_HOME: Final = "choose another home with --home or OUBLIETTE_HOME, such as /var/lib/oubliette"
_RUNTIME_DIR: Final = "set containers.runtime_dir to a folder that everybody may pass, such as /run"
_NAMESPACES: Final = (
    "user namespaces are forbidden here; on Ubuntu give bwrap an AppArmor profile or set sysctl"
    " kernel.apparmor_restrict_unprivileged_userns=0, in Docker use --privileged or"
    " --security-opt seccomp=unconfined, or run the server as root; or set process.sandbox ="
    ' "best-effort" to run agents without any isolation'
)


def _run(
    argv: list[str], timeout: float = PROBE_TIMEOUT, inherited: tuple[int, ...] = ()
) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": layout.PATH, "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=inherited,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {timeout:g} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def _pythons() -> list[tuple[str, Path | None]]:
    """Return interpreters to try inside, each with the prefix that must be bound for it."""
    found: list[tuple[str, Path | None]] = [
        (path, None) for path in _SYSTEM_PYTHONS if os.access(path, os.X_OK)
    ]
    prefix = Path(sys.base_prefix)
    own = prefix / "bin" / "python3"
    if not prefix.is_relative_to("/usr") and own.exists():
        found.append((str(own), prefix))
    return found


def _in_the_way(place: Path, uid: int, home: Path | None) -> list[Path]:
    """Return folders above `place` that user `uid` may not pass and the server may not change."""
    return [
        folder
        for folder in host_paths.closed_folders(place.resolve().parent, uid)
        if os.path.lexists(folder) and (home is None or not folder.is_relative_to(home.resolve()))
    ]


def _remedy(said: str) -> str:
    """Return what to do about a program that does not even show its version."""
    if os.strerror(errno.EMFILE) in said:
        return "raise the limit of open files (ulimit -n)"
    if not os.path.lexists("/proc/self"):
        return "mount /proc, which the sandbox needs"
    return _INSTALL


def probe_bubblewrap(folder: Path, bwrap: str | None = None) -> Probe:
    """Run hello in the real sandbox. Blocks up to `PROBE_TIMEOUT`; `folder` is temporary."""
    path = bwrap or shutil.which("bwrap")
    if path is None:
        return Probe(ok=False, reason="bubblewrap (bwrap) is not installed", remedy=_INSTALL)
    code, version = _run([path, "--version"])
    if code:
        return Probe(ok=False, reason=f"{path} does not run: {version}", remedy=_remedy(version))
    code, usage = _run([path, "--help"])
    if code:
        return Probe(ok=False, reason=f"{path} does not run: {usage}", remedy=_remedy(usage))
    if any(option not in usage for option in ("--as-pid-1", "--perms", "--json-status-fd")):
        return Probe(
            ok=False,
            version=version,
            reason=f"{version} is too old, 0.5 or later is needed",
            remedy=_INSTALL,
        )
    failure = "no Python 3.9 or later was found below /usr or beside the server"
    for python, prefix in _pythons():
        sandbox = bubblewrap.Sandbox(
            bwrap=path,
            root=os.geteuid() == 0,
            python_prefix=prefix,
            zipapp=Path("/dev/null"),
            wrappers=folder,
            sizes="--size" in usage,
        )
        for network, filtered in _WAYS:
            code, text = _tried(sandbox, python, network, filtered=filtered)
            if code == 0 and _is_hello(text):
                return Probe(
                    ok=True,
                    version=version,
                    python=python,
                    python_prefix=prefix,
                    network_none=network == "none",
                    sizes=sandbox.sizes,
                    bind_fd="--bind-fd" in usage and "--ro-bind-fd" in usage,
                    filtered=filtered,
                    bwrap=path,
                )
            failure = f"{python} in {version}: exit {code}: {text[-300:]}"
    remedy = _NAMESPACES if "amespace" in failure or "ermission" in failure else _INSTALL
    return Probe(ok=False, version=version, reason=failure, remedy=remedy)


def _tried(
    sandbox: bubblewrap.Sandbox, python: str, network: str, *, filtered: bool
) -> tuple[int, str]:
    """Run hello in the sandbox, and in the filter of system calls."""
    program = syscall_filter.program() if filtered else b""
    if program is None:
        return 127, "the system calls of this machine are not known"
    with contextlib.ExitStack() as stack:
        filter_fd = None
        if filtered:
            filter_fd = os.memfd_create("filter")
            stack.callback(os.close, filter_fd)
            os.write(filter_fd, program)
            os.lseek(filter_fd, 0, os.SEEK_SET)
        command = [python, "-I", "-c", _HELLO]
        argv = bubblewrap.arguments(
            sandbox, command=command, network=network, tmp_bytes=1 << 20, filter_fd=filter_fd
        )
        return _run(argv, inherited=() if filter_fd is None else (filter_fd,))


def _is_hello(text: str) -> bool:
    words = text.split()
    with contextlib.suppress(ValueError):
        return words[:1] == ["hello"] and tuple(map(int, words[1:3])) >= OLDEST_PYTHON
    return False


def probe_best_effort(uid: int | None, *, base: Path, home: Path | None) -> Probe:
    """Find an interpreter that the agents' user may run, and check its access to their files.

    `uid`: `unsandboxed.stranger`. The folders from `home` on, and `base`, are opened for it when
    they are needed; the server may not change those above them.
    """
    if uid is not None:
        for place, remedy in ((home, _HOME), (base, _RUNTIME_DIR)):
            closed = [] if place is None else _in_the_way(place, uid, home)
            if closed:
                return Probe(
                    ok=False,
                    reason=f"without a sandbox agents run as users of their own, and these may not"
                    f" pass {closed[0]} to reach {place}",
                    remedy=f"{remedy}; or chmod o+x {closed[0]}; or install bubblewrap and set"
                    ' process.sandbox = "bubblewrap"',
                )
    own = Path(sys.base_prefix) / "bin" / "python3"
    for python in (str(own), *_SYSTEM_PYTHONS):
        if not os.access(python, os.X_OK):
            continue
        if uid is not None and host_paths.closed_folders(Path(python).parent, uid):
            continue
        code, text = _run([python, "-I", "-c", _HELLO])
        if code == 0 and _is_hello(text):
            return Probe(ok=True, version="best-effort", python=python)
    return Probe(
        ok=False,
        reason="there is no Python 3.9 or later that the agents' user may run",
        remedy="install python3 from the system's packages",
    )
