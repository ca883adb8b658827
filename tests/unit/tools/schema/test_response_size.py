"""Results fit into a message that every client takes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.tools.schema import response_size

HARD = st.text(st.sampled_from('"\\\n\x01aé€😀'), max_size=300)


@given(HARD, st.integers(60, 400))
def test_a_cut_text_is_a_beginning_within_its_bound(text: str, most: int) -> None:
    cut = response_size.cut(text, most)
    assert cut is not None
    if response_size.size(text) <= most:
        assert cut == text
    else:
        assert response_size.size(cut) <= most
        kept, _, note = cut.rpartition("… (cut; ")
        assert text.startswith(kept)
        assert note == f"{len(text)} characters)"


def test_nothing_stays_nothing() -> None:
    assert response_size.cut(None, 10) is None


@given(st.dictionaries(HARD, HARD, max_size=5))
def test_the_cost_of_a_part_is_never_told_too_low(value: dict[str, str]) -> None:
    text = msgspec.json.encode(value)
    assert response_size.cost(value) >= len(text) + len(msgspec.json.encode(text.decode())) - 2


@given(st.lists(HARD, max_size=30), st.integers(0, 5000))
def test_what_fits_is_a_beginning_and_one_at_least(parts: list[str], most: int) -> None:
    fit, used, cut = response_size.fitting(parts, most)
    assert parts[: len(fit)] == fit
    assert cut == (len(fit) < len(parts))
    assert fit or not parts
    if len(fit) > 1:
        assert used <= most


@pytest.mark.parametrize("used", [0, 100_000, response_size.MAX_PARTS])
def test_a_text_beside_parts_leaves_the_message_small_enough(used: int) -> None:
    assert used + 3 * response_size.room_for_text(used) + 20_000 <= 1024 * 1024
