"""What the snapshots of a session tell about its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import DeadlineExceeded, InvalidParameter, NotFound
from oubliette.runtime.snapshots import history
from oubliette.runtime.snapshots.history_records import (
    DiffAnswer,
    DiffQuestion,
    LogAnswer,
    LogQuestion,
    TurnChanges,
)
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.runtime.snapshots.conftest import Shadow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def diff(shadow: Shadow, **asked: Any) -> DiffAnswer:
    question = DiffQuestion(session_id="ses_1", **asked)
    answer = await shadow.repository.answer(question)
    assert isinstance(answer, DiffAnswer)
    return answer


def brief(answer: DiffAnswer) -> dict[str, tuple[str, int | None, int | None]]:
    return {each.path: (each.status, each.insertions, each.deletions) for each in answer.changes}


async def two_turns(shadow: Shadow) -> None:
    """Before the session there is `old`; turn 1 adds, turn 2 changes and deletes."""
    (shadow.workspace / "old").write_text("1\n2\n3\n")
    await shadow.turn(1, "start")
    (shadow.workspace / "new").write_text("a\n")
    await shadow.turn(1)
    await shadow.turn(2, "start")
    (shadow.workspace / "new").write_text("a\nb\n")
    (shadow.workspace / "old").unlink()
    await shadow.turn(2)


async def test_without_turns_a_diff_is_all_that_the_session_did(shadow: Shadow) -> None:
    await two_turns(shadow)
    answer = await diff(shadow)
    assert brief(answer) == {"new": ("added", 2, 0), "old": ("deleted", 0, 3)}
    assert answer.between is not None
    assert (answer.between.old_name, answer.between.new_name) == ("1-start", "2")


async def test_a_turn_alone_is_from_its_start_to_its_end(shadow: Shadow) -> None:
    await two_turns(shadow)
    assert brief(await diff(shadow, turn=1)) == {"new": ("added", 1, 0)}
    assert brief(await diff(shadow, turn=2)) == {
        "new": ("modified", 1, 0),
        "old": ("deleted", 0, 3),
    }


async def test_lines_that_take_too_long_to_count_are_all_that_is_missing(
    shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may write files that git compares for minutes; here the time is none at all."""
    monkeypatch.setattr(history, "COUNT_SECONDS", 0.0)
    (shadow.workspace / "old").write_text("1\n")
    taken = await shadow.turn(1)
    assert (taken.changed, taken.files, taken.insertions, taken.deletions) == (True, 1, None, None)
    (shadow.workspace / "old").unlink()
    (shadow.workspace / "odd\nname").write_text("1\n")
    taken = await shadow.turn(2)
    assert (taken.files, taken.insertions, taken.deletions) == (2, None, None)
    found = await shadow.repository.answer(LogQuestion(session_id="ses_1", turns=(1, 2)))
    assert isinstance(found, LogAnswer)
    assert found.changes == (
        TurnChanges(turn=1, files=1, insertions=None, deletions=None),
        TurnChanges(turn=2, files=2, insertions=None, deletions=None),
    )


async def test_a_diff_that_takes_too_long_says_what_to_name(
    shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_turns(shadow)
    monkeypatch.setattr(shadow.repository.history, "_seconds", 0.0)
    with pytest.raises(DeadlineExceeded, match="longer than 0 s to compare") as raised:
        await diff(shadow)
    assert "paths" in raised.value.hint


async def test_a_diff_may_go_backwards_and_between_snapshots_by_name(shadow: Shadow) -> None:
    await two_turns(shadow)
    back = await diff(shadow, from_turn=2, to_turn="1-start")
    assert brief(back) == {"new": ("deleted", 0, 2), "old": ("added", 3, 0)}
    assert brief(await diff(shadow, from_turn="2", to_turn=2)) == {}


async def test_a_session_that_began_with_an_empty_workspace_has_added_all(shadow: Shadow) -> None:
    await shadow.turn(1, "start")  # which has no ref, as there is nothing
    (shadow.workspace / "file").write_text("text\n")
    await shadow.turn(1)
    answer = await diff(shadow)
    assert brief(answer) == {"file": ("added", 1, 0)}
    assert answer.between is not None
    assert answer.between.old_name is None
    assert brief(await diff(shadow, turn=1)) == {"file": ("added", 1, 0)}


async def test_what_another_session_did_before_is_not_counted(shadow: Shadow) -> None:
    (shadow.workspace / "theirs").write_text("text\n")
    await shadow.repository.take(SnapshotLabel(session_id="ses_0", turn=7))
    (shadow.workspace / "ours").write_text("text\n")
    await shadow.turn(1)  # without one of its start, which came too late
    assert brief(await diff(shadow)) == {"ours": ("added", 1, 0)}
    assert brief(await diff(shadow, turn=1)) == {"ours": ("added", 1, 0)}


async def test_a_session_that_did_nothing_in_an_empty_workspace_has_no_diff(
    shadow: Shadow,
) -> None:
    await shadow.turn(1)
    assert (await diff(shadow)).between is None


async def test_a_session_without_snapshots_is_refused_where_there_are_files(
    shadow: Shadow,
) -> None:
    (shadow.workspace / "file").write_text("text")
    with pytest.raises(NotFound, match="has no snapshots"):
        await diff(shadow)


async def test_a_turn_without_snapshot_is_refused_with_those_that_there_are(
    shadow: Shadow,
) -> None:
    await two_turns(shadow)
    for asked in ({"turn": 3}, {"to_turn": 3}, {"from_turn": "2-final"}):
        with pytest.raises(NotFound, match="the session has: 1-start, 1, 2-start, 2"):
            await diff(shadow, **asked)
    with pytest.raises(InvalidParameter, match="to_turn: give a turn, the name"):
        await diff(shadow, to_turn="--output=/tmp/x")


async def test_the_end_of_a_turn_that_was_not_stored_is_the_start_of_the_next(
    shadow: Shadow,
) -> None:
    (shadow.workspace / "old").write_text("text")
    await shadow.turn(1, "start")
    (shadow.workspace / "file").write_text("1\n")
    await shadow.turn(2, "start")
    assert brief(await diff(shadow, to_turn=1)) == {"file": ("added", 1, 0)}


async def test_binary_files_links_and_modes_are_told_apart(shadow: Shadow) -> None:
    workspace = shadow.workspace
    (workspace / "binary").write_bytes(b"\0\1")
    (workspace / "program").write_text("text\n")
    (workspace / "becomes-link").write_text("text\n")
    await shadow.turn(1, "start")
    (workspace / "binary").write_bytes(b"\0\2")
    (workspace / "program").chmod(0o755)
    (workspace / "becomes-link").unlink()
    (workspace / "becomes-link").symlink_to("program")
    await shadow.turn(1)
    answer = await diff(shadow, patch=True, most=10_000)
    assert brief(answer) == {
        "becomes-link": ("type_changed", 1, 1),
        "binary": ("modified", None, None),
        "program": ("modified", 0, 0),
    }
    modes = {each.path: (each.old_mode, each.new_mode) for each in answer.changes}
    assert modes["program"] == ("100644", "100755")
    assert modes["becomes-link"] == ("100644", "120000")
    assert b"Binary files a/binary and b/binary differ" in answer.patch


async def test_names_that_are_no_text_and_names_like_options_are_shown(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    for name in (b"--output=x", b"tab\there", b"\xff\xfe", b":(glob)*"):
        (shadow.workspace / name.decode(errors="surrogateescape")).write_text("text\n")
    await shadow.turn(1)
    names = set(brief(await diff(shadow)))
    assert names == {"--output=x", "tab\there", "\\xff\\xfe", ":(glob)*"}
    assert set(brief(await diff(shadow, paths=(":(glob)*",)))) == {":(glob)*"}
    assert set(brief(await diff(shadow, paths=("--output=x",)))) == {"--output=x"}
    with pytest.raises(InvalidParameter, match="without"):
        await diff(shadow, paths=("../x",))


async def test_a_patch_comes_in_pieces_that_make_it_whole(shadow: Shadow) -> None:
    await shadow.turn(1, "start")
    for number in range(20):
        text = "".join(f"{number} {line}\n" for line in range(300))
        (shadow.workspace / f"file{number}").write_text(text)
    await shadow.turn(1)
    whole = await diff(shadow, patch=True, most=10_000_000)
    assert not whole.more
    assert whole.patch.count(b"diff --git") == 20
    pieces, more = [b""], True
    while more:
        offset = sum(map(len, pieces))
        piece = await diff(shadow, between=whole.between, patch=True, offset=offset, most=7000)
        pieces.append(piece.patch)
        more = piece.more
    assert b"".join(pieces) == whole.patch


async def test_attributes_in_the_workspace_have_no_effect_on_a_diff(shadow: Shadow) -> None:
    """A planted one could hide a change, or name a program that git runs to show it."""
    (shadow.workspace / ".gitattributes").write_text("* -diff\n*.txt diff=evil filter=evil\n")
    (shadow.workspace / "a.txt").write_text("1\n")
    await shadow.turn(1, "start")
    (shadow.workspace / "a.txt").write_text("2\n")
    await shadow.turn(1)
    answer = await diff(shadow, patch=True, most=10_000)
    assert brief(answer) == {"a.txt": ("modified", 1, 1)}
    assert b"-1\n+2\n" in answer.patch


async def test_the_newest_state_is_the_one_that_was_taken_last(shadow: Shadow) -> None:
    await two_turns(shadow)
    await shadow.restore(1)
    label = SnapshotLabel(session_id="ses_1", turn=2, moment="restored", tag="1")
    await shadow.repository.take(label)
    answer = await diff(shadow)
    assert brief(answer) == {"new": ("added", 1, 0)}
    assert answer.between is not None
    assert answer.between.new_name == "2-restored-1"


async def test_a_file_of_which_there_is_no_content_is_said_once_it_has_changed(
    shadow_of: Callable[..., Shadow],
) -> None:
    shadow = shadow_of(max_file_bytes=10)
    (shadow.workspace / "as-before").write_text("x" * 11)
    await shadow.turn(1, "start")
    (shadow.workspace / "large").write_text("x" * 12)
    (shadow.workspace / "small").write_text("x\n")
    await shadow.turn(1)
    answer = await diff(shadow)
    assert brief(answer) == {"small": ("added", 1, 0)}
    assert answer.left_out_count == 1
    assert answer.left_out["large"].startswith("12 bytes, of which")
    assert (await diff(shadow, paths=("small",))).left_out_count == 0
