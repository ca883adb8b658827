"""Schema of `config.json`, the configuration of agents on each level.

"template → projects/<id> (copied on project_create) → workspaces/<uuid> (copied on
workspace_create, user tokens merged here)": all three levels have this form. It never contains a
secret; `${credential:NAME}` in a server's `env` or `headers` refers to one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec

from oubliette.contract.agent_options import Autonomy
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OURS: Final = "oubliette"
"""Name of Oubliette's own MCP server in agents; reserved for it."""

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
        """A copy in which each `${credential:NAME}` is replaced by `fill(NAME)`."""

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
    """Content of one `config.json`."""

    agent: str | None = None
    model: str | None = None
    autonomy: Autonomy | None = None
    mcp_servers: dict[str, McpServer] = {}

    @property
    def enabled(self) -> dict[str, McpServer]:
        """The servers that are not disabled, sorted by name."""
        return {
            name: server for name, server in sorted(self.mcp_servers.items()) if not server.disabled
        }

    @property
    def credentials(self) -> tuple[str, ...]:
        """Names of the credentials that the enabled servers refer to, sorted."""
        named = (found for server in self.enabled.values() for found in _named(server))
        return tuple(sorted(set(named)))


msgspec.json.Decoder(AgentConfig)  # built before there are threads: see store/codec.py


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return `upper` over `lower`: objects are merged by key, other values and lists replaced."""
    found = dict(lower)
    for key, value in upper.items():
        below = found.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            found[key] = merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value))
        else:
            found[key] = value
    return found


def checked(tree: object, place: str = "") -> AgentConfig:
    """Return `tree` as a configuration.

    Args:
        tree: plain JSON.
        place: prefix of the field's name in errors: the file's name.

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
    """Check the `mcp_servers` of `project_create` and return them as a configuration.

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
