"""Commands `oubliette cluster up | status | drain | down | env`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    note,
    print_fields,
    print_json,
    print_table,
)
from oubliette.user_paths import absolute

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.store.postgres.cluster.cluster_view import ClusterView, NodeView

app = typer.Typer(help="Several machines, or a trial of that on one.", no_args_is_help=True)

KEY_NAME: Final = "cluster up"
Folder = Annotated[
    str | None,
    typer.Option(
        "--folder",
        help="Folder of a trial cluster, with a short path; unset: ~/.oub-trial, of root"
        " /var/lib/oub-trial.",
        show_default=False,
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="OUBLIETTE_STORE__DATABASE",
        help="Database of the cluster, postgresql://HOST/NAME. A password is better kept in"
        " ~/.pgpass: others can read the command line.",
        show_default=False,
        show_envvar=False,
    ),
]


@app.command("up")
def up(  # noqa: PLR0917 - one parameter per option
    nodes: Annotated[int, typer.Option(min=1, max=20, help="Number of nodes.")] = 3,
    local: Annotated[
        bool, typer.Option("--local", help="All on this machine: a trial cluster.")
    ] = False,
    database: Database = None,
    folder: Folder = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65500, help="TCP port of node1, the others follow; 0: free ones."),
    ] = 0,
    output: Output = Format.text,
) -> None:
    """Start a trial cluster on this machine, and print the URL of each node and a key.

    It takes up to a minute, and runs until `oubliette cluster down`. Unless a database is given, a
    PostgreSQL is started for it.
    """
    from oubliette.cli.terminal import progress, stop_signals
    from oubliette.cluster import trial_servers
    from oubliette.errors import InvalidParameter

    if not local:
        raise InvalidParameter(
            "Without --local there is nothing to start here",
            field="--local",
            hint="on real machines run on each: oubliette serve --cluster auto --database …",
        )
    place = _folder(folder)
    stop_signals.interrupt()
    with progress.shown("cluster up") as report:
        started = trial_servers.up(
            place, nodes, database=database or "", first_port=port, report=report
        )
        key = _new_key(place / "node1")
    urls = {each["node"]: str(each["server"].get("url", "")) for each in started["nodes"]}
    if output is Format.json:
        print_json({"folder": str(place), "nodes": urls, "token": key})
        return
    print_fields({**urls, "key": key})
    note(
        f"\nThe key may write, and is not shown again. Others: oubliette token create --scope"
        f" write --home {place / 'node1'}"
    )
    chosen = "" if folder is None else f" --folder {place}"
    note(
        "Any node serves any request, with the key in OUBLIETTE_KEY: oubliette call project_create"
        f" name=shop --url {urls['node1']}"
    )
    note(
        f"Look at it with `oubliette cluster status{chosen}`, and end it with"
        f" `oubliette cluster down{chosen}`."
    )


@app.command("status")
def status(
    database: Database = None,
    folder: Folder = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the nodes with their leases, projects and sessions, and what of Ray runs.

    The nodes are read from the database, also if Ray does not answer. Without --database it is that
    of the trial cluster, else of the home of a node. The failures of nodes are those that their
    agent has seen: of a trial cluster, or of the node whose home is given.
    """
    from oubliette.cluster import trial, trial_servers
    from oubliette.runtime.store.postgres.cluster.cluster_view import cluster_view

    trial_servers.check_packages("psycopg")
    url, place = _database(database, folder, home)
    view = cluster_view(url)
    ray = None
    if place is not None and trial.read(place) is not None:
        ray = trial.status(place)
    agents = ray["nodes"] if ray is not None else _agent_here(database, home)
    if output is Format.json:
        print_json(as_json(view, ray, agents))
        return
    show(view, ray, agents)


@app.command("drain")
def drain(  # noqa: PLR0917 - one parameter per option
    node: Annotated[str, typer.Argument(help="Name of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the node take projects again.")] = False,
    database: Database = None,
    folder: Folder = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Let a node take no more projects, so that it can be ended.

    It is recorded in the database, and the node learns of it in two seconds. It holds over restarts
    of the node, until --undo.
    """
    from oubliette.cluster import trial_servers
    from oubliette.runtime.store.postgres.cluster import cluster_view

    trial_servers.check_packages("psycopg")
    url, _ = _database(database, folder, home)
    cluster_view.drain(url, node, draining=not undo)
    if output is Format.json:
        print_json({"node": node, "draining": not undo})
        return
    note(f"{node} takes projects again." if undo else f"{node} takes no more projects.")


@app.command("down")
def down(
    folder: Folder = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove its folder with all data, too.")
    ] = False,
    output: Output = Format.text,
) -> None:
    """End a trial cluster: its nodes in order, Ray, and the PostgreSQL that was started for it.

    The data stay, and `oubliette cluster up` with the same folder goes on with them.
    """
    from oubliette.cli.terminal import progress
    from oubliette.cluster import trial_servers

    place = _folder(folder)
    with progress.shown("cluster down") as report:
        ended = trial_servers.down(place, purge=purge, report=report)
    if output is Format.json:
        print_json({"folder": str(place), "ended": ended, "purged": purge})
        return
    what = "The cluster has ended" if ended else "No cluster was running"
    note(f"{what}; {place} was removed." if purge else f"{what}; its data are in {place}.")


@app.command("env")
def env(
    head: Annotated[
        bool,
        typer.Option("--head", help="For Ray's head: make the token, and keep Ray's database."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Print the variables that `ray start` needs on a real machine, for the shell.

    The token is the file `ray-token` in the home. Copy it from the head to all machines, with mode
    0600: a process that has it can run code on all of them.
    """
    import shlex

    from oubliette.cluster.environment import ray_environment
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.home import prepare

    folder = find_home(home)
    prepare(folder)
    found = ray_environment(folder, head=head)
    if output is Format.json:
        print_json(found)
        return
    for name, value in found.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


# ---------------------------------------------------------------- parts
def _folder(given: str | None) -> Path:
    from oubliette.cluster.trial_servers import default_folder

    return default_folder() if given is None else absolute(given, "the folder")


def _database(
    database: str | None, folder: str | None, home: str | None
) -> tuple[str, Path | None]:
    """Return the database that is meant, and the folder of the trial cluster that has it, if any.

    Raises:
        ConfigError: none is named anywhere.
        NotFound: the folder that was given has no cluster.
    """
    from oubliette.cluster import trial_servers
    from oubliette.config.loader import find_home, load
    from oubliette.errors import ConfigError

    place = _folder(folder)
    if folder is not None or (not database and home is None and trial_servers.is_cluster(place)):
        return trial_servers.database_of_cluster(place), place
    url = database or load(find_home(home)).config.store.database
    if not url:
        raise ConfigError(
            "There is no trial cluster, and no database of another is configured",
            hint="give --folder of a trial cluster, --database, or --home of a node",
        )
    trial_servers.check_database(url)
    return url, None


def _agent_here(database: str | None, home: str | None) -> list[dict[str, Any]]:
    """Return what the agent of the node in the home has reported of it, if that is asked for."""
    from oubliette.cluster.agent_state import latest_state
    from oubliette.config.loader import find_home

    found = None if database else latest_state(find_home(home))
    return [] if found is None else [found]


def _new_key(home: Path) -> str:
    from oubliette.api.control import ControlClient

    with ControlClient(home) as server:
        made = server.call("token_create", {"name": KEY_NAME, "scope": "write"})
    return str(made["token"])


def show(view: ClusterView, ray: dict[str, Any] | None, agents: list[dict[str, Any]]) -> None:
    """Print the table of nodes, and below it what is not in order; as for `as_json`."""
    from oubliette.cluster.agent_state import troubles_of

    print_table(
        ("NODE", "STATE", "LEASE", "EPOCH", "PROJECTS", "LIVE SESSIONS", "URL"),
        [_row(each) for each in view.nodes],
    )
    if view.held_events:
        note(
            f"log: {view.held_events} events wait for a transaction that is"
            f" {view.open_seconds:.1f} s old"
        )
    if ray is not None:
        note(
            f"Ray: {'runs' if ray['running'] else 'has ended'} at {ray['address'] or 'nowhere'};"
            f" agent: {'runs' if ray['agent'] else 'has ended'}"
        )
    for each in agents:
        for line in troubles_of(each, time.time()):
            note(line)


def _row(view: NodeView) -> tuple[object, ...]:
    node = view.node
    left = node.lease_seconds
    lease = f"{left:.0f} s" if left > 0 else f"ended {-left:.0f} s ago"
    return (
        node.name,
        node.state,
        lease,
        node.epoch,
        view.projects,
        view.live_sessions,
        node.address,
    )


def as_json(
    view: ClusterView, ray: dict[str, Any] | None, agents: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what `cluster status -o json` prints.

    Args:
        view: The cluster in its database.
        ray: State of the trial cluster's processes; None: it is no trial cluster.
        agents: State of each node, as its agent has last seen it.
    """
    failures = {each["node"]: each.get("failure") for each in agents}
    return {
        "nodes": [
            {
                "node": each.node.name,
                "state": each.node.state,
                "draining": each.node.state == "draining",
                "lease_seconds": round(each.node.lease_seconds, 3),
                "epoch": each.node.epoch,
                "uptime_seconds": round(each.node.uptime_seconds, 3),
                "projects": each.projects,
                "live_sessions": each.live_sessions,
                "url": each.node.address,
                "failure": failures.get(each.node.name),
            }
            for each in view.nodes
        ],
        "log": {
            "held_events": view.held_events,
            "open_seconds": round(view.open_seconds, 3),
        },
        "ray": ray,
    }
