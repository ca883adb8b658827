"""Schema of the configuration: a section is a struct, a key is a field.

`SECTIONS_OF_TABLES` have tables with names of the user's: `[section.NAME]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, get_type_hints

import msgspec

from oubliette.config.container_options import TYPE_NAME, ContainerOptions, ContainerOverrides

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME: Final = "oubliette.toml"

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


def table_kind(section: str) -> type[msgspec.Struct]:
    """What says which keys the tables of `section` have."""
    plain: dict[str, type[msgspec.Struct]] = {
        "credentials": CredentialConfig,
        "acp_agents": AcpConfig,
    }
    return plain.get(section, ContainerOptions)


def sections() -> dict[str, type[msgspec.Struct]]:
    """Those with fixed keys."""
    hints = get_type_hints(Config)
    return {name: kind for name, kind in hints.items() if name not in SECTIONS_OF_TABLES}


def duration_keys(kind: type[msgspec.Struct]) -> set[str]:
    """The keys of a section that take a duration."""
    hints = get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if hint == Seconds}
