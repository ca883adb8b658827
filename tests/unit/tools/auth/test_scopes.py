"""What a key may do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import InvalidParameter
from oubliette.tools.auth import scopes
from oubliette.tools.auth.scopes import Scope
from oubliette.tools.registry import TABLE, listed

A, B = (
    "proj_11111111111111111111111111",
    "proj_22222222222222222222222222",
)  # constants: workers must collect the same names
ALL = [
    scopes.parse(text)
    for text in (
        "admin",
        "write",
        "read",
        f"project:{A}",
        f"project:{A}:ro",
        f"project:{B}",
        f"project:{B}:ro",
    )
]
SEED_READ = {
    "project_list",
    "project_get",
    "session_list",
    "session_get",
    "session_events",
    "workspace_list",
    "config_limits",
}

LATER_READ = {
    "event_list",
    "event_read",
    "file_list",
    "file_read",
    "permission_list",
    "port_list",
    "repository_branches",
    "session_compare",
    "session_diff",
    "session_export",
    "session_log",
    "tree_get",
    "tree_list",
    "usage_report",
}


def names(text: str, transport: str = "http") -> set[str]:
    return {tool.name for tool in listed(scopes.parse(text), transport)}


def test_a_read_key_may_call_exactly_what_changes_nothing() -> None:
    assert names("read") == SEED_READ | LATER_READ
    assert names("admin:ro") == names("read")


def test_a_write_key_may_do_all_but_tokens() -> None:
    assert names("write") == set(TABLE) - {"token_create", "token_list", "token_revoke"}


def test_an_admin_key_may_do_everything() -> None:
    assert names("admin") == set(TABLE)


def test_a_key_of_a_project_creates_no_projects_and_builds_no_images() -> None:
    assert names(f"project:{A}") == names("write") - {
        "project_create",
        "project_update",
        "image_rebuild",
    }
    assert names(f"project:{A}:ro") == names("read")


def test_agents_cannot_listen_or_answer_whatever_their_key() -> None:
    for text in ("admin", "write", f"project:{A}"):
        http_only = {
            "caller_listen",
            "caller_tool_progress",
            "caller_tool_response",
            "permission_response",
            "session_map",
        }
        assert not http_only & names(text, "socket")


@pytest.mark.parametrize("scope", ALL, ids=str)
def test_a_scope_reads_back_as_it_is_written(scope: Scope) -> None:
    assert scopes.parse(str(scope)) == scope


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Admin",
        "admin ",
        "write:ro",
        "project",
        "project:",
        "project:*",
        "project:proj_x",
        f"project:{A}:rw",
        f"project:{A}:ro:ro",
        f"project:{A.upper()}",
        "read\n",
        "admin:ro:ro",
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidParameter, match="^scope: ") as refused:
        scopes.parse(text)
    assert refused.value.field == "scope"


def grants(scope: Scope) -> set[tuple[str, str]]:
    """Every (tool, project) that the scope allows."""
    return {
        (tool.name, project)
        for tool in TABLE.values()
        for project in (A, B)
        if tool.allowed(scope, "http") and scope.reaches(project)
    }


@given(st.sampled_from(ALL), st.sampled_from(ALL))
def test_narrower_or_equal_never_allows_what_the_outer_scope_does_not(
    inner: Scope, outer: Scope
) -> None:
    if scopes.narrower_or_equal(inner, outer):
        assert grants(inner) <= grants(outer)
    else:
        assert not grants(inner) <= grants(outer)


@given(st.text(max_size=60))
def test_parsing_never_fails_in_another_way(text: str) -> None:
    try:
        scopes.parse(text)
    except InvalidParameter:
        pass


@pytest.mark.parametrize(
    ("asked", "project", "creator_scope", "wanted"),
    [
        ("read", None, "admin", f"project:{A}:ro"),
        ("write", None, "write", f"project:{A}"),
        ("write", "*", "write", "write"),
        ("admin", "*", "admin", "admin"),
        (f"project:{A}:ro", None, "admin", f"project:{A}:ro"),
        ("read", None, f"project:{A}", f"project:{A}:ro"),
    ],
)
def test_a_minted_scope_is_bound_unless_its_creator_says_otherwise(
    asked: str, project: str | None, creator_scope: str, wanted: str
) -> None:
    made = scopes.minted_scope(asked, A, project, scopes.parse(creator_scope))
    assert str(made) == wanted


@pytest.mark.parametrize(
    ("asked", "project", "field"),
    [
        ("admin", None, "api_key_scope"),
        ("root", None, "api_key_scope"),
        ("read", "nope", "api_key_project"),
        (f"project:{A}", B, "api_key_project"),
    ],
)
def test_what_cannot_be_minted_is_refused_by_name(
    asked: str, project: str | None, field: str
) -> None:
    with pytest.raises(InvalidParameter, match=field) as refused:
        scopes.minted_scope(asked, A, project, Scope(level="admin"))
    assert refused.value.field == field
