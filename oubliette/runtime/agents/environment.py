"""Environment of every agent, and the sources of its secrets.

Secrets are named by reference and read when an agent is started: not before, so that a new one
needs no restart of the server, and only into the agent's environment.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from oubliette.config.secret_names import REFERENCE, looks_secret
from oubliette.errors import ConfigError
from oubliette.user_paths import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oubliette.config.schema import Config
    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

_LARGEST: Final = 1 << 20  # bytes of a file with a secret


def base_environment(session: AgentSession, inside: Inside) -> dict[str, str]:
    """The variables that identify the session to the client and the agent.

    Secrets are here because every process of the container can read a command line.
    """
    home = inside.path(session.home)
    env = {
        **inside.env,
        **session.env,
        "HOME": home,
        "OUBLIETTE_AGENT_HOME": home,
        "OUBLIETTE_SESSION_ID": session.session_id,
        "OUBLIETTE_PROJECT_ID": session.project_id,
        "OUBLIETTE_DEPTH": str(session.depth),
        "OUBLIETTE_WORKSPACE": inside.path(session.cwd),
        "OUBLIETTE_PAIRING_SECRET": session.pairing_secret,
        "OUBLIETTE_RELAY_SOCKET": inside.relay_socket,
        "OUBLIETTE_OUTAGE_SECONDS": f"{session.outage_seconds:g}",
    }
    if session.api_key is not None:
        env["OUBLIETTE_API_KEY"] = session.api_key
    return env


def client_environment(session: AgentSession, inside: Inside) -> dict[str, str]:
    """The environment of our MCP server, for agents that give it one of its own."""
    everything = base_environment(session, inside)
    names = {"PATH", "LANG", "HOME"}
    return {
        name: value
        for name, value in everything.items()
        if name in names or (name.startswith("OUBLIETTE_") and name not in session.env)
    }


def check_reference(reference: str, place: str) -> None:
    """Refuse a secret in plain text.

    Raises:
        ConfigError: the text is no reference; names `place`, not the text.
    """
    if not REFERENCE.match(reference):
        raise ConfigError(
            f"{place}: a secret is given by reference, not by itself",
            hint="env:NAME, file:/path or credential:NAME",
        )


def check_variables(entries: Sequence[str], section: str) -> None:
    """Check `NAME=VALUE` entries as far as possible without reading a secret.

    Raises:
        ConfigError: an entry has no name, or looks like a secret in plain text.
    """
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"{section}.env: each entry is NAME=VALUE, NAME=env:X, NAME=file:X or"
                " NAME=credential:X"
            )
        if value and looks_secret(name) and not REFERENCE.match(value):
            check_reference(value, f"{section}.env: {name}")


def referred(config: Config) -> set[str]:
    """Return variables whose value an agent's `env` sets by reference."""
    parts = (config.opencode, config.droid, config.acp, *config.acp_agents.values())
    pairs = (entry.partition("=") for part in parts for entry in part.env)
    return {name for name, _, value in pairs if REFERENCE.match(value)}


def environment(
    entries: Sequence[str], section: str, credentials: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return `NAME=VALUE` entries, with references resolved.

    Raises:
        ConfigError: an entry has no name, or its reference cannot be resolved.
    """
    check_variables(entries, section)
    found: dict[str, str] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if REFERENCE.match(value):
            value = secret(value, f"{section}.env: {name}", credentials)
        found[name] = value
    return found


def secret(reference: str, place: str, credentials: Mapping[str, str] | None = None) -> str:
    """Resolve as `resolve` does; `place` prefixes the error."""
    try:
        return resolve(reference, credentials=credentials)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", hint=error.hint) from error


def resolve(
    reference: str,
    environ: Mapping[str, str] = os.environ,
    credentials: Mapping[str, str] | None = None,
) -> str:
    """The secret that `env:NAME`, `file:PATH` or `credential:NAME` refers to.

    Args:
        reference: the reference.
        environ: the server's environment.
        credentials: secrets granted to the session, by name.

    Raises:
        ConfigError: the reference is malformed or cannot be resolved; never names the secret.
    """
    kind, _, name = reference.partition(":")
    if kind == "credential":
        if name in (credentials or {}):
            return (credentials or {})[name]
        raise ConfigError(
            f"the credential {name} is not given to this project",
            hint=f"projects, users and agents of [credentials.{name}] determine who receives it",
        )
    if kind == "env":
        found = environ.get(name)
        if not found:
            raise ConfigError(f"the environment variable {name} is not set")
        return found
    if kind == "file":
        return _read(name)
    raise ConfigError(
        "a secret is given by reference, not by itself", hint="env:NAME or file:/path"
    )


def _read(name: str) -> str:
    """Read a regular file; one that could block the server is refused."""
    try:
        fd = os.open(
            expanded(name, "a file of a secret"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        )
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ConfigError(f"{name} cannot be read: it is no plain file")
        with os.fdopen(fd, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    try:
        text = data[:_LARGEST].decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be read: it is not UTF-8") from None
    if len(data) > _LARGEST or not text or "\0" in text:
        raise ConfigError(f"{name} cannot be used: it is empty, or too large for a secret")
    return text
