"""What a test may need of the machine, and how to find out.

`@pytest.mark.requires("docker")` skips a test where the probe of that name says why it cannot
run. `OUBLIETTE_REQUIRE=docker,podman` (what `make test REQUIRE=...` sets) makes it fail instead.
`OUBLIETTE_WITHOUT=docker` (`make test WITHOUT=...`) skips it even where it could run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "OUBLIETTE_REQUIRE"
LEFT_OUT = "OUBLIETTE_WITHOUT"


def _names(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()}


def demanded() -> set[str]:
    """The requirements that must not be missing."""
    return _names(VARIABLE)


@functools.cache
def missing(name: str) -> str | None:
    """Why the requirement is not met; None if it is. Probed once."""
    return f"left out by {LEFT_OUT}" if name in _names(LEFT_OUT) else PROBES[name]()


def _runs(program: str, *arguments: str) -> str | None:
    path = shutil.which(program)
    if path is None:
        return f"{program} is not on PATH"
    try:
        done = subprocess.run([path, *arguments], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return f"{program} {' '.join(arguments)}: {said[-1] if said else done.returncode}"


def _module(name: str) -> str | None:
    """Whether a library is there that no part of ours needs."""
    return None if importlib.util.find_spec(name) else f"{name} is not installed"


def _bubblewrap() -> str | None:
    arguments = "--ro-bind / / --dev /dev --proc /proc --unshare-user --unshare-pid -- true"
    return _runs("bwrap", *arguments.split())


def _engine(flavour: str) -> str | None:
    """Whether the engine answers, at the address where our runtime looks for it."""
    from oubliette.errors import OublietteError
    from oubliette.runtime.containers.docker.client import Engine

    try:
        Engine("podman" if flavour == "podman" else "docker").connect(timeout=20).close()
    except OublietteError as error:
        return str(error)
    return None


def _apple_standin() -> str | None:
    if os.geteuid() != 0:
        return "the stand-in looks into containers from outside, as root alone may"
    return missing("podman") if missing("docker") else None


AGENT_PROGRAMS = {
    "opencode": ("OUBLIETTE_OPENCODE", "opencode-ai"),
    "droid": ("OUBLIETTE_DROID", "droid"),
}
"""Program → variable that may hold its path, and the npm package that has it."""


@functools.cache
def program(name: str) -> str:
    """Path of an agent's program: as the variable says, on PATH, or where `.ci/agents` put it."""
    variable, _ = AGENT_PROGRAMS[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    kept = cache / "oubliette-tests" / "agents" / "node_modules" / ".bin" / name
    found = os.environ.get(variable) or shutil.which(name) or (str(kept) if kept.exists() else name)
    return str(Path(found).resolve()) if "/" in found else found


def _agent(name: str) -> str | None:
    reason = _runs(program(name), "--version")
    if reason is None:
        return None
    variable, package = AGENT_PROGRAMS[name]
    return f"{reason} (npm install -g {package}, or set {variable})"


@functools.cache
def python39() -> str | None:
    """A Python 3.9, the oldest that must run `incontainer`: on PATH, or one of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    try:
        found = sorted(str(path) for path in root.glob("versions/3.9.*/bin/python3.9"))
    except PermissionError:  # that of another user
        found = []
    for program in ("python3.9", *found):
        if not _runs(program, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 9))"):
            return shutil.which(program)
    return None


def _node() -> str | None:
    return _runs("node", "-e", "process.exit(+(parseInt(process.versions.node) < 18))")


def _python39() -> str | None:
    return None if python39() else "no python3.9 on PATH or among pyenv's versions"


def _root() -> str | None:
    return None if os.geteuid() == 0 else "other users, mounts and daemons are root's"


def _pasta() -> str | None:
    """Whether it is there, may make a network, and has a route to copy: older ones need that."""
    from oubliette.runtime.containers.process import own_network

    rows = Path("/proc/net/route").read_text(encoding="ascii").splitlines()
    leads_out = any(row.split()[1] == "00000000" for row in rows)
    return own_network.why_not() or (None if leads_out else "no route leads out of this machine")


def _pykka_sdist() -> str | None:
    from tests.unit.kit.pykka_sdist import fetch

    try:
        fetch()
    except OSError as error:
        return str(error)
    return None


def _postgres() -> str | None:
    from tests.postgres import missing

    return missing()


PROBES: dict[str, Callable[[], str | None]] = {
    "apple-standin": _apple_standin,
    "bubblewrap": _bubblewrap,
    "docker": functools.partial(_engine, "docker"),
    "droid": functools.partial(_agent, "droid"),
    "git-lfs": functools.partial(_runs, "git-lfs", "version"),
    "kubernetes-schemas": functools.partial(_module, "kubernetes_validate"),
    "node": _node,
    "opencode": functools.partial(_agent, "opencode"),
    "podman": functools.partial(_engine, "podman"),
    "postgres": _postgres,
    "pasta": _pasta,
    "pykka-sdist": _pykka_sdist,
    "python3.9": _python39,
    "ray": functools.partial(_module, "ray"),
    "root": _root,
    "trio": functools.partial(_module, "trio"),
    "uvloop": functools.partial(_module, "uvloop"),
}

_ENGINES = "as root .ci/engines make test-all"
_AGENTS = ".ci/agents"
REMEDIES: dict[str, str] = {
    "apple-standin": _ENGINES,
    "bubblewrap": "apt-get install bubblewrap",
    "docker": _ENGINES,
    "droid": _AGENTS,
    "git-lfs": "apt-get install git-lfs",
    "kubernetes-schemas": "pip install kubernetes-validate",
    "node": "apt-get install nodejs (18 or later)",
    "opencode": _AGENTS,
    "pasta": "apt-get install passt, and access to /dev/net/tun",
    "podman": _ENGINES,
    "postgres": "apt-get install postgresql, pip install 'oubliette-agents[postgres]'",
    "pykka-sdist": "a package index that pip reaches",
    "python3.9": "pyenv install 3.9",
    "ray": "pip install 'ray>=2.60,<3'",
    "root": "to be root",
    "trio": "pip install trio",
    "uvloop": "pip install uvloop",
}
"""How to have what is missing."""
