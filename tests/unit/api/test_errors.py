"""Errors of the API: one class for each code, in process and over the wire."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette import errors
from oubliette.api import errors as api_errors
from oubliette.api.errors import (
    EventsMissing,
    ResultInvalid,
    SessionFailed,
    TurnInterrupted,
    from_wire,
    to_wire,
)
from oubliette.errors import InvalidParameter, NotFound, OublietteError, RateLimited

PUBLIC = {errors.__name__, api_errors.__name__}
SERVER = ("oubliette.actors", "oubliette.kit", "oubliette.mcp_front", "oubliette.runtime")
EXAMPLES = [
    SessionFailed("turn 2 failed", reason="no model", session_id="gogol_1", turn=2, hint="pay"),
    TurnInterrupted("interrupted", text="half", session_id="gogol_1", turn=2),
    api_errors.ToolFailed("no such order", tool="find_order"),
    api_errors.PermissionDenied("denied", asks_for="bash: rm *"),
    api_errors.AgentNeverSawTools("the agent has no tools", session_id="gogol_1"),
    ResultInvalid("no Verdict", answer="?", reason="there is no JSON in it", attempts=3),
    api_errors.BadResultType("object has no schema", hint="take a dataclass"),
    api_errors.Closed("the project is closed"),
    EventsMissing("events are missing", after=3, truncated_before=9, session_id="gogol_1"),
    InvalidParameter("name: is empty", field="name"),
    RateLimited("slower", retry_after=7),
]


def below(kind: type[OublietteError]) -> list[type[OublietteError]]:
    return [kind, *(found for each in kind.__subclasses__() for found in below(each))]


def public() -> list[type[OublietteError]]:
    return [kind for kind in below(OublietteError) if kind.__module__ in PUBLIC]


@pytest.mark.parametrize("kind", public(), ids=lambda kind: kind.__name__)
def test_every_error_is_described_and_made_of_its_code(kind: type[OublietteError]) -> None:
    assert kind.__doc__
    assert kind.__dict__.get("code"), "an error of its own needs a code of its own"
    made = from_wire({"code": kind.code, "message": "it went wrong", "hint": "do better"})
    assert type(made) is kind
    assert (made.message, made.hint, made.code) == ("it went wrong", "do better", kind.code)


def test_no_two_public_errors_share_a_code() -> None:
    codes = [kind.code for kind in public()]
    assert len(set(codes)) == len(codes)


def test_every_error_of_the_server_is_of_the_nearest_class_that_programs_know() -> None:
    for package in SERVER:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            importlib.import_module(module.name)
    inside = [kind for kind in below(OublietteError) if kind.__module__.startswith(SERVER)]
    assert len(inside) > 20
    for kind in inside:
        made = from_wire({"code": kind.code, "message": "m"})
        known = {each for each in kind.__mro__ if getattr(each, "__module__", "") in PUBLIC}
        assert isinstance(made, tuple(known) or OublietteError) or made.code == "ask_timeout", kind
        assert made.code == kind.code


def test_a_deadline_of_the_servers_inside_is_a_deadline() -> None:
    assert isinstance(from_wire({"code": "ask_timeout", "message": "m"}), errors.DeadlineExceeded)


def test_an_unknown_code_is_kept() -> None:
    made = from_wire({"code": "of_a_later_release", "message": "m"})
    assert type(made) is OublietteError
    assert made.code == "of_a_later_release"
    assert pickle.loads(pickle.dumps(made)).code == "of_a_later_release"  # noqa: S301 (our own)
    assert OublietteError.code == "error"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_attributes_survive_the_wire_and_pickle(error: OublietteError) -> None:
    for copy in (from_wire(to_wire(error)), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_a_field_of_another_type_is_ignored() -> None:
    made = from_wire({"code": "rate_limited", "message": "m", "retry_after": "soon"})
    assert isinstance(made, RateLimited)
    assert made.retry_after == 1


def test_errors_are_caught_as_what_python_calls_them() -> None:
    assert issubclass(api_errors.PermissionDenied, PermissionError)
    assert issubclass(ResultInvalid, ValueError)
    assert issubclass(api_errors.BadResultType, TypeError)
    assert issubclass(EventsMissing, LookupError)
    assert issubclass(NotFound, LookupError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), JSON),
    st.dictionaries(
        st.sampled_from(["code", "message", "hint", "field", "retry_after", "reason", "turn"]),
        JSON | st.sampled_from(["invalid_parameter", "rate_limited", "session_failed"]),
    ),
)
def test_any_object_is_an_error(other: dict[str, object], known: dict[str, object]) -> None:
    made = from_wire({**other, **known})
    assert isinstance(made, OublietteError)
    assert made.message
    assert isinstance(str(made), str)
