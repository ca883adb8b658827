"""Nothing reaches git that it would take for an option, a program or somebody's password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import Forbidden, InvalidParameter
from oubliette.runtime.repositories.addresses import (
    check_branch,
    check_folder,
    check_url,
    host_and_path,
    without_password,
)

if TYPE_CHECKING:
    from pathlib import Path

ALL = ("https", "http", "ssh", "git", "file")


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/acme/shop",
        "https://git.example:8443/a/b.git",
        "http://[::1]:3000/x",
        "ssh://git@git.example/~me/x.git",
        "git@github.com:acme/shop.git",
        "file:///srv/git/x.git",
    ],
)
def test_usual_addresses_are_taken_as_they_are(url: str) -> None:
    assert check_url(url, ALL) == url


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id",
        "fd::17",
        "--upload-pack=/bin/sh",
        "-oProxyCommand=id@host:x",
        "https://-oProxyCommand=id/x",
        "ssh://-oProxyCommand=id/x",
        "ssh://-l@host/x",
        "git@-host:x",
        "git@host:-x",
        "https://host/a b",
        "https://host/a\nb",
        "https:///x",
        "https://host:99999/x",
        "/etc",
        "../x",
        "",
        "ftp://host/x",
        "transport::https://host/x",
    ],
)
def test_what_git_could_take_for_something_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        check_url(url, ALL)
    assert refused.value.field == "repository.url"


@pytest.mark.parametrize("url", ["https://me:hunter2@host/x", "https://hunter2@host/x"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidParameter, match=r"repositories\.credentials") as refused:
        check_url(url, ALL)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://host/x", "https://host/x"),
        ("https://me:a/b@host/x", "https://host/x"),
        (
            "fatal: 'https://me@host/x' and ssh://git@other/y",
            "fatal: 'https://host/x' and ssh://other/y",
        ),
        ("https://me:one\ntwo@host and http://next", "https://host and http://next"),
        ("mail me@host about https://host/x", "mail me@host about https://host/x"),
    ],
)
def test_text_is_shown_without_the_passwords_of_its_urls(text: str, shown: str) -> None:
    assert without_password(text) == shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["://a:", "://a:@", "://", "@://a:", "a://b:c "])
def test_passwords_are_looked_for_in_one_pass_however_hostile_the_text_is(piece: str) -> None:
    text = piece * 200_000  # hours, if each :// were searched to the end
    assert len(without_password(text)) <= len(text)


def test_a_protocol_has_to_be_allowed() -> None:
    with pytest.raises(InvalidParameter, match="does not clone over http; allowed: https, ssh"):
        check_url("http://host/x", ("https", "ssh"))
    with pytest.raises(InvalidParameter, match="does not clone over ssh"):
        check_url("git@host:x", ("https",))


def test_the_host_of_an_address_is_known() -> None:
    assert host_and_path("https://GitHub.com/acme/x.git") == ("https", "github.com", "/acme/x.git")
    assert host_and_path("git@github.com:acme/x") == ("ssh", "github.com", "/acme/x")
    assert host_and_path("ssh://me@host:22/x") == ("ssh", "host:22", "/x")


@pytest.mark.parametrize("name", ["main", "fix/test", "v1.2", "a-b", "ünï", "feature/#12"])
def test_usual_branches_are_taken(name: str) -> None:
    assert check_branch(name) == name


@pytest.mark.parametrize(
    "name",
    ["-x", "--", "a..b", "a b", "a~1", "a^", "a:b", "@{-1}", "HEAD", "@", "/a", "a/", "a//b",
     ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a\x00", "", "x" * 201, "*"],
)  # fmt: skip
def test_names_that_are_no_branch_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameter):
        check_branch(name)


@given(st.text(max_size=30))
def test_no_accepted_branch_is_an_option_or_a_revision(name: str) -> None:
    try:
        check_branch(name)
    except InvalidParameter:
        return
    assert not name.startswith("-")
    assert not set(name) & set("~^:?*[\\ \x7f")
    assert ".." not in name


def test_keys_clone_only_the_folders_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "open" / "shop").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "open" / "way").symlink_to(tmp_path / "secret")
    allowed = (str(tmp_path / "open"),)

    def check(path: Path, *, any_folder: bool = False) -> str:
        return check_folder(str(path), allowed, any_folder=any_folder)

    assert check(tmp_path / "open" / "shop") == str(tmp_path / "open" / "shop")
    for path in (
        tmp_path / "secret",
        tmp_path / "open" / "way",
        tmp_path / "open" / ".." / "secret",
    ):
        with pytest.raises(Forbidden, match=r"repositories\.folders"):
            check(path)
    assert check(tmp_path / "secret", any_folder=True) == str(tmp_path / "secret")
    with pytest.raises(InvalidParameter, match="there is no folder"):
        check(tmp_path / "none", any_folder=True)
    with pytest.raises(InvalidParameter, match="no absolute path"):
        check_folder("shop", allowed, any_folder=True)
