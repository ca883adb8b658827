"""JSON values are results as they are; they cross the wire unchanged."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.tools import results

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
)


@given(JSON)
def test_json_values_stay_as_they_are(value):
    assert results.plain(value) == value


@given(
    st.recursive(
        SCALARS | st.binary() | st.dates(),
        lambda inner: (
            st.tuples(inner, inner)
            | st.frozensets(st.integers(0, 9))
            | st.dictionaries(st.integers(0, 9), inner)
        ),
    )
)
def test_other_values_become_ones_that_are_read_as_they_were_written(value):
    found = results.plain(value)
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
