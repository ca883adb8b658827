"""What agents of one workspace leave each other (Shared Workspace Map-Reduce)."""

from __future__ import annotations

import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette import ids
from oubliette.incontainer.client import context_tools
from oubliette.incontainer.client.context_tools import Context, ContextFault

PARENT, CHILD = ids.new_id(ids.SESSION), ids.new_id(ids.SESSION)


@pytest.fixture
def workspace(tmp_path):
    return tmp_path


def context(workspace, session_id=PARENT) -> Context:
    return Context(str(workspace), session_id)


def test_children_write_and_their_parent_reads_all_at_once(workspace) -> None:
    for session_id, data in ((CHILD, {"n": 1}), (PARENT, [2])):
        written = context(workspace, session_id).call(
            "context_write", {"descriptor": "part", "data": data}
        )
        assert written["path"] == f".rlm-context/{session_id}_part.json"
        assert json.loads((workspace / written["path"]).read_text()) == data
    read = context(workspace).call("context_read", {"descriptor": "part"})
    assert {each["session_id"]: each["data"] for each in read["entries"]} == {
        CHILD: {"n": 1},
        PARENT: [2],
    }
    one = context(workspace).call("context_read", {"descriptor": "part", "session_id": CHILD})
    assert one["entries"] == [{"session_id": CHILD, "data": {"n": 1}}]
    listed = context(workspace).call("context_list", {})["entries"]
    assert {(each["session_id"], each["descriptor"]) for each in listed} == {
        (CHILD, "part"),
        (PARENT, "part"),
    }


def test_nothing_written_is_an_empty_list_and_a_sentence(workspace) -> None:
    assert context(workspace).call("context_list", {}) == {"entries": [], "more": False}
    with pytest.raises(ContextFault, match="nobody has written 'part'"):
        context(workspace).call("context_read", {"descriptor": "part"})
    assert list(workspace.iterdir()) == []


def test_a_reader_never_sees_half_of_what_is_written(workspace) -> None:
    writer, reader = context(workspace, CHILD), context(workspace)
    writer.call("context_write", {"descriptor": "x", "data": ["a"] * 10_000})
    stop = threading.Event()

    def write() -> None:
        letters = iter("bcdefghijk" * 20)
        for letter in letters:
            writer.call("context_write", {"descriptor": "x", "data": [letter] * 10_000})
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not stop.is_set():
        (entry,) = reader.call("context_read", {"descriptor": "x"})["entries"]
        assert len(set(entry["data"])) == 1
        assert len(entry["data"]) == 10_000
    thread.join(20)
    assert [path.name for path in (workspace / ".rlm-context").iterdir()] == [f"{CHILD}_x.json"]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("context_write", {}, "descriptor: is required"),
        ("context_write", {"descriptor": "x"}, "data: is required"),
        ("context_write", {"descriptor": "x", "data": 1, "zzz": 2}, "zzz: unknown parameter"),
        ("context_write", {"descriptor": "../x", "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": "x/y", "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": ".hidden", "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": "x\0", "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": "x" * 65, "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": 3, "data": 1}, "descriptor: must be"),
        ("context_write", {"descriptor": "x", "data": float("nan")}, "data: cannot be written"),
        ("context_read", {"descriptor": "ü"}, "descriptor: must be"),
        ("context_read", {"descriptor": "x", "session_id": 3}, "session_id: must be"),
        ("context_list", {"session_id": ""}, "session_id: must be"),
    ],
)
def test_bad_arguments_are_refused_by_name(workspace, tool, arguments, said) -> None:
    with pytest.raises(ContextFault, match=said.replace(".", r"\.")):
        context(workspace).call(tool, arguments)
    assert not (workspace / ".rlm-context").exists() or not any(
        (workspace / ".rlm-context").iterdir()
    )


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_ordinary_file_is_neither_followed_nor_waited_for(workspace, kind) -> None:
    secret = workspace / "secret"
    secret.write_text('"secret"')
    folder = workspace / ".rlm-context"
    folder.mkdir()
    place = folder / f"{CHILD}_x.json"
    if kind == "link":
        place.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(ContextFault):
        context(workspace).call("context_read", {"descriptor": "x"})
    assert context(workspace).call("context_list", {})["entries"] == []


def test_a_link_in_the_folders_place_is_not_followed(workspace, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (workspace / ".rlm-context").symlink_to(outside)
    with pytest.raises(ContextFault):
        context(workspace).call("context_write", {"descriptor": "x", "data": 1})
    assert list(outside.iterdir()) == []


def test_a_link_in_an_entrys_place_is_replaced_and_what_it_leads_to_is_not(workspace) -> None:
    kept = workspace / "kept"
    kept.write_text("kept")
    (workspace / ".rlm-context").mkdir()
    (workspace / ".rlm-context" / f"{PARENT}_x.json").symlink_to(kept)
    context(workspace).call("context_write", {"descriptor": "x", "data": 1})
    assert kept.read_text() == "kept"
    assert (workspace / ".rlm-context" / f"{PARENT}_x.json").read_text() == "1"


def test_sizes_are_limited_in_both_directions(workspace, monkeypatch) -> None:
    monkeypatch.setattr(context_tools, "MAX_FILE", 100)
    monkeypatch.setattr(context_tools, "MAX_READ", 150)
    with pytest.raises(ContextFault, match="at most 100"):
        context(workspace).call("context_write", {"descriptor": "x", "data": "a" * 99})
    for session_id in (PARENT, CHILD):
        context(workspace, session_id).call("context_write", {"descriptor": "x", "data": "a" * 90})
    with pytest.raises(ContextFault, match="give session_id"):
        context(workspace).call("context_read", {"descriptor": "x"})
    context(workspace).call("context_read", {"descriptor": "x", "session_id": CHILD})


def test_what_somebody_has_broken_by_hand_is_told_as_text(workspace) -> None:
    (workspace / ".rlm-context").mkdir()
    (workspace / ".rlm-context" / f"{CHILD}_x.json").write_bytes(b"{half \xff")
    (entry,) = context(workspace).call("context_read", {"descriptor": "x"})["entries"]
    assert entry == {"session_id": CHILD, "data": "{half �", "invalid": True}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["descriptor", "data", "session_id", "zzz"]), JSON), st.data()
)
def test_any_arguments_give_an_answer_or_a_sentence(tmp_path_factory, arguments, data) -> None:
    tool = data.draw(st.sampled_from(["context_write", "context_list", "context_read"]))
    folder = tmp_path_factory.mktemp("any")
    try:
        context(folder).call(tool, arguments)
    except ContextFault as fault:
        assert str(fault)
    except UnicodeEncodeError:
        pytest.fail("a lone surrogate is no reason to crash")
