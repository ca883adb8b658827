"""Files that an agent's function needs in a container: its cell, its module, or its package.

Imports of other distributions are not followed: the image has them, or not.

The function travels alone. Modules that it uses are imported there under the same names, plain
values are written out, and anything else is refused.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import io
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator


class BadAgent(OublietteError, ValueError):
    """A function cannot be an agent; the message names it, the hint has the remedy."""

    code = "bad_agent"
    exit_code = 2


CELL: Final = "oubliette_agent_cell"
"""Name of the module in the container."""
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def cell_source(function: Callable[..., Any], name: str) -> bytes:
    """Return a module with the function in it, and the names of other cells that it uses.

    Raises:
        BadAgent: there is no source, or the function uses something that cannot travel.
    """
    bare = inspect.unwrap(function)
    try:
        lines, _ = inspect.getsourcelines(bare)
    except (OSError, TypeError) as error:
        raise BadAgent(
            f"agent {name}: its source is in no file",
            hint="write the function into a file, and import it from there",
        ) from error
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("async def "))
    head = ["from __future__ import annotations"]
    head += [_bound(each, bare.__globals__, name) for each in sorted(_names(bare))]
    body = textwrap.dedent("".join(lines[start:]))
    return "\n".join([*head, "", body]).encode()


def _names(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's module that it uses, in its inner functions too."""
    found = set(_loaded(function.__code__))
    return {each for each in found if each not in vars(builtins)}


def _loaded(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and isinstance(step.argval, str):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)


def _bound(used: str, there: dict[str, Any], name: str) -> str:
    """Return the line that binds a name in the container as it is bound here."""
    missing = object()
    value = there.get(used, missing)
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {used}"
    if type(value) in _PLAIN:
        return f"{used} = {value!r}"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module not in {None, "__main__"} and qualified.isidentifier():
        return f"from {module} import {qualified} as {used}"
    raise BadAgent(
        f"agent {name}: it uses {used}, which is defined in another cell",
        hint="define it inside the function, or write both into a file and import the agent",
    )


MOST_BYTES: Final = 16 << 20
"""Of all files of an agent: they are written into the HOME of each session at each start."""
MAIN: Final = "__main__"
_DAY_ONE: Final = (1980, 1, 1, 0, 0, 0)  # no date: the same files make the same archive


class AgentFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one agent, and where its function is in them."""

    files: Mapping[str, bytes]
    """Path in the archive → content."""
    module: str
    """Module to import; `__main__`: `file` is executed under another name."""
    file: str
    """Path of the module in the archive."""
    function: str
    """Qualified name of the function."""

    def archive(self) -> bytes:
        """Return the files as a zip."""
        import zipfile  # here: a program that only defines an agent needs none

        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in sorted(self.files.items()):
                archive.writestr(zipfile.ZipInfo(path, _DAY_ONE), content)
        return made.getvalue()


def program_packages() -> tuple[Path, ...]:
    """Return the folders in which the packages of this program are installed."""
    paths = sysconfig.get_paths()
    found = dict.fromkeys(Path(paths[name]) for name in ("purelib", "platlib"))
    return tuple(folder for folder in found if folder.is_dir())


def files_of(function: Callable[..., Any], extra: Sequence[str], name: str) -> AgentFiles:
    """Return the files for a function.

    Args:
        function: The agent's function, at the top of its module.
        extra: Files and folders beside the module's file.
        name: The agent's name, for errors.

    Raises:
        BadAgent: a file is missing or cannot be read, all are too large, or the function's source
            is not there.
    """
    qualified = function.__qualname__
    module = sys.modules.get(function.__module__)
    file = _file(module, function)
    if module is None or file is None:
        source = cell_source(function, name)
        path = f"{CELL}.py"
        return AgentFiles(files={path: source}, module=CELL, file=path, function=qualified)
    imported = _imported_name(module)
    package = _package(imported)
    files: dict[str, bytes] = {}
    if package is None:
        path = file.name
        files[path] = _read(file, name)
        imported = imported if imported == file.stem else MAIN
    else:
        root, prefix = package
        path = (prefix / PurePosixPath(file.relative_to(root).as_posix())).as_posix()
        _add(files, _below(root), root, prefix, name)
    beside = PurePosixPath(path).parent
    for each in extra:
        _add_extra(files, file.parent, each, beside, name)
    return AgentFiles(files=files, module=imported, file=path, function=qualified)


def _file(module: ModuleType | None, function: Callable[..., Any]) -> Path | None:
    """Return the file of a function's module; None for a notebook's cell or a prompt's line."""
    written = Path(inspect.unwrap(function).__code__.co_filename)
    named = getattr(module, "__file__", None)
    if named is None or not written.is_file():
        return None
    return Path(named).resolve()


def _imported_name(module: ModuleType) -> str:
    """Return the name by which a module can be imported; `__main__` for a script."""
    spec = module.__spec__
    return module.__name__ if spec is None else spec.name


def _package(name: str) -> tuple[Path, PurePosixPath] | None:
    """Return the folder of the outermost package with code of a module, and its imported path.

    None: the module is in no package. Folders above that have no `__init__.py` may be shared with
    other distributions, and are not shipped.
    """
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        package = sys.modules.get(".".join(parts[:count]))
        file = getattr(package, "__file__", None)
        if file is not None and hasattr(package, "__path__"):
            return Path(file).resolve().parent, PurePosixPath(*parts[:count])
    return None


def _below(root: Path) -> Iterator[Path]:
    """Iterate over the files of a folder; not over compiled ones and hidden ones."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden:
            yield path


def _add(
    files: dict[str, bytes], paths: Iterator[Path], root: Path, prefix: PurePosixPath, name: str
) -> None:
    total = sum(map(len, files.values()))
    for path in paths:
        content = _read(path, name)
        total += len(content)
        if total > MOST_BYTES:
            raise BadAgent(
                f"agent {name}: the files in {root} take more than {MOST_BYTES >> 20} MiB",
                hint="define the agent in a small module or package of its own; large files belong"
                " into the image or the workspace",
            )
        files[(prefix / PurePosixPath(path.relative_to(root).as_posix())).as_posix()] = content


def _add_extra(
    files: dict[str, bytes], folder: Path, entry: str, beside: PurePosixPath, name: str
) -> None:
    inner = PurePosixPath(entry)
    if inner.is_absolute() or ".." in inner.parts or not inner.parts:
        raise BadAgent(
            f"agent {name}: files: {entry!r} is not below {folder}",
            hint="name files and folders beside the module of the function, relative to it",
        )
    path = folder / entry
    if path.is_dir():
        _add(files, _below(path), path, beside / inner, name)
    elif path.is_file():
        _add(files, iter((path,)), path.parent, (beside / inner).parent, name)
    else:
        raise BadAgent(
            f"agent {name}: files: there is no {path}",
            hint=f"paths are relative to {folder}",
        )


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadAgent(f"agent {name}: {path} cannot be read: {error.strerror}") from error
