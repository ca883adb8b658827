"""What programs get of sessions and projects is all that the tools return."""

from __future__ import annotations

import msgspec

from oubliette import SessionInfo
from oubliette.api.events.usage import Usage
from oubliette.contract import session


def test_the_state_of_a_session_has_every_field_that_session_get_returns_and_no_other() -> None:
    assert {*SessionInfo.__struct_fields__} == {*session.SessionDetail.__struct_fields__}


def test_usage_has_every_field_of_the_tools_and_adds_the_tokens_up() -> None:
    assert {*session.Usage.__struct_fields__} < {*Usage.__struct_fields__}
    reported = session.Usage(input_tokens=3, output_tokens=4, cost_usd=0.5)
    assert msgspec.convert(msgspec.to_builtins(reported), Usage) == Usage(
        input_tokens=3, output_tokens=4, tokens=7, cost_usd=0.5
    )
