"""Entry point of the zipapp: `host`, `relay`, `files`, `client`, `bridge`, `opencode`,
`opencode-acp`, `scripted-agent` or `python-agent`.

Each imports only its own modules, because an agent waits for this start.
"""

from __future__ import annotations

import sys

BESIDE_AGENTS = ("client", "opencode", "opencode-acp", "scripted-agent", "python-agent")
USAGE = (
    "usage: oubliette.pyz host|relay|files|client|bridge|opencode|opencode-acp|scripted-agent"
    "|python-agent [options]"
)


def main() -> int:
    """Run the subcommand; returns the exit code."""
    command, *arguments = sys.argv[1:] or [""]
    if command in ("host", "relay"):
        from .guest import server

        return server.main(arguments, relay=command == "relay")
    if command == "files":
        from .files import main as files_main

        return files_main.main()
    if command in BESIDE_AGENTS:
        from . import bytecode

        bytecode.keep(sys.argv[0])
    if command == "client":
        from .client import main as client_main

        sys.argv[1:] = arguments
        return client_main.main() or 0
    if command == "opencode":
        from .bridges.opencode import bridge as opencode_bridge

        return opencode_bridge.main(arguments)
    if command == "opencode-acp":
        from .bridges.opencode import agent

        return agent.main(arguments)
    if command == "bridge":
        from .bridges import exec_bridge

        return exec_bridge.main(arguments)
    if command == "scripted-agent":
        from .scripted_agent import main as scripted_agent_main

        sys.argv[1:] = arguments
        return scripted_agent_main.main() or 0
    if command == "python-agent":
        from .python_agent import main as python_agent_main

        return python_agent_main.main(arguments)
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
