"""What Apple's `container` says, of both generations, hostile and broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.apple import output
from oubliette.runtime.containers.apple.output import Seen

OLD = {
    "status": "running",
    "configuration": {"id": "p1", "labels": {"a": "b"}},
    "networks": [],
    "startedDate": 802_958_400.5,
}
NEW = {
    "id": "p1",
    "configuration": {"id": "p1", "labels": {"a": "b"}},
    "status": {"state": "running", "networks": [], "startedDate": "2026-06-12T12:00:00.5Z"},
}


def read(*entries: object) -> list[Seen]:
    return output.containers(json.dumps(list(entries)).encode())


def test_both_generations_are_read_alike() -> None:
    old, new = read(OLD, NEW)
    assert old == new
    assert old == Seen(id="p1", state="running", labels={"a": "b"}, started_at=1_781_265_600.5)


def test_what_was_never_started_has_no_date() -> None:
    (seen,) = read({**NEW, "status": {"state": "stopped", "networks": []}})
    assert (seen.state, seen.started_at) == ("stopped", None)


@pytest.mark.parametrize("said", [b"", b"{}", b"null", b"not found", b"[", b"\xff"])
def test_what_is_no_list_is_an_error(said: bytes) -> None:
    with pytest.raises(RuntimeFailure, match="cannot be read"):
        output.containers(said)


def test_nothing_is_nothing() -> None:
    assert output.containers(b"[]") == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.sampled_from(["id", "status", "state", "configuration", "labels", "startedDate"]), inner
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_odd_entries_of_others_never_break_the_list(entry: object) -> None:
    seen = read(entry, NEW)
    assert seen[-1].id == "p1"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            b'[{"version":"1.2.2","appName":"container"},{"version":"x 1.2.2"}]',
            ["1.2.2", "x 1.2.2"],
        ),
        (b'{"version":"1.0.0"}', ["1.0.0"]),
        (b"[]", []),
        (b"container CLI version 0.4.1", []),
        (b'[{"version":3}]', []),
    ],
)
def test_versions(said: bytes, found: list[str]) -> None:
    assert output.versions(said) == found


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (b'{"status":"running"}', "running"),
        (b'{"status":"not running"}', "not running"),
        (b"apiserver is not running", "unknown"),
        (b"[]", "unknown"),
    ],
)
def test_the_state_of_the_services(said: bytes, state: str) -> None:
    assert output.service_state(said) == state


def image_entry(**more: Any) -> bytes:
    variant = {"size": 1000, "config": {"created": "2026-01-02T03:04:05Z", "config": {}}}
    return json.dumps([{"variants": [variant, {**variant, "size": 500}], **more}]).encode()


@pytest.mark.parametrize(
    "said",
    [
        image_entry(configuration={"name": "x", "descriptor": {"digest": "sha256:1e"}}),
        image_entry(name="x", index={"digest": "sha256:1e"}),
        image_entry(id="sha256:1e"),
    ],
)
def test_an_image_of_either_generation_is_read(said: bytes) -> None:
    known = output.image(said)
    assert known is not None
    assert (known.id, known.size_bytes, known.built_at) == ("sha256:1e", 1500, 1767323045.0)
    assert known.arrived_at is None


@pytest.mark.parametrize("said", [b"", b"[]", b" \n"])
def test_no_image_is_none(said: bytes) -> None:
    assert output.image(said) is None


def test_an_image_of_which_nothing_is_known_is_there_all_the_same() -> None:
    known = output.image(b'[{"variants": "odd"}]')
    assert known is not None
    assert known.size_bytes is None
