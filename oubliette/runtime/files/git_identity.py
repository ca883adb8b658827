"""Who the commits of agents are by, where nobody has said it: `agents.git_name` and `git_email`.

Agents find it in `~/.gitconfig`, which a repository's own configuration, the agent's changes and
variables (`GIT_AUTHOR_NAME` and its like) go before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.config.schema import AgentsConfig

FILE: Final = ".gitconfig"


def gitconfig(agents: AgentsConfig) -> bytes | None:
    """What is in the file; None: commits are by nobody, so git refuses them."""
    if not (agents.git_name and agents.git_email):
        return None
    # Neither can hold a quote, a backslash or a newline (config.py).
    return f'[user]\n\tname = "{agents.git_name}"\n\temail = "{agents.git_email}"\n'.encode()


def variables(agents: AgentsConfig) -> dict[str, str]:
    """The same for a command that has no HOME of its own."""
    if not (agents.git_name and agents.git_email):
        return {}
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", agents.git_name), ("EMAIL", agents.git_email))
    }
