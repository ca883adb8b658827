"""The exit codes of the whole tree of errors."""

from __future__ import annotations

from oubliette.api import control
from oubliette.errors import OublietteError


def exit_codes(kind: type[OublietteError] = OublietteError) -> set[int]:
    """The exit codes of a class of errors and of those below it."""
    assert control.NoServer.exit_code  # in the tree once its module is imported, as it is here
    return {kind.exit_code}.union(*map(exit_codes, kind.__subclasses__()))
