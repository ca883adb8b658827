"""What an error quotes of an agent's standard error: the end of it, fit to be read by anybody."""

from __future__ import annotations

import json

import pytest

from oubliette.runtime.agents.last_words import KEPT, QUOTED, quoted, secrets_in


def test_lines_are_kept_and_empty_ones_left_out():
    assert quoted(b"Error: no such module\r\n\r\n\n    at main.js:3\n") == (
        "Error: no such module\n    at main.js:3"
    )


def test_colours_titles_and_control_characters_are_taken_out():
    said = b"\x1b[1;31mfatal\x1b[0m:\t\x1b]0;title\x07no\x00 \xc2\x9bkey\x08\x7f \xff\r\n\x1b(Bend"
    words = quoted(said)
    assert words == "fatal: no key �\nend"


def test_what_is_long_is_cut_to_whole_lines_at_its_end():
    said = b"".join(b"line %d of many that were written\n" % n for n in range(5000))
    words = quoted(said)
    assert len(words) <= QUOTED
    assert words.startswith("…line ")
    assert words.endswith("line 4999 of many that were written")
    assert len(quoted(b"x" * 100_000)) == QUOTED + 1


@pytest.mark.parametrize("before", [0, 100, QUOTED - 30, QUOTED + 10, 10_000])
def test_secrets_are_masked_wherever_they_stand(before):
    """Also where the cut goes through one, and where one is part of another."""
    said = b"bad key sk-live-1234567890-more " + b"." * before
    words = quoted(said, {"sk-live-1234567890-more", "sk-live-1234567890", "", "bad"})
    assert "1234567890" not in words
    if before <= 100:
        assert words.startswith("bad key ***")


def test_a_secret_that_is_broken_up_by_colours_is_masked():
    assert quoted(b"s3cr\x1b[1me\x1b[0mt-words", {"s3cret-words"}) == "***"


def test_our_own_keys_are_masked_though_nobody_named_them():
    assert quoted(b"using oub_w1_abcdefghijklmnop0123 now") == "using oub_*** now"


def test_nothing_is_quoted_of_nothing():
    assert quoted(b"") == quoted(b" \n\x1b[0m\n") == ""


def test_more_than_is_looked_at_costs_nothing():
    assert quoted(b"the-secret-word " + b"\n" * KEPT, {"the-secret-word"}) == ""


def test_secrets_of_an_environment_are_known_by_their_names_and_those_in_configurations():
    config = {
        "model": "large",
        "provider": {"p": {"options": {"apiKey": "key-in-config", "baseURL": "http://m/v1"}}},
        "mcp": [{"headers": {"Authorization": "Bearer of-a-header"}}],
    }
    env = {
        "PATH": "/usr/bin",
        "OUBLIETTE_PAIRING_SECRET": "pairing",
        "OPENAI_API_KEY": "key-of-openai",
        "GIVEN": "by-reference",
        "CONFIG": json.dumps(config),
        "NONSENSE": "{",
        "DEEP": '{"a":' * 100_000,
    }
    found = secrets_in(env, {"GIVEN", "NOT_THERE"})
    assert found == {
        "pairing",
        "key-of-openai",
        "by-reference",
        "key-in-config",
        "Bearer of-a-header",
        "of-a-header",
    }
