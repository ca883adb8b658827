"""Docstrings in Google style describe a tool and its parameters; other text loses nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.tools.docstrings import parsed


def test_the_text_before_the_sections_is_the_description():
    docs = parsed(
        """Look an order up.

        It may be old.

        Args:
            order: its number,
                such as A-17.
            urgent (bool): whether it
              cannot wait: really.

        Returns:
            The order.
        """
    )
    assert docs.description == "Look an order up.\n\nIt may be old."
    assert docs.parameters == {
        "order": "its number, such as A-17.",
        "urgent": "whether it cannot wait: really.",
    }


def test_text_after_a_section_is_description_again():
    docs = parsed("One.\n\nArgs:\n    a: first.\n\nTwo.")
    assert docs.description == "One.\n\nTwo."
    assert docs.parameters == {"a": "first."}


def test_raises_and_examples_are_for_the_readers_of_code():
    docs = parsed("One.\n\nRaises:\n    ValueError: why\n\nExample:\n    f(1)\n")
    assert docs == ("One.", {})


def test_paragraphs_and_urls_inside_an_entry_belong_to_it():
    docs = parsed("Args:\n  url: such as\n    http://x: 1\n\n    or none\n  *rest: more\n")
    assert docs.parameters == {"url": "such as http://x: 1 or none", "rest": "more"}


def test_an_entry_without_text_is_left_out():
    assert parsed("Args:\n    a:\n    b: second").parameters == {"b": "second"}


def test_types_with_brackets_are_skipped():
    docs = parsed("Args:\n    a (dict[str, int], optional): first.\n    `b`: second.")
    assert docs.parameters == {"a": "first.", "b": "second."}


def test_a_docstring_of_another_style_stays_whole():
    text = "Add.\n\n:param a: the first\n:returns: the sum"
    assert parsed(text) == (text, {})


def test_there_may_be_no_docstring():
    assert parsed(None) == parsed("") == ("", {})


@given(st.text(alphabet=st.sampled_from("ab: \n\tArgs()*`"), max_size=200))
def test_every_text_is_accepted(text):
    docs = parsed(text)
    assert all(value == " ".join(value.split()) != "" for value in docs.parameters.values())


_WORDS = (
    st.text(alphabet="abc xyz.", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)
)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), _WORDS, min_size=1),
    _WORDS,
    st.integers(1, 8),
)
def test_a_written_docstring_is_read_as_it_was_written(entries, description, depth):
    lines = "\n".join(f"{' ' * depth}{name}: {text}" for name, text in entries.items())
    docs = parsed(f"{description}\n\nArgs:\n{lines}\n\nReturns:\n    nothing\n")
    assert docs == (description, entries)
