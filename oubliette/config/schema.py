"""Schema of the configuration: a section is a struct, a key is a field.

The sections in `SECTIONS_OF_TABLES` hold tables that the user names: `[section.NAME]`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from oubliette.config.container_options import ContainerOptions, ContainerOverrides
from oubliette.contract.field_types import Count, Seconds
from oubliette.contract.limits import LogBytes, TreesConfig

FILE_NAME: Final = "oubliette.toml"

GitIdentity = Annotated[str, msgspec.Meta(max_length=200, pattern=r"""^[^\x00-\x1f\x7f<>"\\]*$""")]
Price = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Reference = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*|credential:[a-z0-9][a-z0-9_]*)$"
    ),
]
"""Reference to a secret, in a variable, a file or a credential."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ServerConfig(_Section, frozen=True, kw_only=True):
    """The listener and the process."""

    host: str = "127.0.0.1"
    """Address to bind; loopback by default."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """TCP port; 0 picks a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Host headers to accept besides loopback names and `host`; `name:*` for any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin headers to accept besides those of loopback."""
    on_stop: Literal["keep", "end"] = "keep"
    """Effect of a stop (SIGTERM, SIGINT) on running agents: with `keep` they continue, until the
    next server of this home attaches to them or `containers.orphan_grace_seconds` are over; `end`
    ends them."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 4 * 1024 * 1024
    """Size limit of a request body, in bytes."""
    header_timeout_seconds: Seconds = 10.0
    """Time for a client to send its request head."""


class StoreConfig(_Section, frozen=True, kw_only=True):
    """The database."""

    database: Annotated[str, msgspec.Meta(pattern=r"^($|postgres(ql)?://)")] = ""
    """URL of a PostgreSQL database (13 or later), as `postgresql://user:password@host/name`; empty:
    a file of SQLite in the home. A password is better kept in `~/.pgpass`. The driver comes with
    `pip install 'oubliette-agents[postgres]'`."""
    durability: Literal["process", "power"] = "process"
    """`process`: acknowledged writes survive the end of the process; `power`: also a power
    failure."""


class ProcessConfig(_Section, frozen=True, kw_only=True):
    """The process runtime."""

    sandbox: Literal["bubblewrap", "best-effort"] = "bubblewrap"
    """`best-effort`: no isolation at all, with a warning at each start."""
    network: Literal["auto", "own", "host", "none"] = "auto"
    """Network of the sandbox: `own`, one of its own by pasta, with the host's loopback interface
    out of reach; `auto`, the same where pasta works, else the host's; `host`, the host's network;
    `none`, only a loopback interface of its own."""


class ContainersConfig(ContainerOptions, frozen=True, kw_only=True):
    """Containers of every runtime, and the defaults of options that types and projects override."""

    runtime: str = "auto"
    """auto, process, docker, podman or apple. auto: the first of apple (on a Mac with Apple silicon
    only), docker and podman that works, and pulls its image if it is missing, else process; never a
    weaker runtime than the home had before."""
    dev_image: str = "localhost/oubliette/dev:latest"
    """Image of containers of type `dev`; `image_rebuild` builds it."""
    pull_timeout_seconds: Seconds = 900.0
    """Time limit for pulling an image."""
    build_timeout_seconds: Seconds = 1800.0
    """Time limit for building an image."""
    idle_stop_seconds: Seconds = 600.0
    """Time after which a container without a lease is stopped."""
    start_timeout_seconds: Seconds = 60.0
    """Time limit from the decision to start a container until its guest answers."""
    orphan_grace_seconds: Seconds = 600.0
    """Time without a server after which a guest ends its agents."""
    runtime_dir: str | None = None
    """Folder for relay sockets; its path has to be short."""


class RelayConfig(_Section, frozen=True, kw_only=True):
    """Access of agents' clients to this server."""

    accept_bare: bool = False
    """Accept clients that know only their project and have no secret, in projects without an
    `accept_bare` of their own. Clients in one container can be mistaken for each other."""


class DockerConfig(_Section, frozen=True, kw_only=True):
    """The engine of Docker."""

    host: str | None = None
    """Address (unix:// or tcp://) of the engine. Unset: DOCKER_HOST, the current context, the usual
    socket, in this order."""
    sockets: Literal["auto", "mount", "bridge"] = "auto"
    """Transport of relay links: `mount`, a socket in a shared folder; `bridge`, the engine's exec;
    auto: `bridge` if the engine runs in a virtual machine or is reached by TCP. `bridge` also suits
    engines on another machine that has this server's folders at the same paths."""
    oci_runtime: str | None = None
    """OCI runtime of its containers, such as `runsc` for gVisor. Unset: the engine's default."""


class PodmanConfig(_Section, frozen=True, kw_only=True):
    """The engine of Podman."""

    host: str | None = None
    """Address (unix:// or tcp://) of the engine. Unset: CONTAINER_HOST, the usual socket, in this
    order."""
    sockets: Literal["auto", "mount", "bridge"] = "auto"
    """As `docker.sockets`."""
    oci_runtime: str | None = None
    """OCI runtime of its containers. Unset: the engine's default."""


class AppleConfig(_Section, frozen=True, kw_only=True):
    """Apple's `container`, on macOS."""

    path: str | None = None
    """Path of the program, version 1.0 or later. Unset: `container` on PATH."""


class AgentsConfig(_Section, frozen=True, kw_only=True):
    """Settings of all agents."""

    default: str = "auto"
    """auto, scripted, opencode, opencode-acp, droid, acp or the name of another agent; auto: an
    agent whose section is configured."""
    start_timeout_seconds: Seconds = 120.0
    """Time limit from the start of the agent's process until it is ready."""
    contact_timeout_seconds: Seconds = 60.0
    """Time limit for a ready agent to start Oubliette's MCP server; after it the session fails."""
    silence_timeout_seconds: Seconds = 600.0
    """Time without output from the agent after which a turn fails; it does not count while a tool
    runs or a permission request is open."""
    max_retries: Count = 8
    """Attempts in a row of a failing model, after which the turn fails."""
    git_name: GitIdentity = "Oubliette agent"
    """Author of agents' commits, if neither the repository nor the agent's `~/.gitconfig` nor
    `GIT_AUTHOR_NAME` names one; empty: no author, so that git refuses to commit."""
    git_email: GitIdentity = "agent@oubliette.invalid"
    """E-mail address that goes with `git_name`."""
    memory: tuple[Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]+=[1-9][0-9]{0,6}$")], ...] = ()
    """Estimated memory of one agent of a kind, in MB: `opencode=700`. It limits how many run at
    once within `containers.memory_mb`. Unset: scripted 20, droid 400, opencode 500, others 400."""


class OpencodeConfig(_Section, frozen=True, kw_only=True):
    """OpenCode, the agents `opencode` and `opencode-acp`."""

    path: str | None = None
    """Program to mount into containers. Unset: `opencode` on PATH. `image`: nothing is mounted,
    because the container's image has the program."""
    model: str | None = None
    """Model of sessions that name none: `provider/model`, or the model's name at `base_url`."""
    base_url: str | None = None
    """URL of an OpenAI-compatible API (chat completions), up to its `/v1`."""
    api_key: Reference | None = None
    """Key for `base_url`, by reference: `env:NAME`, `file:/path` or `credential:NAME`."""
    env: tuple[str, ...] = ()
    """Further variables for the agent: `NAME=env:X`, `NAME=file:/path` or `NAME=credential:X`;
    `NAME=value` for values that are not secret."""
    context_tokens: Count = 200_000
    """Size of the context of the model at `base_url`, in tokens."""
    output_tokens: Count = 32_000
    """Output limit of the model at `base_url`, in tokens."""
    price_input: Price | None = None
    """Price of a million input tokens of the model at `base_url`, in US dollars. Without prices its
    cost is unknown, and no cost limit is ever reached."""
    price_output: Price | None = None
    """Price of a million output tokens, in US dollars."""
    price_cache_read: Price | None = None
    """Price of a million tokens read from its cache, in US dollars. Unset: as `price_input`."""
    price_cache_write: Price | None = None
    """Price of a million tokens written to its cache, in US dollars. Unset: as `price_input`."""
    trust_repository: bool = False
    """Let OpenCode load `.opencode` and `opencode.json` of a repository, with their plugins and MCP
    servers: anyone who can write to the repository can then run code and read the agents'
    secrets."""


class DroidConfig(_Section, frozen=True, kw_only=True):
    """Factory Droid, the agent `droid`."""

    path: str | None = None
    """Program to mount into containers. Unset: `droid` on PATH. `image`: nothing is mounted,
    because the container's image has the program."""
    model: str | None = None
    """Model of sessions that name none: one of Factory's, or the model's name at `base_url`."""
    base_url: str | None = None
    """URL of a model of your own (Factory's `customModels`)."""
    provider: Literal["generic-chat-completion-api", "openai", "anthropic"] = (
        "generic-chat-completion-api"
    )
    """Protocol at `base_url`: chat completions, responses or messages."""
    api_key: Reference | None = None
    """Key for `base_url`, by reference: `env:NAME`, `file:/path` or `credential:NAME`."""
    env: tuple[str, ...] = ()
    """Further variables for the agent, such as `FACTORY_API_KEY=env:FACTORY_API_KEY`."""
    output_tokens: Count = 32_000
    """Output limit of the model at `base_url`, in tokens."""
    price_input: Price | None = None
    """Price of a million input tokens of the model at `base_url`, in US dollars. Without prices its
    cost is unknown, and no cost limit is ever reached."""
    price_output: Price | None = None
    """Price of a million output tokens, in US dollars."""
    price_cache_read: Price | None = None
    """Price of a million tokens read from its cache, in US dollars. Unset: as `price_input`."""
    price_cache_write: Price | None = None
    """Price of a million tokens written to its cache, in US dollars. Unset: as `price_input`."""


class AcpConfig(_Section, frozen=True, kw_only=True):
    """Any other agent with the Agent Client Protocol; the section `[acp]` is the agent `acp`."""

    command: tuple[str, ...] = ()
    """Command line of the agent, such as `["gemini", "--acp"]`; empty: the agent is not
    configured."""
    path: str | None = None
    """Program to mount as the first word of `command`. Unset: the container's image has to have
    it."""
    env: tuple[str, ...] = ()
    """Further variables for the agent: `NAME=env:X`, `NAME=file:/path` or `NAME=credential:X`;
    `NAME=value` for values that are not secret."""
    mounts: tuple[str, ...] = ()
    """Folders and files of this machine to mount read-only into containers: `SOURCE`, or
    `SOURCE:TARGET` for another path."""
    files: tuple[str, ...] = ()
    """Files to write to HOME at each start: `PATH=file:/SOURCE`, or `PATH=TEXT`. They are stored on
    disk, so they must not contain secrets."""
    session_files: tuple[str, ...] = ()
    """Files and folders in HOME where the agent keeps its conversations, and no credentials: forks
    begin with copies of them, and on a cluster they follow the session. Those of Claude Code
    and Codex are known."""
    model: str | None = None
    """Model of sessions that name none, one of those that the agent offers. Unset: the agent's
    own."""
    mode: str | None = None
    """Mode of its sessions, one of those that the agent offers. Unset: the agent's own."""
    hears_tool_changes: bool | None = None
    """Whether the agent lists its tools again when they change. Unset: as known for the program;
    Codex and Qwen Code, for example, do not."""
    trust_repository: bool = False
    """Do not guard against the configuration that a repository has for the agent: anyone who can
    write to the repository can then run code and read the agents' secrets."""


class ProjectsConfig(_Section, frozen=True, kw_only=True):
    """Limits of each project."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 20 * 1024**3
    """Disk space for a project's workspaces and its sessions' HOMEs, in bytes. Sessions get a
    warning at 80 %; above the limit their turns are interrupted and no command is run, and when it
    goes on growing its containers are stopped. Its snapshots have as much again; above that none
    are taken. 0: no limit."""
    keep_free_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 256 * 1024**2
    """Room on the disk of the home, in bytes, below which the turns of projects with `max_bytes`
    are interrupted, so that the server can go on writing. 0: none."""
    max_workspaces: Count = 1000
    """Maximum of workspaces in a project; a session that would make another one is refused."""
    check_seconds: Seconds = 30.0
    """Time between two measurements of a project that has containers; longer if they take long."""


class RepositoriesConfig(_Section, frozen=True, kw_only=True):
    """Repositories that projects are cloned from; they need git."""

    protocols: tuple[Literal["https", "http", "ssh", "git", "file"], ...] = ("https", "ssh")
    """Protocols of URLs that may be cloned. `file` lets a key read every repository that the
    server's user can read."""
    folders: tuple[Annotated[str, msgspec.Meta(pattern=r"^[/~]")], ...] = ()
    """Folders of this machine whose repositories keys may clone; the command line on this machine
    may clone all."""
    credentials: tuple[
        Annotated[
            str,
            msgspec.Meta(
                pattern=r"^[A-Za-z0-9\[][^=\s]*=([^:=\s]+:)?(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*)$"
            ),
        ],
        ...,
    ] = ()
    """Passwords of git hosts by reference: `github.com=env:GITHUB_TOKEN`, also for a part of a host
    (`git.example/team=…`) and with the user's name (`git.example=bot:file:/path`). Over ssh it is
    the file of a key. All keys that create projects can clone with them."""
    user_credentials: bool = False
    """Use the server's user's own configuration of git and ssh: his credential helper, his keys."""
    clone_seconds: Seconds = 1800.0
    """Time limit of a clone or a fetch."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 10 * 1024**3
    """Size limit of what is fetched at a time, of what all submodules of a workspace send, and of
    the files of a workspace that is made of it, in bytes; 0: none."""


class SessionsConfig(_Section, frozen=True, kw_only=True):
    """Defaults of sessions, fixed for each session at its start."""

    idle_timeout_seconds: Seconds = 1800.0
    """Time without an event after which a session without a running turn ends; any event counts."""
    max_live_per_project: Count = 10
    """Maximum of live top-level sessions in a project."""
    caller_tool_timeout_seconds: Seconds = 60.0
    """Time for a caller to answer a tool call."""
    permission_timeout_seconds: Seconds = 60.0
    """Time for a person to answer a permission request, which is denied afterwards."""
    event_buffer: Count = 1000
    """Events of a session that are kept in memory; the log keeps all."""
    max_log_bytes: LogBytes = 1024**3
    """Size of a session's events, in bytes, above which its turns are interrupted. 0: no limit."""
    max_queued_messages: Count = 100
    """Maximum of messages that wait for a running turn."""


class SnapshotsConfig(_Section, frozen=True, kw_only=True):
    """Snapshots of workspaces at the start and the end of each turn; they need git."""

    mode: Literal["off", "on"] = "on"
    """`on`: they are taken where git is installed. `off`: none is taken, unless `cluster.snapshots`
    is set, which copies them."""
    max_file_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 20 * 1024 * 1024
    """Size limit of a file, in bytes; of a larger one only the size and the SHA-256 are kept."""
    max_entries: Count = 200_000
    """Maximum of files and folders in a workspace; of one with more no snapshot is taken."""
    seconds: Seconds = 60.0
    """Time limit of one snapshot."""
    wait_seconds: Seconds = 10.0
    """Time for which a turn waits for the snapshot at its start; then it begins nevertheless."""


class PortsConfig(_Section, frozen=True, kw_only=True):
    """Ports of containers that are open for a browser."""

    max_per_session: Count = 8
    """Maximum of open ports of a session."""
    max_connections: Count = 64
    """Maximum of simultaneous connections to one port."""
    open_seconds: Seconds = 28_800.0
    """Time after which a port is closed, and no browser gets in any more."""
    base_url: Annotated[str, msgspec.Meta(pattern=r"^(|https?://[a-z0-9.-]+(:[0-9]{1,5})?)$")] = ""
    """Address under which browsers reach this server, such as `https://ports.example.org`, if a
    proxy stands before it; the name of a port is put before its host. Empty:
    `http://localhost:PORT`."""


class AuditConfig(_Section, frozen=True, kw_only=True):
    """The audit log of tool calls."""

    max_file_mb: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 64
    """Size of a file in MB at which a new one is begun."""
    keep_files: Count = 20
    """Number of older files that are kept. All last for hours of a flood of calls."""


class CallersConfig(_Section, frozen=True, kw_only=True):
    """Limits per principal."""

    max_listeners: Count = 16
    """Maximum of open listeners; on all nodes of a cluster together."""
    max_calls_in_flight: Count = 64
    """Maximum of simultaneous tool calls over HTTP; on all nodes of a cluster together."""
    max_mcp_sessions: Count = 64
    """Maximum of open MCP sessions of clients that begin with `initialize`, on each node of a
    cluster. One more ends the one that was unused for the longest time."""
    mcp_session_idle_seconds: Seconds = 300.0
    """Time without a request and without a GET stream after which such a session ends."""
    max_pending_requests: Count = 1000
    """Maximum of caller tool calls that wait for an answer; on all nodes of a cluster together."""
    max_tools: Count = 128
    """Maximum of tools that one caller provides."""
    max_schema_bytes: Count = 65_536
    """Size limit of a caller tool's schema, in bytes."""
    calls_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 200.0
    """Tool calls per second, on average; further calls are refused. It holds for all nodes of a
    cluster together."""
    calls_burst: Count = 400
    """Tool calls at once, before `calls_per_second` applies."""
    stream_grace_seconds: Seconds = 1.0
    """Time for which a broken stream counts as present."""
    poll_grace_seconds: Seconds = 10.0
    """Time for which a poller counts as present after its last poll."""
    send_timeout_seconds: Seconds = 5.0
    """Time after which a listener that does not read is disconnected."""
    restart_grace_seconds: Seconds = 30.0
    """Time for a caller to come back after a restart of the server."""


class ClusterConfig(_Section, frozen=True, kw_only=True):
    """A node of a cluster; without effect on a server that is alone."""

    machine_lost_seconds: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 30.0
    """Time from the last sign of life of a node after which the others fail its sessions."""
    snapshots: Annotated[str, msgspec.Meta(pattern=r"^(|postgres|node|/[^\x00-\x1f]*)$")] = ""
    """Place of a copy of each snapshot of a workspace, so that a session that is resumed on another
    node finds its files: `postgres` (the database), `node` (another node), or the path of a folder
    on storage that all nodes share. Empty: files stay on the node's own disk."""
    snapshots_max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 1 << 30
    """Size limit of the copy of a workspace, in bytes, if it is not in a folder. One that
    would be larger stays as it was; the session's log shows it."""
    drain_seconds: Seconds = 300.0
    """Time for the turns of a node that is drained to end by themselves."""
    max_live_sessions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Maximum of live sessions that the node offers; 0: one for each 256 MB of its memory."""
    labels: tuple[
        Annotated[str, msgspec.Meta(pattern=r"^[^=\x00-\x1f]{1,63}=[^\x00-\x1f]{0,63}$")], ...
    ] = ()
    """Labels of the node, as `key=value`; a project may ask for some."""

    def label_pairs(self) -> list[tuple[str, str]]:
        return [(key, value) for key, _, value in (each.partition("=") for each in self.labels)]


class CredentialConfig(_Section, frozen=True, kw_only=True):
    """A secret, with the projects, users and agents that receive it."""

    value: Annotated[str, msgspec.Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*)$")]
    """Source of the secret: `env:NAME` or `file:/path`. It is read at each start of an agent."""
    projects: tuple[str, ...] = ()
    """Projects that receive it, by id or name; `*`: all. Empty: none."""
    users: tuple[str, ...] = ()
    """Restricts it to workspaces with one of these `external_id`s; empty: all workspaces."""
    agents: tuple[str, ...] = ()
    """Restricts it to these agents; empty: all agents."""
    variable: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    """Variable of the agent that contains it. Unset: only references use it, in MCP servers
    (`${credential:NAME}`) and in `api_key` and `env` of agents (`credential:NAME`)."""
    as_file: bool = False
    """Let `variable` contain the path of a file in memory with the secret, which is removed when
    the agent's process ends."""


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
    """Further agents with the Agent Client Protocol, by name; each has the keys of `[acp]`."""
    package_agents: dict[str, dict[str, Any]] = {}
    """Settings of agents that installed packages add, by the agent's name."""
    package_runtimes: dict[str, dict[str, Any]] = {}
    """Settings of container runtimes that installed packages add, by the runtime's name."""
    projects: ProjectsConfig = ProjectsConfig()
    repositories: RepositoriesConfig = RepositoriesConfig()
    sessions: SessionsConfig = SessionsConfig()
    snapshots: SnapshotsConfig = SnapshotsConfig()
    ports: PortsConfig = PortsConfig()
    trees: TreesConfig = TreesConfig()
    callers: CallersConfig = CallersConfig()
    audit: AuditConfig = AuditConfig()
    cluster: ClusterConfig = ClusterConfig()
    container_types: dict[str, ContainerOverrides] = {}
    """Further container types, and overrides of `base` and `dev`."""
    project_containers: dict[str, ContainerOverrides] = {}
    """Overrides for the containers of a project, by its id or name."""
    credentials: dict[str, CredentialConfig] = {}
    """Secrets by name, with the projects, users and agents that receive them."""
