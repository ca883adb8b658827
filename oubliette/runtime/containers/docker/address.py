"""Address of an engine: as configured, or as its own command line would find it.

The order is that of the docker CLI (verified against 28.2): `DOCKER_HOST`, then `DOCKER_CONTEXT`,
then the context of `~/.docker/config.json`, then the usual sockets. The SDK gets the result, so
that it and our own few requests use the same engine with the same certificates.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from oubliette.runtime.containers.engine_errors import EngineMissing

Flavour = Literal["docker", "podman"]
FLAVOURS: Final[tuple[Flavour, ...]] = get_args(Flavour)

PLAIN_PORT: Final = 2375
TLS_PORT: Final = 2376

_ENDPOINT: Final = "docker"  # the only kind of endpoint that a context's engine has
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificate files for an engine; None for a missing file."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """An SSL context, for our own requests.

        Raises:
            EngineMissing: a file is missing or not a certificate.
        """
        try:
            made = ssl.create_default_context(cafile=self.ca if self.verify else None)
            if not self.verify:
                made.check_hostname = False
                made.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                made.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise EngineMissing(
                f"the engine's certificates cannot be read: {error}",
                hint="look into DOCKER_CERT_PATH, or export the context again",
            ) from error
        return made


class EngineAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of one engine."""

    url: str
    """`unix:///…` or `tcp://host:port`."""
    tls: Tls | None = None

    @property
    def path(self) -> str | None:
        """Path of the unix socket, if it is one."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else None

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port, if it is no unix socket."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or (TLS_PORT if self.tls else PLAIN_PORT)

    @property
    def loopback(self) -> bool:
        """Whether its name is one of this machine's own."""
        return self.path is not None or self.host_port[0] in _LOOPBACK


def find(flavour: Flavour, configured: str | None = None) -> EngineAddress:
    """The address of the engine that this server uses.

    Raises:
        EngineMissing: the named context does not exist, or the address is of an unsupported
            kind; the hint has a remedy.
    """
    if configured:
        return parse(configured, _tls_of_environment(), source=f"{flavour}.host")
    if flavour == "podman":
        named = os.environ.get("CONTAINER_HOST")
        return parse(named, None, source="CONTAINER_HOST") if named else _usual(_podman_sockets())
    host = os.environ.get("DOCKER_HOST")
    if host:
        return parse(host, _tls_of_environment(), source="DOCKER_HOST")
    context = os.environ.get("DOCKER_CONTEXT") or _current_context()
    if context and context != "default":
        return _of_context(context)
    return _usual(_docker_sockets())


def parse(text: str, tls: Tls | None, *, source: str) -> EngineAddress:
    """Parse an address as users write it.

    Raises:
        EngineMissing: the address is of an unsupported kind.
    """
    if text.startswith("/"):
        text = f"unix://{text}"
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    if scheme == "unix" and rest.startswith("/"):
        return EngineAddress(url=text)
    if scheme == "ssh":
        raise EngineMissing(
            f"{source}: {text} is on another machine, where this server's folders are not",
            hint="run the server there; or, if that machine has these folders at the same paths,"
            " forward its socket (ssh -L /tmp/docker.sock:/var/run/docker.sock HOST) and set"
            " docker.sockets = bridge",
        )
    if scheme not in {"tcp", "http", "https"}:
        raise EngineMissing(
            f"{source}: {text} is no address of an engine", hint="unix:///path or tcp://host:port"
        )
    if scheme == "https" and tls is None:
        tls = Tls()
    try:
        parts = urlsplit(f"tcp://{rest}")
        port = parts.port or (TLS_PORT if tls else PLAIN_PORT)
    except ValueError as error:
        raise EngineMissing(f"{source}: {text}: {error}", hint="tcp://host:port") from error
    host = parts.hostname or "127.0.0.1"
    return EngineAddress(url=f"tcp://{f'[{host}]' if ':' in host else host}:{port}", tls=tls)


def _tls_of_environment() -> Tls | None:
    verify = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    if not verify and not os.environ.get("DOCKER_TLS"):
        return None
    folder = os.environ.get("DOCKER_CERT_PATH")
    return _tls(Path(folder) if folder else _config_folder(), verify=verify)


def _tls(folder: Path, *, verify: bool) -> Tls:
    ca, cert, key = (
        path if path.exists() else None
        for path in (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    )
    if (cert is None) != (key is None):
        raise EngineMissing(
            f"{folder} has one of cert.pem and key.pem without the other",
            hint="both are needed, or neither",
        )
    return Tls(ca=ca, cert=cert, key=key, verify=verify)


# ---------------------------------------------------------------- contexts of the docker CLI


def _config_folder() -> Path:
    named = os.environ.get("DOCKER_CONFIG")
    return Path(named) if named else _own_home() / ".docker"


class _Config(msgspec.Struct, frozen=True):
    current: str | None = msgspec.field(name="currentContext", default=None)


_config_decoder = msgspec.json.Decoder(_Config)  # made before threads start: see store/codec.py


def _current_context() -> str | None:
    try:
        raw = (_config_folder() / "config.json").read_bytes()
        return _config_decoder.decode(raw).current
    except (OSError, msgspec.MsgspecError):
        return None


class _Endpoint(msgspec.Struct, frozen=True):
    host: str = msgspec.field(name="Host", default="")
    skip_verify: bool = msgspec.field(name="SkipTLSVerify", default=False)


class _Meta(msgspec.Struct, frozen=True):
    endpoints: dict[str, _Endpoint] = msgspec.field(name="Endpoints")


_meta_decoder = msgspec.json.Decoder(_Meta)


def _of_context(name: str) -> EngineAddress:
    digest = hashlib.sha256(name.encode()).hexdigest()
    contexts = _config_folder() / "contexts"
    try:
        raw = (contexts / "meta" / digest / "meta.json").read_bytes()
        endpoint = _meta_decoder.decode(raw).endpoints[_ENDPOINT]
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise EngineMissing(
            f"the docker context {name!r} cannot be used: {error}",
            hint="docker context ls shows those that are there; docker context use, or unset"
            " DOCKER_CONTEXT, or set docker.host",
        ) from error
    folder = contexts / "tls" / digest / _ENDPOINT
    tls = _tls(folder, verify=not endpoint.skip_verify) if folder.is_dir() else None
    return parse(endpoint.host, tls, source=f"the docker context {name!r}")


# ---------------------------------------------------------------- the usual sockets


def _docker_sockets() -> list[Path]:
    return [
        Path("/var/run/docker.sock"),
        _own_runtime() / "docker.sock",  # rootless
        _own_home() / ".docker" / "run" / "docker.sock",  # Docker Desktop
    ]


def _podman_sockets() -> list[Path]:
    own = _own_runtime() / "podman" / "podman.sock"
    return [Path("/run/podman/podman.sock"), own] if os.geteuid() == 0 else [own]


def _own_home() -> Path:
    """Return this user's folder; a user without one has no files of docker's either."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _own_runtime() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")


def _usual(paths: list[Path]) -> EngineAddress:
    return EngineAddress(url=f"unix://{next((path for path in paths if path.exists()), paths[0])}")
