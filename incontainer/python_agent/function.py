"""Function of an agent: its files are unpacked, and its module is imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import zipfile

from . import stand_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAIN = "__main__"
AS_MODULE = "oubliette_agent_script"
"""Name of a script's module here; a name other than `__main__`, so that its program does not run"""


class Unimportable(Exception):
    """The function of the agent is not there; the message has the reason and a remedy."""


def unpack(archive: str, folder: str) -> None:
    """Replace a folder by the files of an archive, which the server made for this start."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)


def load(folder: str, module: str, file: str, function: str) -> Any:
    """The function `function` of a module whose files are in `folder`.

    Args:
        folder: The shipped files; imports are looked for there first.
        module: Name to import; `__main__` for a script, whose file is `file` then.
        file: Path of the module below the folder.
        function: Qualified name.

    Raises:
        Unimportable: The module cannot be imported, or has no such function.

    """
    sys.path.insert(0, folder)
    stand_in.install()
    try:
        found: Any = _script(os.path.join(folder, file)) if module == MAIN else _module(module)
        for name in function.split("."):
            found = getattr(found, name)
    except stand_in.ProgramInContainer as error:
        raise Unimportable(str(error)) from error
    except ModuleNotFoundError as error:
        raise Unimportable(
            f"{file} cannot be imported in its container: {error}; the image needs that package, or"
            " files= of the agent that module; what only the program beside the agent uses can be"
            " imported inside its functions"
        ) from error
    except Exception as error:
        raise Unimportable(
            f"{file} cannot be imported in its container: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise Unimportable(f"{function} of {file} is no function there")
    return found


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(AS_MODULE, path)
    if spec is None or spec.loader is None:
        raise Unimportable(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[AS_MODULE] = module
    spec.loader.exec_module(module)
    return module
