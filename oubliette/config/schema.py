"""Configuration: `<home>/oubliette.toml`, every key also `OUBLIETTE_SECTION__KEY`.

`SECTIONS_OF_TABLES` have tables with names of the user's: `[section.NAME]`, and
`OUBLIETTE_SECTION__NAME__KEY`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from oubliette.config.container_options import (
    TYPE_NAME,
    ContainerOptions,
    ContainerOverrides,
    given,
)
from oubliette.config.field_docs import field_docs
from oubliette.durations import PATTERN, seconds_of
from oubliette.errors import ConfigError, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE_NAME: Final = "oubliette.toml"
_PREFIX: Final = "OUBLIETTE_"

# A text with a unit is taken too, and is seconds from there on: see `_duration`.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=10_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
GitIdentity = Annotated[str, msgspec.Meta(max_length=200, pattern=r"""^[^\x00-\x1f\x7f<>"\\]*$""")]
Price = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Reference = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*|credential:[a-z0-9][a-z0-9_]*)$"
    ),
]
"""Where a secret is."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ServerConfig(_Section, frozen=True, kw_only=True):
    """The listener and the process."""

    host: str = "127.0.0.1"
    """Address to bind; loopback unless set."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """0 picks a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers to accept besides loopback names and `host`; `name:*` for any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin headers to accept besides those of loopback."""
    on_stop: Literal["keep", "end"] = "keep"
    """What a stop (SIGTERM, SIGINT) does with running agents: `keep` leaves them to the next server
    of this home, or until `containers.orphan_grace_seconds` are over; `end` ends them."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 4 * 1024 * 1024
    """Largest request body."""
    header_timeout_seconds: Seconds = 10.0
    """Time for a client to send its request head."""


class StoreConfig(_Section, frozen=True, kw_only=True):
    """The database."""

    durability: Literal["process", "power"] = "process"
    """`process`: what was acknowledged outlives the process; `power`: the machine too."""


class ProcessConfig(_Section, frozen=True, kw_only=True):
    """The process runtime."""

    sandbox: Literal["bubblewrap", "best-effort"] = "bubblewrap"
    """`best-effort`: no isolation at all, a warning at each start."""
    network: Literal["none", "host"] = "host"
    """What the sandbox reaches: `none`, its own `lo` alone; `host`, what this machine does."""


class ContainersConfig(ContainerOptions, frozen=True, kw_only=True):
    """Containers of every runtime, and the defaults of what types and projects may change."""

    runtime: str = "auto"
    """auto, process, docker, podman or apple. auto: the first of apple (on a Mac with Apple silicon
    only), docker and podman that works, its image fetched where it is missing, else process; never
    a weaker one than the home had before."""
    dev_image: str = "localhost/oubliette/dev:latest"
    """Image of containers of type `dev`; `image_rebuild` makes it."""
    pull_timeout_seconds: Seconds = 900.0
    """For the fetching of an image."""
    build_timeout_seconds: Seconds = 1800.0
    """For the building of an image."""
    idle_stop_seconds: Seconds = 600.0
    """A container without a lease is stopped after this."""
    start_timeout_seconds: Seconds = 60.0
    """From the decision to start to a host that answers."""
    orphan_grace_seconds: Seconds = 600.0
    """A host ends its agents when no server was there for this long."""
    runtime_dir: str | None = None
    """Folder for relay sockets; a short path."""


class RelayConfig(_Section, frozen=True, kw_only=True):
    """How agents' clients reach this server."""

    accept_bare: bool = False
    """Let clients in that know their project alone and have no secret, in projects that do not say
    otherwise. Those of one container can be mistaken for each other."""


class DockerConfig(_Section, frozen=True, kw_only=True):
    """The docker engine."""

    host: str | None = None
    """Its address (unix:// or tcp://); else DOCKER_HOST, the current context, the usual socket."""
    sockets: Literal["auto", "mount", "bridge"] = "auto"
    """How links reach agents: by a socket in a shared folder, or over the engine's exec. auto: the
    latter where the engine runs in a virtual machine or is reached by TCP. `bridge` is also for
    engines on another machine that has this server's folders at the same paths."""
    oci_runtime: str | None = None
    """What runs its containers: `runsc` for gVisor. Unset: the engine's default."""


class PodmanConfig(_Section, frozen=True, kw_only=True):
    """The podman engine."""

    host: str | None = None
    """Its address (unix:// or tcp://); else CONTAINER_HOST, the usual socket."""
    sockets: Literal["auto", "mount", "bridge"] = "auto"
    """As `docker.sockets`."""
    oci_runtime: str | None = None
    """What runs its containers. Unset: the engine's default."""


class AppleConfig(_Section, frozen=True, kw_only=True):
    """Apple's `container`, on macOS."""

    path: str | None = None
    """The program, 1.0 or later; without it, `container` on PATH."""


class AgentsConfig(_Section, frozen=True, kw_only=True):
    """Agents of every runtime."""

    default: str = "auto"
    """auto, scripted, opencode, opencode-acp, droid or acp; auto: one whose section is filled
    in."""
    start_timeout_seconds: Seconds = 120.0
    """From the start of the process to its first sign of life."""
    contact_timeout_seconds: Seconds = 60.0
    """For an agent that is ready to start our MCP server; without it the session fails."""
    silence_timeout_seconds: Seconds = 600.0
    """A turn fails when its agent says nothing for this long while no tool and nobody is asked."""
    max_retries: Count = 8
    """Tries of a model that fails, in a row; after them the turn fails."""
    git_name: GitIdentity = "Oubliette agent"
    """Author of agents' commits, where neither the repository nor the agent's `~/.gitconfig` nor
    `GIT_AUTHOR_NAME` names one; empty: nobody, so that git refuses to commit."""
    git_email: GitIdentity = "agent@oubliette.invalid"
    """The address that goes with `git_name`."""
    memory: tuple[Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]+=[1-9][0-9]{0,6}$")], ...] = ()
    """What one agent of a kind is counted with, in MB: `opencode=700`. So many fit into
    `containers.memory_mb` at once. Unset: scripted 20, droid 400, opencode 500, others 400."""


class OpencodeConfig(_Section, frozen=True, kw_only=True):
    """OpenCode, the agents `opencode` and `opencode-acp`."""

    path: str | None = None
    """The program to mount into containers; without it, `opencode` on PATH. `image`: nothing is
    mounted, the container's image has it."""
    model: str | None = None
    """Model of sessions that name none: `provider/model`, or the model's name at `base_url`."""
    base_url: str | None = None
    """Where an OpenAI-compatible API (chat completions) is, up to its `/v1`."""
    api_key: Reference | None = None
    """Key for `base_url`, by reference: `env:NAME`, `file:/path` or `credential:NAME`."""
    env: tuple[str, ...] = ()
    """Further variables for the agent: `NAME=env:X`, `NAME=file:/path`, `NAME=credential:X`; or
    `NAME=value` for what is no secret."""
    context_tokens: Count = 200_000
    """What the model at `base_url` can read at once."""
    output_tokens: Count = 32_000
    """What the model at `base_url` can write at once."""
    price_input: Price | None = None
    """US dollars per million tokens that the model at `base_url` reads. Without prices its cost is
    not known, and no limit of cost is ever reached."""
    price_output: Price | None = None
    """The same for tokens that it writes."""
    price_cache_read: Price | None = None
    """The same for tokens that it finds in its cache; unset: as `price_input`."""
    price_cache_write: Price | None = None
    """The same for tokens that it puts into its cache; unset: as `price_input`."""
    trust_repository: bool = False
    """OpenCode does what a repository says in `.opencode` and `opencode.json`, plugins and MCP
    servers included: whoever can write to a repository runs code, and sees secrets of agents."""


class DroidConfig(_Section, frozen=True, kw_only=True):
    """Factory Droid, the agent `droid`."""

    path: str | None = None
    """The program to mount into containers; without it, `droid` on PATH. `image`: nothing is
    mounted, the container's image has it."""
    model: str | None = None
    """Model of sessions that name none: one of Factory's, or the model's name at `base_url`."""
    base_url: str | None = None
    """Where a model of your own is (Factory's `customModels`)."""
    provider: Literal["generic-chat-completion-api", "openai", "anthropic"] = (
        "generic-chat-completion-api"
    )
    """What is spoken at `base_url`: chat completions, responses or messages."""
    api_key: Reference | None = None
    """Key for `base_url`, by reference: `env:NAME`, `file:/path` or `credential:NAME`."""
    env: tuple[str, ...] = ()
    """Further variables for the agent, such as `FACTORY_API_KEY=env:FACTORY_API_KEY`."""
    output_tokens: Count = 32_000
    """What the model at `base_url` can write at once."""
    price_input: Price | None = None
    """US dollars per million tokens that the model at `base_url` reads. Without prices its cost is
    not known, and no limit of cost is ever reached."""
    price_output: Price | None = None
    """The same for tokens that it writes."""
    price_cache_read: Price | None = None
    """The same for tokens that it finds in its cache; unset: as `price_input`."""
    price_cache_write: Price | None = None
    """The same for tokens that it puts into its cache; unset: as `price_input`."""


class AcpConfig(_Section, frozen=True, kw_only=True):
    """Any other agent that speaks the Agent Client Protocol; `[acp]`: as the agent `acp`."""

    command: tuple[str, ...] = ()
    """Its command line, such as `["gemini", "--acp"]`; empty: there is none."""
    path: str | None = None
    """The program to mount as the first word; without it, containers have to have it."""
    env: tuple[str, ...] = ()
    """Further variables for the agent: `NAME=env:X`, `NAME=file:/path`, `NAME=credential:X`; or
    `NAME=value` for what is no secret."""
    mounts: tuple[str, ...] = ()
    """Folders and files of this machine that containers are to have, read-only: `SOURCE`, or
    `SOURCE:TARGET` for another place."""
    files: tuple[str, ...] = ()
    """Files to be put into HOME at each start: `PATH=file:/SOURCE`, or `PATH=TEXT`. They lie on the
    disk: no place for secrets."""
    model: str | None = None
    """Model of sessions that name none, of those that the agent offers; unset: the agent's own."""
    mode: str | None = None
    """Mode of its sessions, of those that the agent offers; unset: the agent's own."""
    hears_tool_changes: bool | None = None
    """Whether it lists its tools again when they change; unset: what is known of the program, such
    as that Codex and Qwen Code do not."""
    trust_repository: bool = False
    """Nothing is done about what a repository has it do: whoever can write to a repository runs
    code, and sees secrets of agents."""


class ProjectsConfig(_Section, frozen=True, kw_only=True):
    """Projects, each of them."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 20 * 1024**3
    """Room on the disk for its workspaces and its sessions' HOMEs. At 80 % its sessions are warned,
    above it their turns are interrupted. 0: any."""
    check_seconds: Seconds = 30.0
    """Time between two measurements while sessions live; more where measuring takes long."""


class SessionsConfig(_Section, frozen=True, kw_only=True):
    """Defaults of sessions; frozen into each at its start."""

    idle_timeout_seconds: Seconds = 1800.0
    """Any event counts as activity."""
    max_live_per_project: Count = 10
    """Live top-level sessions."""
    caller_tool_timeout_seconds: Seconds = 60.0
    """Time for a caller to answer."""
    permission_timeout_seconds: Seconds = 60.0
    """Time for a person to allow; denied afterwards."""
    event_buffer: Count = 1000
    """Events of a session kept in memory; the log keeps all."""
    max_queued_messages: Count = 100
    """Messages that may wait for a running turn."""


class TreesConfig(_Section, frozen=True, kw_only=True):
    """Default limits of a tree of sessions."""

    max_depth: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3
    """Levels of children; 0: agents have none."""
    max_agents: Count = 50
    """Agents of one tree, ended ones too."""
    max_agents_at_once: Count = 10
    """Live agents of one tree."""
    max_cost_usd: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 10.0
    """What the agents of one tree may cost together, as they report it."""
    max_wall_seconds: Seconds = 86_400.0
    """Age of a tree, from the start of its root."""
    max_turn_seconds: Seconds = 21_600.0
    """What one turn of an agent may take, with all that it waits for. Then it is interrupted and
    fails; the session goes on."""
    max_turn_steps: Count = 500
    """Steps of the model in one turn, as far as its agent tells of them. Then it is interrupted and
    fails; the session goes on."""


class AuditConfig(_Section, frozen=True, kw_only=True):
    """The log of who called what."""

    max_file_mb: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 16
    """Size at which a new file is begun."""
    keep_files: Count = 10
    """Older files that are kept."""


class CallersConfig(_Section, frozen=True, kw_only=True):
    """Limits per principal."""

    max_listeners: Count = 16
    """Listeners at a time."""
    max_calls_in_flight: Count = 64
    """Tool calls over HTTP at a time."""
    max_pending_requests: Count = 1000
    """Calls of lent tools that wait for an answer."""
    max_tools: Count = 128
    """Tools that one caller lends."""
    max_schema_bytes: Count = 65_536
    """Size of the schema of a lent tool."""
    calls_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 200.0
    """Calls of tools, on average; more are refused."""
    calls_burst: Count = 400
    """Calls of tools at once, before `calls_per_second` counts."""
    stream_grace_seconds: Seconds = 1.0
    """A dropped stream counts as present for this long."""
    poll_grace_seconds: Seconds = 10.0
    """A poller counts as present for this long after its last poll."""
    send_timeout_seconds: Seconds = 5.0
    """A listener that takes nothing for this long is cut."""
    restart_grace_seconds: Seconds = 30.0
    """Time for a caller to come back after the server was restarted."""


class CredentialConfig(_Section, frozen=True, kw_only=True):
    """A secret, and who is given it."""

    value: Annotated[str, msgspec.Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*)$")]
    """Where it is: `env:NAME` or `file:/path`. It is read at each start of an agent."""
    projects: tuple[str, ...] = ()
    """Projects that are given it, by id or name; `*`: all. Empty: none."""
    users: tuple[str, ...] = ()
    """Given in workspaces with one of these `external_id`s alone; empty: in every workspace."""
    agents: tuple[str, ...] = ()
    """Given to these agents alone; empty: to every agent."""
    variable: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    """Variable of the agent that holds it. Without one it is for those who name it: MCP servers
    (`${credential:NAME}`), `api_key` and `env` of agents (`credential:NAME`)."""
    as_file: bool = False
    """`variable` holds the path of a file in memory with it, gone with the agent's process."""


class Config(_Section, frozen=True, kw_only=True):
    """The whole configuration."""

    server: ServerConfig = ServerConfig()
    store: StoreConfig = StoreConfig()
    process: ProcessConfig = ProcessConfig()
    containers: ContainersConfig = ContainersConfig()
    relay: RelayConfig = RelayConfig()
    docker: DockerConfig = DockerConfig()
    podman: PodmanConfig = PodmanConfig()
    apple: AppleConfig = AppleConfig()
    agents: AgentsConfig = AgentsConfig()
    opencode: OpencodeConfig = OpencodeConfig()
    droid: DroidConfig = DroidConfig()
    acp: AcpConfig = AcpConfig()
    acp_agents: dict[str, AcpConfig] = {}
    """Further agents that speak the Agent Client Protocol, by name: each as `[acp]`."""
    projects: ProjectsConfig = ProjectsConfig()
    sessions: SessionsConfig = SessionsConfig()
    trees: TreesConfig = TreesConfig()
    callers: CallersConfig = CallersConfig()
    audit: AuditConfig = AuditConfig()
    container_types: dict[str, ContainerOverrides] = {}
    """Further container types, and what is different in `base` and `dev`."""
    project_containers: dict[str, ContainerOverrides] = {}
    """What is different in containers of a project, by its id or its name."""
    credentials: dict[str, CredentialConfig] = {}
    """Secrets, by name, and who is given them."""


SECTIONS_OF_TABLES: Final[Mapping[str, str]] = {
    "container_types": TYPE_NAME,
    "project_containers": r"^[^\x00-\x1f]{1,200}$",
    "credentials": r"^[a-z0-9][a-z0-9_]{0,63}$",
    "acp_agents": r"^[a-z][a-z0-9_-]{0,31}$",
}
"""Section → what its tables may be called."""


def _keys_of_tables(section: str) -> type[msgspec.Struct]:
    """What says which keys the tables of `section` have."""
    plain: dict[str, type[msgspec.Struct]] = {
        "credentials": CredentialConfig,
        "acp_agents": AcpConfig,
    }
    return plain.get(section, ContainerOptions)


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

    Later ones win. In the environment a list is JSON, or its entries with commas between.

    Raises:
        ConfigError: unreadable file, unknown key or a value that does not fit; names the key and
            where it came from.
    """
    path = home / FILE_NAME
    tree: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for section, keys in _read(path).items():
        if section not in Config.__struct_fields__:
            known = Config.__struct_fields__
            raise _unknown(section, known, f"{path}: there is no section")
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: {section} must be a table, [{section}]")
        for name, value in cast("dict[str, Any]", keys).items():
            key = f"{section}.{name}"
            if section in SECTIONS_OF_TABLES:
                if not isinstance(value, dict):
                    raise ConfigError(f"{path}: {key} must be a table, [{key}]")
                _table(tree, section, name, str(path))
                for option, given_value in cast("dict[str, Any]", value).items():
                    _put(tree, sources, (section, name, option), given_value, str(path))
                continue
            if key not in schema_keys():
                error = _unknown(key, schema_keys(), f"{path}: there is no key")
                if section == "agents" and isinstance(value, dict):
                    error.hint = f"an agent that speaks ACP is a table [acp_agents.{name}]"
                raise error
            _put(tree, sources, (section, name), value, str(path))
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX) or "__" not in variable:
            continue
        key = variable[len(_PREFIX) :].lower().replace("__", ".", 1)
        words = tuple(key.split(".", 1))
        if words[0] in SECTIONS_OF_TABLES and "__" in words[1]:
            words = (words[0], *words[1].split("__", 1))
        elif key not in schema_keys():
            raise _unknown(key, schema_keys(), f"{variable}: there is no key")
        _put(tree, sources, words, _from_text(words, text), f"environment ({variable})")
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        _put(tree, sources, (section, name), value, "command line")
    config = _convert(tree, path, sources)
    return Loaded(config=config, sources={key: sources.get(key, "default") for key in flat(config)})


def _put(
    tree: dict[str, dict[str, Any]],
    sources: dict[str, str],
    words: tuple[str, ...],
    value: object,
    source: str,
) -> None:
    """Set one key: section and name, or section, table and name.

    Raises:
        ConfigError: a table has a name that cannot be, or there is no such key in tables.
    """
    section, *tables, name = words
    key = ".".join(words)
    part = tree.setdefault(section, {})
    for table in tables:
        part = _table(tree, section, table, source)
        names = _keys_of_tables(section).__struct_fields__
        if name not in names:
            known = [f"{section}.{table}.{each}" for each in names]
            raise _unknown(key, known, f"{source}: there is no key")
    part[name] = _duration(words, value, source)
    sources[key] = source


def _duration(words: tuple[str, ...], value: object, source: str) -> object:
    """A text in a key that takes seconds, as seconds; anything else as it is.

    Raises:
        ConfigError: the text is no duration.
    """
    kind = None if words[0] in SECTIONS_OF_TABLES else _sections().get(words[0])
    if not isinstance(value, str) or kind is None or words[-1] not in _durations(kind):
        return value
    try:
        return seconds_of(value)
    except InvalidParameter as error:
        raise ConfigError(f"{'.'.join(words)}: {error.message} (from {source})") from error


def _durations(kind: type[msgspec.Struct]) -> set[str]:
    """The keys of a section that take a duration."""
    hints = get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if hint == Seconds}


def _table(
    tree: dict[str, dict[str, Any]], section: str, table: str, source: str
) -> dict[str, Any]:
    if not re.search(SECTIONS_OF_TABLES[section], table):
        raise ConfigError(
            f"{source}: {section} cannot have a table {table!r}",
            hint=f"its name has to match {SECTIONS_OF_TABLES[section]}",
        )
    return tree.setdefault(section, {}).setdefault(table, {})


def flat(config: Config) -> dict[str, object]:
    """Every key that `config` has, and its value; those of tables with names where given."""
    keys: dict[str, object] = {}
    for section in config.__struct_fields__:
        part = getattr(config, section)
        if isinstance(part, dict):
            for table, entry in cast("dict[str, msgspec.Struct]", part).items():
                own = (
                    given(entry)
                    if isinstance(entry, ContainerOverrides)
                    else msgspec.structs.asdict(entry)
                )
                keys.update({f"{section}.{table}.{name}": value for name, value in own.items()})
            continue
        keys.update({f"{section}.{name}": getattr(part, name) for name in part.__struct_fields__})
    return keys


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _unknown(name: str, known: Iterable[str], what: str) -> ConfigError:
    names = sorted(known)
    # First the right key in the wrong section.
    near = [key for key in names if key.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "oubliette config schema lists the keys"
    return ConfigError(f"{what} {name}", hint=hint)


def _from_text(words: tuple[str, ...], text: str) -> object:
    """A value of the environment, as far as its key tells what it is; checked by `_convert`."""
    tables = words[0] in SECTIONS_OF_TABLES
    kind = _keys_of_tables(words[0]) if tables else _sections()[words[0]]
    hint = get_type_hints(kind, include_extras=True).get(words[-1], str)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        if text.lstrip().startswith("["):
            try:
                return msgspec.json.decode(text)
            except msgspec.DecodeError:
                return text
        return [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(hint) in {Union, types.UnionType}:
        kind = get_args(hint)[0]  # the other one is None
        hint = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    try:
        return msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError:
        return text


def _convert(tree: dict[str, dict[str, Any]], path: Path, sources: dict[str, str]) -> Config:
    prefix = ""
    try:
        for section in SECTIONS_OF_TABLES:
            for table, keys in tree.get(section, {}).items():
                prefix = f"{section}.{table}."  # errors of tables do not tell their names
                kind = _keys_of_tables(section)
                kind = ContainerOverrides if kind is ContainerOptions else kind
                tree[section][table] = msgspec.convert(keys, kind)
        prefix = ""
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        key = prefix + place.rstrip("`").partition("[")[0]
        raise ConfigError(
            f"{key}: {what[:1].lower()}{what[1:].replace('`', '')} (from {sources.get(key, path)})",
            hint="oubliette config schema tells what it takes",
        ) from error


def _sections() -> dict[str, type[msgspec.Struct]]:
    """Those with fixed keys."""
    hints = get_type_hints(Config)
    return {name: kind for name, kind in hints.items() if name not in SECTIONS_OF_TABLES}


def schema() -> dict[str, Any]:
    """The JSON Schema of the file (2020-12), with what is said about each key."""
    (root,), parts = msgspec.json.schema_components((Config,), ref_template="{name}")
    told: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        **parts[root["$ref"]],
    }
    told["title"] = FILE_NAME
    for section, kind in _sections().items():
        told["properties"][section] = part = _described(parts, kind, field_docs(kind))
        for name in _durations(kind):
            part["properties"][name] = _or_duration(part["properties"][name])
    tables: dict[type[msgspec.Struct], dict[str, Any]] = {
        ContainerOptions: _described(parts, ContainerOverrides, field_docs(ContainerOptions)),
        CredentialConfig: _described(parts, CredentialConfig, field_docs(CredentialConfig)),
        AcpConfig: parts[AcpConfig.__name__],  # described as a section
    }
    for section, pattern in SECTIONS_OF_TABLES.items():
        told["properties"][section] = {
            "type": "object",
            "description": field_docs(Config)[section],
            "patternProperties": {pattern: tables[_keys_of_tables(section)]},
            "additionalProperties": False,
        }
    return told


def _or_duration(number: dict[str, Any]) -> dict[str, Any]:
    """What JSON Schema says of a key that takes seconds, or a text with units."""
    said = {name: number.pop(name) for name in ("description", "default") if name in number}
    return {"anyOf": [number, {"type": "string", "pattern": PATTERN}], **said}


def _described(
    parts: dict[str, dict[str, Any]], kind: type[msgspec.Struct], docs: dict[str, str]
) -> dict[str, Any]:
    part = parts[kind.__name__]
    part.pop("title", None)
    for name, text in docs.items():
        part["properties"][name]["description"] = text
    return part


def schema_keys() -> dict[str, object]:
    """Every `section.key` and its default; without those of tables with names."""
    return flat(Config())
