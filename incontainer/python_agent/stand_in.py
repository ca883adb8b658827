"""Stand-in for the package `oubliette` inside a container, for a module that also holds a program.

A user's file imports `oubliette` for its agent and for the program beside it. The program does not
run here, but its definitions are executed. `agent` and `tool` return their function, `ToolFailed`
is what `turn.call` raises; any other name is a placeholder, for definitions to use. The package
itself, if the image has it, is not used: a module behaves the same in every image.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

from .tool_client import ToolRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PACKAGE = "oubliette"
PROGRAMS = frozenset(("open", "connect", "sync"))  # what runs a program instead of defining it


class ProgramInContainer(Exception):
    """A module runs its program when it is imported for its agent."""


class _PlaceholderKind(type):
    """Class of placeholder classes: their attributes are placeholders too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(f"{cls.__name__}.{name}")


class _Placeholder(Exception, metaclass=_PlaceholderKind):
    """A name of the package that only a program uses: fit to decorate, to inherit, to annotate.

    An exception, because many of the names are: `except oubliette.NotFound` catches it.
    """

    def __new__(cls, *given: Any, **_named: Any) -> Any:
        # a decorator, or what one with arguments returned: the function stays as it is
        if len(given) == 1 and callable(given[0]):
            return given[0]
        return super().__new__(cls, *given)

    def __init__(self, *_given: Any, **_named: Any) -> None:
        """Take any arguments."""

    def __call__(self, *given: Any, **_named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(name)


def placeholder(name: str) -> Any:
    """A placeholder for a name of the package, a class of its own."""
    short = name.rpartition(".")[2]
    if short in PROGRAMS:
        return _Program(short)
    return _PlaceholderKind(short, (_Placeholder,), {})


class _Program:
    """`oubliette.open` and its like, which no module may use while it is imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_given: Any, **_named: Any) -> Any:
        raise ProgramInContainer(
            f"oubliette.{self._name} runs while the agent's module is imported in its container:"
            ' put the program under `if __name__ == "__main__":`'
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Program(f"{self._name}.{name}")


class StandInModule(types.ModuleType):
    """`oubliette`, or one of its modules: any name can be imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = placeholder(name)
        setattr(self, name, made)  # the same class each time
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of the package and all of its modules, before those of the image."""

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Add the names that agents use."""
        vars(module).update(agent=_decorator, tool=_decorator, ToolFailed=ToolRefused)
        vars(module).update(OublietteError=ToolRefused)  # the only one that is raised here


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _decorator(function: Callable[..., Any] | None = None, **_options: Any) -> Callable[..., Any]:
    """A decorated function as it is, with or without options."""
    return _same if function is None else function


def install() -> None:
    """Put the stand-in where `import oubliette` finds it."""
    sys.meta_path.insert(0, _Finder())
