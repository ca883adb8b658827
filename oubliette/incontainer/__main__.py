"""What the zipapp runs: `host`, `relay`, `client`, `bridge`, `opencode`, `opencode-acp` or
`scripted-agent`.

Each imports only its own modules: an agent waits for this start.
"""

from __future__ import annotations

import sys

BESIDE_AGENTS = ("client", "opencode", "opencode-acp", "scripted-agent")
USAGE = (
    "usage: oubliette.pyz host|relay|client|bridge|opencode|opencode-acp|scripted-agent [options]"
)


def main() -> int:
    """Run the subcommand; returns the exit code."""
    command, *arguments = sys.argv[1:] or [""]
    if command in ("host", "relay"):
        from . import host

        return host.main(arguments, relay=command == "relay")
    if command in BESIDE_AGENTS:
        from . import bytecode

        bytecode.keep(sys.argv[0])
    if command == "client":
        from . import client

        sys.argv[1:] = arguments
        return client.main() or 0
    if command == "opencode":
        from . import opencode_bridge

        return opencode_bridge.main(arguments)
    if command == "opencode-acp":
        from . import opencode_exec

        return opencode_exec.main(arguments)
    if command == "bridge":
        from . import bridge

        return bridge.main(arguments)
    if command == "scripted-agent":
        from . import scripted_agent

        sys.argv[1:] = arguments
        return scripted_agent.main() or 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
