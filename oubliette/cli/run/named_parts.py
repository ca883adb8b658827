"""Tools and types of results that options of `oubliette run` name: functions, JSON Schemas."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any, cast

from oubliette.api.results import ResultType
from oubliette.errors import InvalidParameter, did_you_mean
from oubliette.user_paths import expanded, working_folder

if TYPE_CHECKING:
    from collections.abc import Callable


def tool_named(given: str) -> Callable[..., Any]:
    """Return the function that `python:module.function` names; the current folder has modules too.

    Raises:
        InvalidParameter: there is none, or its module cannot be imported.
    """
    language, _, path = given.partition(":")
    module, _, name = path.rpartition(".")
    if language != "python" or not module or not name:
        raise InvalidParameter(
            f"--tool: {given} is not of the form python:MODULE.FUNCTION", field="tool"
        )
    folder = str(working_folder())
    if folder not in sys.path:
        sys.path.append(folder)  # behind all others: no file there replaces one of Python's
    try:
        found = importlib.import_module(module)
    except Exception as error:  # code of the user's runs here
        raise InvalidParameter(
            f"--tool: {module} cannot be imported: {type(error).__name__}: {error}", field="tool"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        near = did_you_mean(name, vars(found))
        raise InvalidParameter(
            f"--tool: {module} has no function {name}", field="tool", hint=near.strip() or None
        )
    return function


def result_described(path: str) -> ResultType[Any]:
    """Return the type of results that the JSON Schema in a file describes.

    Raises:
        InvalidParameter: it has none.
    """
    import jsonschema
    from jsonschema import exceptions, validators

    file = expanded(path, "--returns")
    try:
        schema = json.loads(file.read_text(encoding="utf-8"))
        kind: Any = cast("Any", validators).validator_for(schema, jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (OSError, ValueError) as error:
        raise InvalidParameter(f"--returns: {file}: {error}", field="returns") from error
    except jsonschema.SchemaError as error:
        raise InvalidParameter(
            f"--returns: {file} is no JSON Schema: {_place(error)}", field="returns"
        ) from error
    validator = kind(schema)

    def decode(text: str) -> Any:
        value = json.loads(text)
        error = cast("Any", exceptions).best_match(validator.iter_errors(value))
        if error is not None:
            raise ValueError(_place(error))
        return value

    return ResultType(file.stem, schema, decode)


def _place(error: Any) -> str:
    """Return an error of a validation, with its place."""
    return f"{error.message} - at `{error.json_path}`"
