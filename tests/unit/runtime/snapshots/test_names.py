"""Names of entries in a snapshot: each has one place, and is found again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.runtime.snapshots.workspace.tree_table import original, placed, refused

NAMES = st.one_of(
    st.binary(min_size=1, max_size=8).filter(
        lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
    ),
    st.sampled_from(
        [b".git", b".GIT", b"%.git", b"%%.git", b"git~1", b".git ", b".git::$INDEX_ALLOCATION",
         b".gitmodules", b"%.gitmodules", b".rlm-context", b".factory", b"%", b".git\\x",
         b"a\\.git", b"%a\\%.git", b"a\\%%.git", b"a:.git", b"a:%.git", b"\\:.git",
         ".g\u200cit".encode(), b"a"]
    ),
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)


@given(PATHS, st.booleans())
def test_an_entry_is_found_again_by_its_place(path: bytes, link: bool) -> None:
    part, there = placed(path, link=link)
    assert original(part, there) == path


@given(PATHS, PATHS, st.booleans(), st.booleans())
def test_two_entries_never_have_the_same_place(
    one: bytes, other: bytes, one_link: bool, other_link: bool
) -> None:
    if one != other:
        assert placed(one, link=one_link) != placed(other, link=other_link)


@given(PATHS, st.booleans())
def test_no_place_has_a_name_that_git_refuses(path: bytes, link: bool) -> None:
    part, there = placed(path, link=link)
    assert not any(refused(name) for name in there.split(b"/"))
    if part == "files":
        assert there == path


@pytest.mark.parametrize("path", [b"../x", b"a/./b", b"", b"a//b", b"files/../x"])
def test_a_path_that_leads_out_of_the_workspace_is_refused(path: bytes) -> None:
    with pytest.raises(ValueError):
        original("files", path)
    with pytest.raises(ValueError):
        original("rest", path)
