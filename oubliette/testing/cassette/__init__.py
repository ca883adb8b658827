"""Cassettes: recorded traffic between a real agent and its model, replayed without the model."""

from __future__ import annotations

from oubliette.testing.cassette.recorder import Cassette, RecordMode, UnrecordedRequest

__all__ = ["Cassette", "RecordMode", "UnrecordedRequest"]
