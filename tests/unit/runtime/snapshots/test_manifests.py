"""What a snapshot tells of files whose content it does not have."""

from __future__ import annotations

import json
import re

from oubliette.runtime.snapshots.workspace.tree_table import Entry, TreeTable, without_content

NAMES = (
    b"large",
    b"modes",
    b'"modes": {',
    b',\n"modes": {\n',
    b'\n"large": {',
    b"not UTF-8 \xff",
    "größer".encode(),
    b"left_out",
)


def test_files_without_content_are_found_whatever_the_names_in_the_workspace_are() -> None:
    for kind in ("file", "folder", "large"):
        entries = {name: Entry(kind, 0o600, 5, content="ab") for name in NAMES}
        left_out = {b"below/" + name: '},\n"modes": {' for name in NAMES}
        for table in (
            TreeTable(entries, left_out),
            TreeTable({}, left_out),
            TreeTable(entries),
            TreeTable(),
        ):
            whole = json.loads(table.manifest())
            assert without_content(table.manifest()) == {
                part: whole[part] for part in ("large", "left_out")
            }


def test_modes_and_folders_of_hundreds_of_thousands_of_entries_are_not_decoded() -> None:
    entries = {b"a": Entry("file", 0o600), b"b": Entry("folder", 0o700), b"c": Entry("large", 0o6)}
    manifest = TreeTable(entries).manifest()
    unreadable = re.sub(rb'"[ab]": \d+', b"this is not JSON", manifest)
    assert unreadable.count(b"this is not JSON") == 2
    assert without_content(unreadable) == {"large": {"c": [0, "", 0o6]}, "left_out": {}}
