"""Commands that call one tool, by what differs between them.

Common to all are `--home`, `-o`, the completion of ids, the call, and that `-o json` prints the
tool's answer as it is. The words of options are the command line's own: tools describe their
parameters to models. That both fit is tested, not computed, as loading the tools takes longer than
most commands run.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self, cast

import typer

from oubliette.cli.client.calls import call, pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.client.tool_server import CALL_SECONDS
from oubliette.cli.terminal.output import Format, Home, Output, confirm, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.cli.client.resolver import Kind

    Values = dict[str, Any]
    Value = Callable[[str | None, Any, Values], Any]
    """Makes what is sent of the home, of what is typed, and of what parameters before it send."""

QUIET_SECONDS: Final = 600.0
"""Time without progress of a tool that reports it."""


class CommandParameter(NamedTuple):
    """Argument or option of a command, made by one of the functions below."""

    name: str
    info: Any
    kind: Any
    default: Any
    sent_as: str
    """Name of the tool's parameter; empty: it is not sent."""
    value: Value | None = None


class Answer(NamedTuple):
    """Answer of a tool, and what it was asked."""

    given: Values
    """As typed."""
    sent: Values
    done: Values
    home: str | None
    """As given on the command line."""


def _parameter(
    make: Callable[..., Any],
    name: str,
    text: str,
    sent_as: str | None = None,
    value: Value | None = None,
    *,
    names: tuple[str, ...] = (),
    kind: Any,
    default: Any,
    **more: Any,
) -> CommandParameter:
    """Return a parameter with this help; `more` is for `make`."""
    sent_as = name if sent_as is None else sent_as
    return CommandParameter(name, make(*names, help=text, **more), kind, default, sent_as, value)


argument = partial(_parameter, typer.Argument, kind=str, default=inspect.Parameter.empty)
option = partial(_parameter, typer.Option, kind=str | None, default=None)


def flag(name: str, text: str, sent_as: str | None = None) -> CommandParameter:
    """An option without a value."""
    names = (f"--{name.replace('_', '-')}",)
    return option(name, text, sent_as, names=names, kind=bool, default=False)


def whole(kind: Kind) -> Value:
    """Return what completes an abbreviated id."""
    return lambda home, given, _: whole_id(home, kind, given)


SESSION: Final = argument(
    "session_id", "Id of the session, which may be abbreviated.", value=whole("session")
)
PROJECT: Final = argument(
    "project",
    "Id of the project, which may be abbreviated, or its name.",
    "project_id",
    whole("project"),
)
YES: Final = option(
    "yes", "Ask nothing at a terminal.", "", names=("--yes", "-y"), kind=bool, default=False
)


def asked_first(question: str) -> Callable[[Values], Values]:
    """Return what has a person confirm a command that deletes; consent to a loss is enough.

    Args:
        question: With the names of parameters in braces.
    """

    def prepare(given: Values) -> Values:
        consents = given["yes"] or given["discard"] is not None
        confirm(question.format_map(given), yes=consents)
        return given

    return prepare


DISCARD: Final = option("discard", "Consent to a loss, as a refusal names it.")


@dataclass(frozen=True)
class ToolCommand:
    """A command that calls one tool.

    It decorates the function that shows a person the answer, whose docstring is its help.
    """

    group: typer.Typer
    name: str
    tool: str
    parameters: tuple[CommandParameter, ...]
    example: str
    """A whole command line."""
    seconds: float | None = None
    """Time for the answer, or for the next progress; an option `timeout` precedes it."""
    progress: Callable[[Values], str] | None = None
    """Returns the name of the operation, whose progress is shown; empty: there is none."""
    entries: str = ""
    """Name of the list that the tool gives in pages; the answer has all of it."""
    prepare: Callable[[Values], Values] | None = None
    """Checks what was typed, and returns it as it is sent."""

    def __call__(self, show: Callable[[Answer], object]) -> Self:
        """Add the command to its group."""

        def run(*, home: str | None, output: Format, **given: Any) -> None:
            sent = self._sent(home, self.prepare(given) if self.prepare else given)
            done = self._done(home, given, sent)
            if output is Format.json:
                print_json(done)
            else:
                show(Answer(given, sent, done, home))

        parts = [
            (each.name, Annotated[each.kind, each.info], each.default) for each in self.parameters
        ]
        parts += [("home", Home, None), ("output", Output, Format.text)]
        part = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        cast("Any", run).__signature__ = inspect.Signature(
            [part(name, default=default, annotation=kind) for name, kind, default in parts]
        )
        epilog = f"Example: {self.example}"
        self.group.command(self.name, help=show.__doc__, epilog=epilog)(run)
        return self

    def _sent(self, home: str | None, given: Values) -> Values:
        known = {each.name: each for each in self.parameters}
        sent: Values = {}
        for name, value in given.items():
            each = known.get(name, CommandParameter(name, None, None, None, name))
            if each.sent_as:
                makes = each.value if value is not None else None
                sent[each.sent_as] = value if makes is None else makes(home, value, sent)
        return sent

    def _done(self, home: str | None, given: Values, sent: Values) -> Values:
        if self.entries:
            return {self.entries: pages(home, self.tool, self.entries, sent)}
        name = self.progress(given) if self.progress else ""
        seconds = self.seconds or (QUIET_SECONDS if name else CALL_SECONDS)
        if given.get("timeout") is not None:
            seconds = given["timeout"]
        return call(home, self.tool, sent, seconds, name)
