"""Typed results: types with a schema, JSON out of answers, and attempts until it is valid."""

from oubliette.api.results.ask import ask_for_result
from oubliette.api.results.types import ResultType, result_type

__all__ = ("ResultType", "ask_for_result", "result_type")
