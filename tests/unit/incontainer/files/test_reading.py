"""Pages of a folder: every name once, in order, however many there are and wherever a page ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.incontainer.files import places, reading

if TYPE_CHECKING:
    from pathlib import Path


def page(folder: Path, after: bytes, limit: int) -> dict[str, Any]:
    place = places.find(os.fsencode(folder), b"")
    try:
        return reading.list_folder(place, after, limit)
    finally:
        place.close()


@pytest.mark.parametrize("kept", [3, 1000])
@pytest.mark.parametrize("limit", [1, 2, 7, 10, 11])
def test_each_name_is_on_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, limit: int
) -> None:
    monkeypatch.setattr(reading, "NAMES_KEPT", kept)
    wanted = sorted([*(b"%d" % number for number in range(9)), b"caf\xe9"])
    for name in wanted:
        (tmp_path / os.fsdecode(name)).touch()
    found: list[bytes] = []
    after = b""
    while True:
        answer = page(tmp_path, after, limit)
        found += [os.fsencode(entry["name"]) for entry in answer["entries"]]
        if not answer["more"]:
            break
        after = os.fsencode(answer["last"])
    assert found == wanted


def test_a_name_that_is_gone_when_it_is_described_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").touch()
    monkeypatch.setattr(reading, "_names", lambda _fd: iter([b"gone", b"here"]))
    assert [entry["name"] for entry in page(tmp_path, b"", 5)["entries"]] == ["here"]
