"""Entry point of the command `oubliette` (docs/command-line.md).

Imports of a command are made when it runs: `--help` and completion must not wait for a server's.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer

from oubliette.cli import (
    apply,
    audit,
    call,
    cluster,
    config,
    cp,
    diff,
    git_credential,
    image,
    merge,
    overview,
    permit,
    port,
    project,
    restore,
    session,
    store,
    token,
)
from oubliette.cli.client import completion
from oubliette.cli.doctor import command
from oubliette.cli.run import attach, top
from oubliette.cli.run import command as run_command
from oubliette.cli.run import exec as exec_command
from oubliette.cli.serve import command as serve_command
from oubliette.cli.serve import running_server
from oubliette.cli.setup import init, mcp
from oubliette.cli.terminal import standard_streams, usage
from oubliette.cli.terminal.command_hints import in_commands
from oubliette.cli.terminal.output import (
    Colour,
    Format,
    Output,
    choose,
    choose_colour,
    paged,
    print_entries,
    print_error,
    print_json,
)
from oubliette.cli.terminal.plain_values import LeanGroup
from oubliette.errors import OublietteError
from oubliette.version import __version__

EXAMPLES: Final[dict[str, str]] = {
    "run": "oubliette run ./shop 'Fix the failing test' --max-cost 2",
    "attach": "oubliette attach 3k9x",
    "exec": "oubliette exec -it 3k9x sh",
    "top": "oubliette top --home ./trial",
    "serve": "oubliette serve --port 8080 --agent opencode",
    "status": "oubliette status -o json",
    "stop": "oubliette stop --agents end",
    "restore": "oubliette restore 3k9x --turn 2",
    "diff": "oubliette diff 3k9x --turn 2 --stat",
    "drop": "oubliette drop 3k9x",
    "fork": "oubliette fork 3k9x 'Try it without the ORM' --at 2 --count 3",
    "logs": "oubliette logs --follow --type permission_request",
    "permit": "oubliette permit 3k9x --deny",
    "ps": "oubliette ps --all -n 50",
    "tree": "oubliette tree 3k9x",
    "usage": "oubliette usage --by model --since 7d",
    "port": "oubliette port 3k9x 8000",
    "compare": "oubliette compare 3k9x 7m2p",
    "merge": "oubliette merge 3k9x --into fix/test",
    "push": "oubliette push 3k9x origin fix/test",
    "export": "oubliette export 3k9x fix.patch",
    "apply": "oubliette apply 3k9x",
    "git-credential": "oubliette git-credential get",
    "docs": "oubliette docs connecting",
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
    "workspace path": "oubliette workspace path shop",
    "image list": "oubliette image list",
    "store migrate": "oubliette store migrate --to postgresql://db/oubliette",
    "cluster up": "oubliette cluster up --nodes 3 --local",
    "cluster status": "oubliette cluster status -o json",
    "cluster drain": "oubliette cluster drain node2",
    "cluster down": "oubliette cluster down --purge",
    "cluster env": "oubliette cluster env --head",
    "config show": "oubliette config show --sources",
    "config schema": "oubliette config schema",
    "init": "oubliette init --yes",
    "mcp setup": "oubliette mcp setup claude",
    "config get": "oubliette config get server.port",
    "config set": "oubliette config set opencode.api_key env:ANTHROPIC_API_KEY",
    "config unset": "oubliette config unset server.port",
    "config edit": "oubliette config edit",
    "home adopt": "oubliette home adopt --home ./copy",
}
"""Words of the command → the example."""


def show_in(app: typer.Typer, path: str = "") -> None:
    """Add its example to the help of every command below `app`."""
    for each in app.registered_commands:
        assert each.name is not None
        example = EXAMPLES.get(f"{path} {each.name}".strip())
        if example is not None:
            each.epilog = f"Example: {example}"
    for group in app.registered_groups:
        assert group.typer_instance is not None
        show_in(group.typer_instance, f"{path} {group.name}".strip())


app = typer.Typer(
    name="oubliette",
    cls=LeanGroup,
    help="Run coding agents in containers, with tools of the program that starts them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with local variables may hold keys
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 denied, 5 timeout, 6 limit,"
    " 7 exists already, 8 no server, 9 an answer is needed, 124 out of time, 130 interrupted."
    "\n\nDocuments: oubliette docs.",
)
app.command("run")(run_command.run)
app.command("attach")(attach.attach)
app.command("exec", context_settings={"allow_interspersed_args": False})(exec_command.exec_)
app.command("top")(top.top)
app.command("serve")(serve_command.serve)
app.command("status")(running_server.status)
app.command("stop")(running_server.stop)
app.command("init")(init.init)
app.command("restore")(restore.restore)
app.command("diff")(diff.diff)
app.command("drop")(apply.drop)
app.command("port")(port.port)
app.command("permit")(permit.permit)
app.command("ps")(overview.ps)
app.command("tree")(overview.tree)
app.command("usage")(overview.usage)
app.command("logs")(overview.logs)
app.command("compare")(diff.compare)
app.command("fork")(restore.fork)
app.command("merge")(merge.merge)
app.command("push")(merge.push)
app.command("export")(diff.export)
app.command("apply")(apply.apply)
app.command("git-credential")(git_credential.git_credential)
app.command("doctor")(command.doctor)
app.command("audit")(audit.audit)
app.command("cp")(cp.cp)
app.command("call", add_help_option=False)(call.call)
app.add_typer(token.app, name="token")
app.add_typer(project.app, name="project")
app.add_typer(project.workspace_app, name="workspace")
app.add_typer(session.app, name="session")
app.add_typer(image.app, name="image")
app.add_typer(store.app, name="store")
app.add_typer(cluster.app, name="cluster")
app.add_typer(config.app, name="config")
app.add_typer(mcp.app, name="mcp")
app.add_typer(restore.home_app, name="home")


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"oubliette {__version__}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
    home: Annotated[
        str | None,
        typer.Option("--home", metavar="DIR", help="Folder of the server, of any command."),
    ] = None,
    output: Annotated[
        Format | None, typer.Option("--output", "-o", help="Format of the result of any command.")
    ] = None,
    color: Annotated[
        Colour, typer.Option(help="Colours; auto: on a terminal without NO_COLOR.")
    ] = Colour.auto,
) -> None:
    """Options of all commands: they stand before the command or behind it."""
    del version, home, output, color  # `usage.arranged` has put them where they take effect


@app.command("docs")
def docs(
    document: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Document; without it, they are listed.")
    ] = None,
    man: Annotated[
        bool,
        typer.Option("--man", help="As a page for man; without NAME, that of the commands."),
    ] = False,
    output: Output = Format.text,
) -> None:
    """List the documents of this release, or read one."""
    from oubliette.cli.terminal import documents

    if man:
        from oubliette.cli.terminal.man_page import COMMANDS, man_page

        name = document or COMMANDS
        page = man_page(name, documents.text(name))
        if output is Format.json:
            print_json({"name": name, "man": page})
        else:
            sys.stdout.write(page)
        return
    if document is None:
        listed = [{"name": each, "title": documents.title(each)} for each in documents.names()]
        if output is Format.json:
            print_json({"documents": listed})
        else:
            print_entries((("NAME", "name"), ("TITLE", "title")), listed)
        return
    text = documents.text(document)
    if output is Format.json:
        print_json({"name": document, "text": text})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        with paged() as to:
            Console(file=to).print(Markdown(text))
    else:
        sys.stdout.write(text)


@app.command(
    "demo",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def demo(context: typer.Context) -> None:
    """Show the main features: caller tools, children, keys, a server that is killed."""
    import importlib

    code: int | None = importlib.import_module("oubliette.cli.demo.command").run(list(context.args))
    raise typer.Exit(code or 0)


show_in(app)


@functools.cache
def _command(first: str) -> Any:
    """Return the parser of the command or group `first`, or of all of them.

    Parsers are made from signatures, and to make all of them takes longer than most commands run.
    So those that the help of the program lists have no parameters.
    """
    if not first:
        return typer.main.get_command(app)
    alone = copy.copy(app)
    if first in _HELP:
        alone.registered_commands = [_listed(each) for each in app.registered_commands]
        alone.registered_groups = [_empty(each) for each in app.registered_groups]
        return typer.main.get_command(alone)
    alone.registered_commands = [each for each in app.registered_commands if each.name == first]
    alone.registered_groups = [each for each in app.registered_groups if each.name == first]
    return typer.main.get_command(alone)


_HELP: Final = ("--help", "-h")


def _listed(command: Any) -> Any:
    """A command with its summary and without parameters."""

    def callback() -> None:
        pass

    callback.__doc__ = command.callback.__doc__
    listed = copy.copy(command)
    listed.callback = callback
    return listed


def _empty(group: Any) -> Any:
    """A group with its summary and without commands."""
    empty = copy.copy(group)
    empty.typer_instance = copy.copy(group.typer_instance)
    empty.typer_instance.registered_commands = []
    empty.typer_instance.registered_groups = []
    return empty


def _first(arguments: list[str]) -> str:
    """The command or group that is named first, or the help; empty: it names none."""
    known = {each.name for each in (*app.registered_commands, *app.registered_groups)}
    known.update(_HELP)
    first = arguments[0] if arguments else _HELP[0]
    return first if first in known else ""


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code that `docs/command-line.md` documents."""
    standard_streams.repair()
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    finally:
        standard_streams.flush()


def _run(given: list[str]) -> NoReturn:
    with_groups = {each.name for each in app.registered_groups if each.name is not None}
    given, colour = usage.arranged(given, with_groups)
    if given[:1] == ["help"]:  # as git, gh and docker have it
        given = [*given[1:], "--help"]
    as_json = usage.wants_json(given)
    if as_json:
        choose(Format.json)
    code: object = 0
    try:
        # The parser's own error output is text; for programs its errors are handled here.
        completes = completion.VARIABLE in os.environ
        choose_colour(usage.colour_named(colour))
        parser = _command(_first(completion.words() if completes else given))
        if completes:
            completion.offer(parser)
        try:
            code = parser(args=given, prog_name="oubliette", standalone_mode=not as_json)
        finally:
            sys.stdout.flush()
    except usage.ParserError as error:
        refused = usage.usage_error(error)
        print_error(refused)
        sys.exit(refused.exit_code)
    except OublietteError as error:
        if given[:1] != ["call"]:
            error.hint = in_commands(error.hint)
        print_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader has closed the stream. Nothing more can be written to it, not even at exit.
        standard_streams.flush()
        sys.exit(0)
    except OSError as error:
        # What the machine refused: a full disk, a folder without access. No traceback helps there.
        standard_streams.flush()
        print_error(usage.refused(error))
        sys.exit(1)
    except (RuntimeError, MemoryError) as error:
        from oubliette.runtime.start_and_stop import no_room

        refused = no_room(error)
        if refused is None:
            raise
        print_error(refused)
        sys.exit(refused.exit_code)
    except UnicodeDecodeError as error:
        print_error(usage.not_text(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    run()
