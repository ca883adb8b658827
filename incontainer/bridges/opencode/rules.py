"""A repository's rules for agents, named in OpenCode's settings by their path.

OpenCode that reads no settings of a repository loses its `AGENTS.md`, too. Regular files in the
workspace are named; a link that leads out of it would expose its target to a model.
"""

from __future__ import annotations

import json
import os
import stat

NAMES = ("AGENTS.md", "CLAUDE.md", "CONTEXT.md")  # OpenCode's own order; the first one counts
LARGEST = 256 * 1024  # bytes of rules, which are in every prompt


def with_rules(content: str, workspace: str) -> tuple[str, list[str]]:
    """Return the settings with the rules of `workspace`, and the reasons why rules were left out.

    If there are none yet, `AGENTS.md` is named: OpenCode reads it with every prompt.
    """
    if not workspace:
        return content, []
    notes: list[str] = []
    chosen = os.path.join(workspace, NAMES[0])
    for name in NAMES:
        path = os.path.join(workspace, name)
        if not os.path.lexists(path):
            continue
        real, reason = _plain(path, workspace)
        if reason:
            notes.append(f"{name} is not read: {reason}")
            chosen = ""
            continue
        chosen = real
        break
    if not chosen:
        return content, notes
    settings = json.loads(content)
    settings["instructions"] = [*settings.get("instructions", ()), chosen]
    return json.dumps(settings), notes


def _plain(path: str, workspace: str) -> tuple[str, str]:
    """Return the real path of a file, and the reason not to use it."""
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
    except OSError as error:
        return path, os.strerror(error.errno or 0)
    root = os.path.realpath(workspace)
    if os.path.commonpath([root, real]) != root:
        return path, "it is a link that leads out of the workspace"
    if not stat.S_ISREG(status.st_mode):
        return path, "it is no plain file"
    if status.st_size > LARGEST:
        return path, f"it has {status.st_size} bytes, and at most {LARGEST} are taken"
    return real, ""
