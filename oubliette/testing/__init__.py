"""Test tools for users of Oubliette."""
