"""Example of every command, as its help shows it. Each is a valid command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

EXAMPLES: Final[dict[str, str]] = {
    "run": "oubliette run 'Fix the failing test' --branch main",
    "serve": "oubliette serve --port 8080 --agent opencode",
    "stop": "oubliette stop",
    "restore": "oubliette restore 3k9x --turn 2",
    "diff": "oubliette diff 3k9x --turn 2 --stat",
    "drop": "oubliette drop 3k9x",
    "fork": "oubliette fork 3k9x 'Try it without the ORM' --at 2 --count 3",
    "logs": "oubliette logs --follow --type permission_request",
    "permit": "oubliette permit 3k9x --deny",
    "port": "oubliette port 3k9x 8000",
    "compare": "oubliette compare 3k9x 7m2p",
    "merge": "oubliette merge 3k9x --into fix/test",
    "push": "oubliette push 3k9x origin fix/test",
    "export": "oubliette export 3k9x fix.patch",
    "apply": "oubliette apply 3k9x",
    "git-credential": "oubliette git-credential get",
    "doctor": "oubliette doctor --quick",
    "demo": "oubliette demo --agent scripted",
    "audit": "oubliette audit --since 1h --failed",
    "cp": "oubliette cp ./data 3k9x:data",
    "call": "oubliette call project_list limit=10 --url http://127.0.0.1:8080/mcp",
    "token create": "oubliette token create --scope write --name editor",
    "session list": "oubliette session list --project shop --status running",
    "session why": "oubliette session why 3k9x",
    "session spawn": "oubliette session spawn shop 'Fix the failing test' --follow",
    "session message": "oubliette session message 3k9x 'Now add a test' --follow",
    "session end": "oubliette session end 3k9x --tree",
    "session logs": "oubliette session logs 3k9x --follow",
    "image list": "oubliette image list",
    "store migrate": "oubliette store migrate --to postgresql://db/oubliette",
    "cluster up": "oubliette cluster up --nodes 3 --local",
    "cluster status": "oubliette cluster status -o json",
    "cluster drain": "oubliette cluster drain node2",
    "cluster down": "oubliette cluster down --purge",
    "cluster env": "oubliette cluster env --head",
    "config show": "oubliette config show --sources",
    "config schema": "oubliette config schema",
}
"""Words of the command → the example."""


def show_in(app: typer.Typer, path: str = "") -> None:
    """Add its example to the help of every command below `app`."""
    for command in app.registered_commands:
        assert command.name is not None
        example = EXAMPLES.get(f"{path} {command.name}".strip())
        if example is not None:
            command.epilog = f"Example: {example}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        show_in(group.typer_instance, f"{path} {group.name}".strip())
