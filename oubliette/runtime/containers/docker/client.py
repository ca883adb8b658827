"""Client of an engine with the Docker API: its address, calls in threads, explained errors.

The SDK blocks, so its calls run in worker threads, at most 16 at once: its connection pool breaks
above about 25 requests in flight (docker-py closes the least recently used of 25 pools, even one in
use). Nothing here depends on our use of containers.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from oubliette.errors import OublietteError, RuntimeFailure
from oubliette.runtime.containers.docker import address as docker_address
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound, EngineRefused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from oubliette.runtime.containers.docker.address import EngineAddress, Flavour

CALLS_AT_ONCE: Final = 16
CALL_SECONDS: Final = 60.0  # for one answer of the engine
PING_SECONDS: Final = 5.0

_Result = TypeVar("_Result")

_INSTALL: Final[dict[str, str]] = {
    "docker": "start it (systemctl start docker), or install it (apt install docker.io), or set"
    " docker.host",
    "podman": "start its service (systemctl enable --now podman.socket, or podman system service"
    " --time=0), or set podman.host",
}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the engine reports of itself."""

    version: str
    api_version: str
    system: str
    runtimes: frozenset[str]
    """OCI runtimes by name; `runc`, `crun`, `runsc`."""
    rootless: bool
    local: bool
    """It runs on this very kernel: its processes have pids here, it sees this machine's folders."""


def sdk() -> Any:
    """The docker SDK.

    Raises:
        EngineMissing: the SDK is not installed.
    """
    try:
        import docker
    except ImportError as error:
        raise EngineMissing(
            "the docker SDK for Python cannot be imported",
            hint=f"{sys.executable} -m pip install 'docker>=7.1,<8'",
        ) from error
    return docker


class Engine:
    """Client of one engine. Created on first use; may be used from one event loop only."""

    def __init__(self, flavour: Flavour, host: str | None = None) -> None:
        self.flavour: Flavour = flavour
        self._configured = host
        self._api: Any = None
        self._address: EngineAddress | None = None
        self._tls: ssl.SSLContext | None = None
        self._first = threading.Lock()
        self._facts: Facts | None = None
        self._limiter = anyio.CapacityLimiter(CALLS_AT_ONCE)

    @property
    def where(self) -> str:
        try:
            return self.address.url
        except EngineMissing:
            return "its usual place"

    @property
    def address(self) -> EngineAddress:
        """Address of the engine, looked up at the first use.

        Raises:
            EngineMissing: the address is unknown or of an unsupported kind.
        """
        if self._address is None:
            self._address = docker_address.find(self.flavour, self._configured)
        return self._address

    def connect(self, *, timeout: float = CALL_SECONDS) -> Any:
        """A new `docker.APIClient`. Blocks.

        Raises:
            EngineMissing: no engine answers; the hint has a remedy.
        """
        docker = sdk()
        address = self.address
        try:
            return _client_class(docker)(
                base_url=address.url,
                tls=_sdk_tls(address),
                version="auto",
                timeout=timeout,
                max_pool_size=CALLS_AT_ONCE,
            )
        except Exception as error:
            raise self._explained("connect", error) from error

    async def open(
        self, protocol: Callable[[], asyncio.Protocol], *, timeout: float = PING_SECONDS
    ) -> asyncio.Transport:
        """Open a connection of its own, for the few requests that the SDK cannot make.

        Raises:
            EngineMissing: the address does not listen.
        """
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(timeout):
                if address.path is not None:
                    return (await loop.create_unix_connection(protocol, address.path))[0]
                host, port = address.host_port
                if address.tls is not None and self._tls is None:
                    self._tls = await asyncio.to_thread(address.tls.context)
                made, _ = await loop.create_connection(protocol, host, port, ssl=self._tls)
                _keep_alive(made.get_extra_info("socket"))
                return made
        except OublietteError:
            raise
        except (OSError, TimeoutError) as error:
            raise self._explained("connect", error) from error

    async def version(self) -> str:
        """The version of the API that both sides support, for paths: `v1.41`."""
        return await self.call("ask for its version", _api_version)

    async def call(
        self, step: str, act: Callable[..., _Result], *arguments: Any, **named: Any
    ) -> _Result:
        """Run `act(api, …)` in a thread; `step` names it in errors.

        A cancelled call is awaited: the engine carries it out anyway, and the call that undoes it
        must come after it.

        Raises:
            EngineMissing, EngineNotFound, EngineRefused: the engine failed or did not answer.
        """
        run = anyio.to_thread.run_sync(
            functools.partial(self._blocking, step, act, arguments, named), limiter=self._limiter
        )
        task = asyncio.ensure_future(run)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it
            raise

    def _blocking(
        self,
        step: str,
        act: Callable[..., _Result],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> _Result:
        try:
            with self._first:
                if self._api is None:
                    self._api = self.connect()
                api = self._api
            return act(api, *arguments, **named)
        except OublietteError:
            raise
        except Exception as error:
            raise self._explained(step, error) from error

    def _explained(self, step: str, error: Exception) -> OublietteError:
        """The error that explains this one of the SDK or of a library below."""
        import requests

        docker: Any = sdk()
        if isinstance(error, docker.errors.APIError):
            any_error: Any = error
            status = int(any_error.status_code or 500)
            message = str(any_error.explanation or any_error).strip()
            # podman answers 500 while it removes one
            if status == 404 or "no such container" in message:
                return EngineNotFound(f"{self.flavour}: {step}: {message}")
            return EngineRefused(f"{self.flavour}: {step}: {message}", status=status)
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

    async def facts(self) -> Facts:
        """The facts that the engine reports of itself, queried once.

        Raises:
            EngineMissing: the engine does not answer.
        """
        if self._facts is None:
            version, info = await self.call("ask for its version", _ask)
            self._facts = _read(version, info, self.address)
        return self._facts

    async def aclose(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            await asyncio.to_thread(api.close)


@functools.cache
def _client_class(docker: Any) -> Any:
    """The SDK's client class, made to ignore variables that are meant for the web.

    REQUESTS_CA_BUNDLE would replace the engine's own authority (requests prefers it to that of a
    session), HTTP_PROXY would insert a proxy, and our own requests use neither.
    """
    transport: Any = docker.transport.unixconn

    class SdkConnection(transport.UnixHTTPConnection):
        """Connection of the SDK that closes its socket if there is no answer."""

        def connect(self) -> None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(PING_SECONDS)
                sock.connect(self.unix_socket)
                sock.settimeout(self.timeout)
            except BaseException:
                sock.close()
                raise
            self.sock = sock

    class Adapter(transport.UnixHTTPAdapter):
        """Adapter of the SDK with these connections."""

        def get_connection(self, url: str, proxies: Any = None) -> Any:
            pool: Any = transport.UnixHTTPAdapter.get_connection(self, url, proxies)
            make: Any = SdkConnection
            connect = functools.partial(make, pool.base_url, pool.socket_path, pool.timeout)
            pool._new_conn = connect  # noqa: SLF001 -- urllib3 has no public hook
            return pool

    class SdkClient(docker.APIClient):
        trust_env = property(lambda _: False, lambda _, __: None)

        def mount(self, prefix: str, adapter: Any) -> None:
            if isinstance(adapter, transport.UnixHTTPAdapter):
                adapter = Adapter(
                    adapter.socket_path, adapter.timeout, max_pool_size=adapter.max_pool_size
                )
            docker.APIClient.mount(self, prefix, adapter)

    return SdkClient


def _sdk_tls(address: EngineAddress) -> Any:
    tls = address.tls
    if tls is None:
        return False
    pair = (str(tls.cert), str(tls.key)) if tls.cert is not None else None
    # Without a CA of its own the engine's certificate must be one that the system trusts.
    ca = str(tls.ca) if tls.ca is not None else None
    return sdk().tls.TLSConfig(client_cert=pair, ca_cert=ca, verify=tls.verify)


def _keep_alive(link: socket.socket) -> None:
    """Enable keep-alive, so that the kernel detects a lost machine within a minute."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS has another name for the first one
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _causes(error: BaseException) -> list[BaseException]:
    """Iterate over the error and its causes, urllib3's and docker's wrappings included."""
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


def _api_version(api: Any) -> str:
    return f"v{api.api_version}"


def _ask(api: Any) -> tuple[Any, Any]:
    return api.version(), api.info()


def _read(version: dict[str, Any], info: dict[str, Any], address: EngineAddress) -> Facts:
    system = str(info.get("OperatingSystem") or "")
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    local = _is_local(info, address) and "Docker Desktop" not in system
    runtimes: dict[str, dict[str, Any]] = info.get("Runtimes") or {}
    # podman names all that it supports, installed or not
    there = {name for name, about in runtimes.items() if not local or _installed(name, about)}
    return Facts(
        version=str(version.get("Version") or "?"),
        api_version=str(version.get("ApiVersion") or "?"),
        system=system,
        runtimes=frozenset(there),
        # docker reports it among its security options, podman in a field of its own
        rootless=any("rootless" in option for option in options) or bool(info.get("Rootless")),
        local=local,
    )


def _is_local(info: dict[str, Any], address: EngineAddress) -> bool:
    """Check that the engine's kernel is ours; a socket may lead into a virtual machine, or away."""
    here = os.uname()
    if here.sysname != "Linux" or info.get("KernelVersion", here.release) != here.release:
        return False
    # By TCP: two machines may well run the same kernel, but not with one name on one loopback.
    return address.path is not None or (address.loopback and info.get("Name") == here.nodename)


def _installed(name: str, about: dict[str, Any]) -> bool:
    path = str(about.get("path") or name)
    # An engine's own runtimes (`io.containerd.runc.v2`) are no programs on PATH.
    return not path.startswith("/") or os.access(path, os.X_OK) or bool(shutil.which(name))
