"""An engine that speaks the Docker API: where it is, calls in threads, errors that explain.

The SDK blocks, so its calls run in worker threads, at most 16 at once: its connection pool breaks
above about 25 requests in flight (docker-py closes the least recently used of 25 pools, even one
in use). Nothing here knows what a container is to us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import anyio
import anyio.to_thread
import msgspec

from oubliette.errors import NotFound, OublietteError, RuntimeFailure, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_AT_ONCE: Final = 16
CALL_SECONDS: Final = 60.0  # for one answer of the engine
PING_SECONDS: Final = 5.0

Flavour = Literal["docker", "podman"]
_Result = TypeVar("_Result")

_INSTALL: Final[dict[str, str]] = {
    "docker": "start it (systemctl start docker), or install it (apt install docker.io), or set"
    " docker.host",
    "podman": "start its service (systemctl enable --now podman.socket, or podman system service"
    " --time=0), or set podman.host",
}


class EngineMissing(Unavailable):
    """Nobody answers where the engine should be, or we may not talk to it."""

    code = "engine_missing"


class Refused(RuntimeFailure):
    """The engine answered, and said no."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int = 500, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Missing(NotFound):
    """The engine does not know this container, image or network."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine says about itself."""

    version: str
    api_version: str
    system: str
    runtimes: frozenset[str]
    """OCI runtimes by name; `runc`, `crun`, `runsc`."""
    rootless: bool
    local: bool
    """It runs on this machine: its processes have pids here, unix sockets cross a bind mount."""
    cgroups: str
    memory_limit: bool
    pids_limit: bool


def host_of(flavour: Flavour, configured: str | None = None) -> str | None:
    """The engine's address: configured, from the environment, or a usual socket that is there.

    None for docker means that a context of its command line names it; the SDK reads those.
    """
    if configured:
        return configured
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if flavour == "docker":
        if os.environ.get("DOCKER_HOST") or _docker_context():
            return os.environ.get("DOCKER_HOST")
        usual = Path("/var/run/docker.sock")
        rootless = Path(own) / "docker.sock"
        return f"unix://{rootless if not usual.exists() and rootless.exists() else usual}"
    named = os.environ.get("CONTAINER_HOST")
    if named:
        return named
    paths = [Path(own) / "podman" / "podman.sock"]
    if os.geteuid() == 0:
        paths.insert(0, Path("/run/podman/podman.sock"))
    return f"unix://{next((path for path in paths if path.exists()), paths[0])}"


def _docker_context() -> bool:
    """Whether a context other than the usual one is chosen."""
    folder = os.environ.get("DOCKER_CONFIG") or "~/.docker"
    chosen = os.environ.get("DOCKER_CONTEXT")
    if not chosen:
        try:
            config = json.loads((Path(folder).expanduser() / "config.json").read_bytes())
            chosen = config.get("currentContext")
        except (OSError, ValueError, AttributeError):
            return False
    return chosen not in {None, "", "default"}


def sdk() -> Any:
    """The docker SDK.

    Raises:
        EngineMissing: it is not installed.
    """
    try:
        import docker
    except ImportError as error:
        raise EngineMissing(
            "the docker SDK for Python is not installed", hint="pip install 'oubliette[docker]'"
        ) from error
    return docker


class Engine:
    """Calls to one engine. Made on first use; may be used from one event loop only."""

    def __init__(self, flavour: Flavour, host: str | None = None) -> None:
        self.flavour: Flavour = flavour
        self._configured = host
        self._api: Any = None
        self._facts: Facts | None = None
        self._limiter = anyio.CapacityLimiter(CALLS_AT_ONCE)

    @property
    def where(self) -> str:
        """The address, to be shown."""
        if self._api is not None:
            return str(self._api.base_url).replace("http+docker://localhost", "the local socket")
        return host_of(self.flavour, self._configured) or "its usual place"

    def connect(self, *, timeout: float = CALL_SECONDS) -> Any:
        """A new `docker.APIClient`. Blocks.

        Raises:
            EngineMissing: there is no engine; the hint says what to do.
        """
        docker = sdk()
        host = host_of(self.flavour, self._configured)
        try:
            if host is not None and host.startswith("unix://"):
                _knock(host.removeprefix("unix://"))
                made = docker.APIClient(base_url=host, version="auto", timeout=timeout)
            elif host is None or host == os.environ.get("DOCKER_HOST"):  # with its TLS settings
                made = docker.from_env(timeout=timeout, version="auto", use_ssh_client=True).api
            else:
                made = docker.APIClient(base_url=host, version="auto", timeout=timeout)
        except Exception as error:
            raise self._explained("connect", error) from error
        return made

    async def call(
        self, step: str, act: Callable[..., _Result], *arguments: Any, **named: Any
    ) -> _Result:
        """Run `act(api, …)` in a thread; `step` names it in errors.

        A cancelled call is waited for: the engine does it anyway, and what undoes it must come
        after it.

        Raises:
            EngineMissing, Missing, Refused: what the engine said, or that it said nothing.
        """
        run = anyio.to_thread.run_sync(
            partial(self._blocking, step, act, arguments, named), limiter=self._limiter
        )
        task = asyncio.ensure_future(run)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # seen; there is nobody to tell
            raise

    def _blocking(
        self,
        step: str,
        act: Callable[..., _Result],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> _Result:
        try:
            if self._api is None:
                self._api = self.connect()
            return act(self._api, *arguments, **named)
        except OublietteError:
            raise
        except Exception as error:
            raise self._explained(step, error) from error

    def _explained(self, step: str, error: Exception) -> OublietteError:
        """The error of ours that says what this one of the SDK or of a library below means."""
        import requests

        docker: Any = sdk()
        if isinstance(error, docker.errors.APIError):
            any_error: Any = error
            status = int(any_error.status_code or 500)
            said = str(any_error.explanation or any_error).strip()
            # podman says so with 500 while it removes one
            if status == 404 or "no such container" in said:
                return Missing(f"{self.flavour}: {step}: {said}")
            return Refused(f"{self.flavour}: {step}: {said}", status=status)
        causes = _causes(error)
        for cause in causes:
            if isinstance(cause, PermissionError):
                return EngineMissing(
                    f"this user may not talk to {self.flavour} at {self.where}",
                    hint="add the user to the group docker and log in again, or use podman",
                )
        if isinstance(error, (requests.exceptions.ReadTimeout, TimeoutError)):
            return RuntimeFailure(
                f"{self.flavour}: {step}: no answer in time", hint=f"is {self.flavour} overloaded?"
            )
        away = (requests.exceptions.RequestException, docker.errors.DockerException, OSError)
        if isinstance(error, away):
            last = causes[-1]
            return EngineMissing(
                f"{self.flavour} does not answer at {self.where}:"
                f" {getattr(last, 'strerror', None) or last}",
                hint=_INSTALL[self.flavour],
            )
        return RuntimeFailure(f"{self.flavour}: {step}: {error!r}")

    async def socket_path(self) -> str:
        """The engine's unix socket.

        Raises:
            EngineMissing: it does not answer, or is reached in another way.
        """
        return await self.call("find its socket", self._socket_path)

    def _socket_path(self, api: Any) -> str:
        adapter = api.get_adapter(api.base_url)
        path = getattr(adapter, "socket_path", None)
        if path is None:
            raise EngineMissing(f"{self.flavour} at {self.where} has no unix socket")
        return str(path)

    async def facts(self) -> Facts:
        """What the engine says about itself, asked once.

        Raises:
            EngineMissing: it does not answer.
        """
        if self._facts is None:
            version, info = await self.call("ask for its version", _ask)
            self._facts = _read(version, info, base_url=str(self._api.base_url))
        return self._facts

    async def aclose(self) -> None:
        """Close the connections."""
        api, self._api = self._api, None
        if api is not None:
            await asyncio.to_thread(api.close)


def _knock(path: str) -> None:
    """Connect and leave: the SDK leaves a socket open when nobody answers."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as link:
        link.settimeout(PING_SECONDS)
        link.connect(path)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what lies beneath it, urllib3's and docker's wrappings included."""
    found: list[BaseException] = []
    todo: list[Any] = [error]
    while todo:
        one = todo.pop()
        if not isinstance(one, BaseException) or one in found:
            continue
        found.append(one)
        todo += [one.__context__, one.__cause__, *one.args]
        todo.append(getattr(one, "reason", None))
    os_errors = [one for one in found if isinstance(one, OSError) and one.errno]
    return [one for one in found if one not in os_errors] + os_errors


def _ask(api: Any) -> tuple[Any, Any]:
    return api.version(), api.info()


def _read(version: dict[str, Any], info: dict[str, Any], *, base_url: str) -> Facts:
    system = str(info.get("OperatingSystem") or "")
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    unix = base_url.startswith(("http+docker", "http+unix", "unix"))
    local = unix and os.uname().sysname == "Linux" and "Docker Desktop" not in system
    runtimes: dict[str, dict[str, Any]] = info.get("Runtimes") or {}
    # podman names those that it has heard of, installed or not
    there = {name for name, about in runtimes.items() if not local or _installed(name, about)}
    return Facts(
        version=str(version.get("Version") or "?"),
        api_version=str(version.get("ApiVersion") or "?"),
        system=system,
        runtimes=frozenset(there),
        rootless=any("rootless" in option for option in options),
        local=local,
        cgroups=str(info.get("CgroupVersion") or "1"),
        memory_limit=bool(info.get("MemoryLimit", True)),
        pids_limit=bool(info.get("PidsLimit", True)),
    )


def _installed(name: str, about: dict[str, Any]) -> bool:
    path = str(about.get("path") or name)
    # An engine's own runtimes (`io.containerd.runc.v2`) are no programs on PATH.
    return not path.startswith("/") or os.access(path, os.X_OK) or bool(shutil.which(name))
