"""What agents are told on each level: `config.json`.

"template → projects/<id> (copied on project_create) → workspaces/<uuid> (copied on
workspace_create, user tokens merged here)": this is the form that all three have. Secrets are
never in it; `${credential:NAME}` in a server's `env` or `headers` stands for one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec

from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OURS: Final = "oubliette"
"""What agents call our own MCP server; no other may be called so."""

Autonomy = Literal["off", "low", "medium", "high", "ask"]

_PLACEHOLDER: Final = re.compile(r"\$\{credential:([a-z0-9][a-z0-9_]{0,63})\}")
_MISSPELT: Final = re.compile(r"\$\{(?:credential|env|file):")
_SECRET: Final = re.compile(
    r"(?i)(?:^|[_-])(?:api_?key|key|token|secret|password|passwd|pat|credentials?|authorization|cookie)$"
)


class McpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One MCP server for agents: a program in the container, or a URL."""

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/@?#]+(?:[/?#]\S*)?$")] | None = None
    type: Literal["stdio", "http", "sse"] | None = None
    headers: dict[str, str] = {}
    disabled: bool = False

    def filled(self, fill: Callable[[str], str]) -> McpServer:
        """With what `fill` says in the place of each `${credential:NAME}`."""

        def put(values: Mapping[str, str]) -> dict[str, str]:
            return {
                name: _PLACEHOLDER.sub(lambda found: fill(found[1]), value)
                for name, value in values.items()
            }

        return msgspec.structs.replace(self, env=put(self.env), headers=put(self.headers))


class AgentConfig(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"mcp_servers": "mcpServers"},
):
    """One `config.json`."""

    agent: str | None = None
    model: str | None = None
    autonomy: Autonomy | None = None
    mcp_servers: dict[str, McpServer] = {}

    @property
    def enabled(self) -> dict[str, McpServer]:
        """The servers that agents are to have, in the order of their names."""
        return {
            name: server for name, server in sorted(self.mcp_servers.items()) if not server.disabled
        }

    @property
    def credentials(self) -> tuple[str, ...]:
        """Names of the credentials that its servers stand in need of."""
        named = (found for server in self.enabled.values() for found in _named(server))
        return tuple(sorted(set(named)))


msgspec.json.Decoder(AgentConfig)  # looked into before there are threads: see store/codec.py


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`: objects key by key, everything else replaced, lists as a whole."""
    found = dict(lower)
    for key, value in upper.items():
        below = found.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            found[key] = merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value))
        else:
            found[key] = value
    return found


def checked(tree: object, place: str = "") -> AgentConfig:
    """`tree` as a configuration.

    Args:
        tree: plain JSON.
        place: what to say before the name of a field that is wrong: the file's.

    Raises:
        InvalidParameter: names the field; values are not repeated.
    """
    try:
        config = msgspec.convert(tree, AgentConfig)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = (
            what.replace("`", "")
            .replace(", got", ", not")
            .partition(" matching regex")[0]
            .partition(" '")[0]
        )
        raise _wrong(place, where.rstrip("`").lstrip(".") or "config.json", what) from None
    for name, server in config.mcp_servers.items():
        field = f"mcpServers.{name}"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            raise _wrong(place, "mcpServers", "names are made of A-Z a-z 0-9 _ -, 64 at most")
        if name == OURS:
            raise _wrong(place, field, "this name is that of Oubliette's own server")
        _check_server(place, field, server)
    return config


def servers(given: Mapping[str, Any]) -> AgentConfig:
    """The `mcp_servers` of `project_create`, checked.

    Raises:
        InvalidParameter: names the field.
    """
    try:
        return checked({"mcpServers": dict(given)})
    except InvalidParameter as error:
        message = error.message.replace("mcpServers", "mcp_servers")
        raise InvalidParameter(message, field="mcp_servers", hint=error.hint) from None


def _check_server(place: str, field: str, server: McpServer) -> None:
    if (server.command is None) == (server.url is None) and not (
        server.disabled and server.command is None
    ):
        raise _wrong(place, field, "it needs either a command or a url")
    if (server.command is not None and server.type not in {None, "stdio"}) or (
        server.url is not None and server.type == "stdio"
    ):
        raise _wrong(place, f"{field}.type", "it does not go with the rest")
    for part, values in (("env", server.env), ("headers", server.headers)):
        for name, value in values.items():
            left = _PLACEHOLDER.sub("", value)
            where = f"{field}.{part}.{name}"
            if _MISSPELT.search(left):
                raise _wrong(place, where, "a secret is written ${credential:name}")
            if _SECRET.search(name) and value and left == value:
                raise InvalidParameter(
                    f"{place}{where}: a secret is given by reference, never in clear",
                    field=where,
                    hint="${credential:NAME}, where NAME is a [credentials.NAME] of the server",
                )


def _named(server: McpServer) -> Iterator[str]:
    for value in (*server.env.values(), *server.headers.values()):
        yield from _PLACEHOLDER.findall(value)


def _wrong(place: str, field: str, what: str) -> InvalidParameter:
    return InvalidParameter(f"{place}{field}: {what[:1].lower()}{what[1:]}", field=field)
