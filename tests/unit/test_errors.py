"""One error tree; scripts rely on its codes (style.md, 7)."""

from __future__ import annotations

import pytest

import oubliette.kit
from oubliette import errors
from oubliette.errors import InvalidParameter, NotFound, OublietteError


def tree() -> list[type[OublietteError]]:
    found: list[type[OublietteError]] = []
    kinds: list[type[OublietteError]] = [OublietteError]
    while kinds:
        kind = kinds.pop()
        found.append(kind)
        kinds.extend(kind.__subclasses__())
    return found


def own() -> list[type[OublietteError]]:
    assert oubliette.kit
    return [kind for kind in tree() if kind.__module__ in {errors.__name__, "oubliette.kit.errors"}]


@pytest.mark.parametrize("kind", own(), ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_is(kind: type[OublietteError]) -> None:
    assert kind.__doc__
    assert kind.__dict__.get("code"), "an error of its own needs a code of its own"
    assert kind.exit_code in range(1, 8)
    assert -32768 <= kind.jsonrpc_code <= -32000


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in own()]
    assert len(set(codes)) == len(codes)


def test_the_seeds_codes_are_on_the_socket() -> None:
    assert errors.Unauthenticated.jsonrpc_code == -32001
    assert errors.Forbidden.jsonrpc_code == -32002


def test_errors_are_caught_as_what_python_calls_them() -> None:
    for kind, builtin in (
        (errors.InvalidParameter, ValueError),
        (errors.NotFound, LookupError),
        (errors.Forbidden, PermissionError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.StorageUnavailable, OSError),
    ):
        assert issubclass(kind, builtin)


def test_a_hint_stands_behind_the_message() -> None:
    error = NotFound("no such thing", hint="look elsewhere")
    assert str(error) == "no such thing (hint: look elsewhere)"
    assert str(NotFound("no such thing")) == "no such thing"
    assert error.message == "no such thing"


def test_a_bad_parameter_names_its_field() -> None:
    assert InvalidParameter("name: is empty", field="name").field == "name"
