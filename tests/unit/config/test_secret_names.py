"""Secrets in tables whose keys are a package's are hidden where a configuration is printed."""

from __future__ import annotations

import pytest

from oubliette.config.secret_names import (
    HIDDEN,
    bare_url,
    remote_to_show,
    url_to_show,
    value_to_show,
    without_secrets,
)


@pytest.mark.parametrize(
    "key",
    ["api_key", "apiKey", "API-KEY", "token", "db.password", "client secret", "Authorization"],
)
def test_a_value_under_a_name_of_a_secret_is_hidden(key: str) -> None:
    assert value_to_show(key, "hunter2") == HIDDEN
    assert value_to_show(key, 12345) == HIDDEN
    assert value_to_show(key, ["hunter2"]) == [HIDDEN]


@pytest.mark.parametrize("value", ["env:A", "file:/a", "credential:a", "${credential:a}", "", True])
def test_a_reference_and_a_switch_are_shown(value: object) -> None:
    assert value_to_show("token", value) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("grey", "grey"),
        (3, 3),
        ("MODE=fast", "MODE=fast"),
        ("API_KEY=env:KEY", "API_KEY=env:KEY"),
        ("API_KEY=hunter2", f"API_KEY={HIDDEN}"),
        ("postgres://me:hunter2@there/db", f"postgres://me:{HIDDEN}@there/db"),
        ("https://there/a@b", "https://there/a@b"),
    ],
)
def test_other_values_are_shown_without_the_secrets_in_them(value: object, shown: object) -> None:
    assert value_to_show("setting", value) == shown
    assert value_to_show("settings", [value]) == [shown]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("postgresql://db/name", "postgresql://db/name"),
        ("postgresql://me@db/name", "postgresql://me@db/name"),
        ("postgresql://me:hunter2@db:5432/name", f"postgresql://me:{HIDDEN}@db:5432/name"),
        ("postgresql://db,db2:5433/name", "postgresql://db,db2:5433/name"),
        ("postgresql://[::1]:5432/name", "postgresql://[::1]:5432/name"),
        *(
            (url, f"postgresql://{HIDDEN}")
            for url in (
                "postgresql://me:hun/ter@2@db/name",
                "postgresql://me:123/hunter2@db/name",
                "postgresql://me:hunter%2@db/name",
                "postgresql://me:hunter#2@db/name",
                "postgresql://me:hunter?2@db/name",
                "postgresql://me:hunter 2@db/name",
                "postgresql://me:hun:ter2@db/name",
                "postgresql://me:hunter2",
                "postgresql://db:hunter2/name",
                "postgresql://[hunter2/name",
                "postgresql://db/name?hunter2",
                "postgresql://db/name?password=a&hunter2",
            )
        ),
        (
            "postgresql://db/name?sslpassword=hunter2&passfile=h&sslmode=require&x=hunter2",
            f"postgresql://db/name?sslpassword={HIDDEN}&passfile={HIDDEN}&sslmode=require&x={HIDDEN}",
        ),
        (
            "postgresql:///name?host=/tmp&password=hunter2&user=me",
            f"postgresql:///name?host=/tmp&password={HIDDEN}&user=me",
        ),
    ],
)
def test_the_url_of_a_database_is_shown_without_its_password(url: str, shown: str) -> None:
    assert url_to_show(url) == shown
    assert without_secrets({"store": {"database": url}})["store"]["database"] == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/x.git", "https://host/x.git"),
        ("git@host:x.git", "git@host:x.git"),
        ("ssh://git@host:22/x", "ssh://git@host:22/x"),
        ("https://u:s3cr@host/x.git", "https://host/x.git"),
        ("https://s3cr@host/x.git", "https://host/x.git"),
        ("https://u:s3/c@r@host/x.git?token=s3", "https://host/x.git"),
        ("ssh://git:s3cr@host/x", "ssh://git@host/x"),
    ],
)
def test_the_url_of_a_repository_is_shown_without_what_may_be_a_password(
    url: str, shown: str
) -> None:
    assert remote_to_show(url) == shown


@pytest.mark.parametrize(
    "url",
    ["http://h/v1", "http://u:s3@h/v1", "http://u:s/3@h/v1", "http://h/v1?s3#s3", "http://s3@h/v1"],
)
def test_a_bare_url_has_no_secret_however_malformed_it_was(url: str) -> None:
    assert bare_url(url) == "http://h/v1"


def test_passwords_in_other_urls_of_a_configuration_are_hidden() -> None:
    tree = {
        "opencode": {"base_url": "http://u:s3/cr@h/v1", "env": ["HTTPS_PROXY=http://u:s3@p:1"]},
        "acp_agents": {"x": {"env": ("A=http://u:s@3@p", "B=https://there/a@b")}},
        "server": {"port": 1},
    }
    assert without_secrets(tree) == {
        "opencode": {
            "base_url": f"http://u:{HIDDEN}@h/v1",
            "env": [f"HTTPS_PROXY=http://u:{HIDDEN}@p:1"],
        },
        "acp_agents": {"x": {"env": [f"A=http://u:{HIDDEN}@p", "B=https://there/a@b"]}},
        "server": {"port": 1},
    }
