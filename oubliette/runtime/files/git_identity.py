"""Default author of agents' commits: `agents.git_name` and `git_email`.

Agents find it in `~/.gitconfig`; a repository's own configuration, the agent's changes and
variables (`GIT_AUTHOR_NAME` and its like) override it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.config.schema import AgentsConfig

FILE: Final = ".gitconfig"


def gitconfig(agents: AgentsConfig) -> bytes | None:
    """Return the file's content; None: no author is configured, so git refuses to commit."""
    if not (agents.git_name and agents.git_email):
        return None
    # Neither can hold a quote, a backslash or a newline (config.py).
    return f'[user]\n\tname = "{agents.git_name}"\n\temail = "{agents.git_email}"\n'.encode()


def variables(agents: AgentsConfig) -> dict[str, str]:
    """The same as variables, for a command that has no HOME of its own."""
    if not (agents.git_name and agents.git_email):
        return {}
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", agents.git_name), ("EMAIL", agents.git_email))
    }
