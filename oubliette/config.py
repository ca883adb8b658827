"""Configuration: `<home>/oubliette.toml`, every key also `OUBLIETTE_SECTION__KEY` (DESIGN 13.2)."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME: Final = "oubliette.toml"
_PREFIX: Final = "OUBLIETTE_"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=10_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ServerConfig(_Section):
    """The listener and the process."""

    host: str = "127.0.0.1"
    """Address to bind; loopback unless set."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """0 picks a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers to accept besides loopback names and `host`; `name:*` for any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin headers to accept besides those of loopback."""
    on_stop: Literal["end", "keep"] = "end"
    """What SIGTERM does with running agents."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 4 * 1024 * 1024
    """Largest request body."""
    header_timeout_seconds: Seconds = 10.0
    """Time for a client to send its request head."""


class StoreConfig(_Section):
    """The database."""

    durability: Literal["process", "power"] = "process"
    """`process`: what was acknowledged outlives the process; `power`: the machine too."""


class ProcessConfig(_Section):
    """The process runtime."""

    sandbox: Literal["bubblewrap", "best-effort"] = "bubblewrap"
    """`best-effort`: no isolation at all, a warning at each start."""
    network: Literal["none", "host"] = "host"
    """What the sandbox reaches."""


class ContainersConfig(_Section):
    """Containers of every runtime."""

    runtime: str = "auto"
    """auto or process."""
    idle_stop_seconds: Seconds = 600.0
    """A container without a lease is stopped after this."""
    start_timeout_seconds: Seconds = 60.0
    """From the decision to start to a host that answers."""
    orphan_grace_seconds: Seconds = 600.0
    """A host ends its agents when no server was there for this long."""
    runtime_dir: str | None = None
    """Folder for relay sockets; a short path."""


class AgentsConfig(_Section):
    """Agents of every runtime."""

    default: str = "auto"
    """auto or scripted."""
    start_timeout_seconds: Seconds = 60.0
    """From the start of the process to its first sign of life."""


class SessionsConfig(_Section):
    """Defaults of sessions; frozen into each at its start."""

    idle_timeout_seconds: Seconds = 1800.0
    """Any event counts as activity (seed 003)."""
    max_live_per_project: Count = 10
    """Live top-level sessions (seed 003)."""
    caller_tool_timeout_seconds: Seconds = 60.0
    """Time for a caller to answer (seed 002)."""
    permission_timeout_seconds: Seconds = 60.0
    """Time for a person to allow; denied afterwards."""
    event_buffer: Count = 1000
    """Events of a session kept in memory (seed 003); the log keeps all."""
    max_queued_messages: Count = 100
    """Messages that may wait for a running turn."""


class TreesConfig(_Section):
    """Default limits of a tree of sessions."""

    max_depth: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    max_agents: Count = 50
    max_agents_at_once: Count = 10
    max_cost_usd: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    max_wall_seconds: Seconds = 86_400.0


class CallersConfig(_Section):
    """Limits per principal (DESIGN 4.3)."""

    max_listeners: Count = 16
    max_calls_in_flight: Count = 64
    max_pending_requests: Count = 1000
    max_tools: Count = 128
    max_schema_bytes: Count = 65_536
    stream_grace_seconds: Seconds = 1.0
    """A dropped stream counts as present for this long."""
    poll_grace_seconds: Seconds = 10.0
    """A poller counts as present for this long after its last poll."""
    send_timeout_seconds: Seconds = 5.0
    """A listener that takes nothing for this long is cut."""
    restart_grace_seconds: Seconds = 30.0
    """Time for a caller to come back after the server was restarted."""


class Config(_Section):
    """The whole configuration."""

    server: ServerConfig = ServerConfig()
    store: StoreConfig = StoreConfig()
    process: ProcessConfig = ProcessConfig()
    containers: ContainersConfig = ContainersConfig()
    agents: AgentsConfig = AgentsConfig()
    sessions: SessionsConfig = SessionsConfig()
    trees: TreesConfig = TreesConfig()
    callers: CallersConfig = CallersConfig()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and where each key of it came from."""

    config: Config
    sources: dict[str, str]
    """`section.key` → `default`, the file's path or `environment`."""


def find_home(explicit: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The home: `explicit`, `OUBLIETTE_HOME`, `./.oubliette` if it is there, `~/.oubliette`."""
    if explicit is not None:
        return Path(explicit).expanduser().absolute()
    if chosen := environ.get("OUBLIETTE_HOME"):
        return Path(chosen).expanduser().absolute()
    local = Path.cwd() / ".oubliette"
    return local if local.is_dir() else Path.home() / ".oubliette"


def load(
    home: Path,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Read the file of `home`, the environment, then `overrides` (`section.key` → value).

    Raises:
        ConfigError: unreadable file, unknown key or a value that does not fit; names the path.
    """
    path = home / FILE_NAME
    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if path.exists():
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        for section, keys in tree.items():
            if isinstance(keys, dict):
                sources.update({f"{section}.{key}": str(path) for key in keys})
    known = schema_keys()
    for name, value in environ.items():
        if name.startswith(_PREFIX) and "__" in name:
            key = name[len(_PREFIX) :].lower().replace("__", ".", 1)
            if key not in known:
                raise ConfigError(f"{name}: there is no key {key}", hint="oubliette config schema")
            _put(tree, key, value)
            sources[key] = "environment"
    for key, value in (overrides or {}).items():
        _put(tree, key, value)
        sources[key] = "command line"
    return Loaded(
        config=_convert(tree, path, sources),
        sources={key: sources.get(key, "default") for key in known},
    )


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    section, _, name = key.partition(".")
    branch: Any = tree.setdefault(section, {})
    if not isinstance(branch, dict):
        raise ConfigError(f"{section}: must be a table")
    branch[name] = value


def _convert(tree: dict[str, Any], path: Path, sources: dict[str, str]) -> Config:
    try:
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        key = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
        origin = sources.get(key, str(path))
        raise ConfigError(
            f"{key + ': ' if key else ''}{text} (from {origin})", hint="oubliette config schema"
        ) from error


def schema() -> dict[str, Any]:
    """The JSON Schema of the file (2020-12)."""
    return msgspec.json.schema(Config)


def schema_keys() -> dict[str, object]:
    """Every `section.key` and its default."""
    keys: dict[str, object] = {}
    default = Config()
    for section in default.__struct_fields__:
        part = getattr(default, section)
        keys.update({f"{section}.{name}": getattr(part, name) for name in part.__struct_fields__})
    return keys
