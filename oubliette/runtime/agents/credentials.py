"""Secrets of the server's `[credentials]` granted to a session.

Grants are in the server's configuration and nowhere else: callers and agents may name a secret, and
are refused if it was not granted.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.environment import resolve
from oubliette.runtime.guest.messages import SecretFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.config.agent_config import AgentConfig
    from oubliette.config.schema import CredentialConfig


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets granted to one session. Never stored: read at the start of its agent."""

    values: dict[str, str] = {}
    """By the credential's name."""
    env: dict[str, str] = {}
    """By the agent's environment variable."""
    files: tuple[SecretFile, ...] = ()


def given(
    credentials: Mapping[str, CredentialConfig],
    *,
    project: tuple[str, str],
    user: str | None,
    agent: str,
) -> Given:
    """Read the granted secrets of a session. Blocks; call it in a worker thread.

    Args:
        credentials: the server's, by name.
        project: the project's id and its name.
        user: the `external_id` of its workspace.
        agent: the agent's name.

    Raises:
        ConfigError: a reference cannot be resolved; names it, never its value.
    """
    values: dict[str, str] = {}
    env: dict[str, str] = {}
    files: list[SecretFile] = []
    for name, credential in sorted(credentials.items()):
        if (
            not {"*", *project} & set(credential.projects)
            or (credential.users and user not in credential.users)
            or (credential.agents and agent not in credential.agents)
        ):
            continue
        try:
            values[name] = value = resolve(credential.value)
        except ConfigError as error:
            raise ConfigError(
                f"credentials.{name} ({credential.value}): {error.message}", hint=error.hint
            ) from error
        if credential.variable is None:
            continue
        if credential.as_file:
            data = base64.b64encode(value.encode()).decode()
            files.append(SecretFile(variable=credential.variable, name=name, data=data))
        else:
            env[credential.variable] = value
    return Given(values=values, env=env, files=tuple(files))


def filled(config: AgentConfig, secrets: Mapping[str, str]) -> dict[str, Any]:
    """The MCP servers of a configuration, with secrets substituted.

    Raises:
        ConfigError: a server names a credential that was not granted.
    """

    def fill(name: str) -> str:
        if name not in secrets:
            raise ConfigError(
                f"an MCP server names the credential {name}, which is not given to this project",
                hint=f"projects, users and agents of [credentials.{name}] determine that",
            )
        return secrets[name]

    return {
        name: msgspec.to_builtins(server.filled(fill)) for name, server in config.enabled.items()
    }
