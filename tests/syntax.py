"""Syntax trees of source text, for the tests that look at the code."""

from __future__ import annotations

import ast
import gc


def parse(source: str, feature_version: tuple[int, int] | None = None) -> ast.Module:
    """The tree of a module, as `ast.parse` makes it, with the garbage collector held back.

    While CPython (until 3.11.8 and 3.12.2) makes the nodes, it counts how deep it is in a place
    that all of the interpreter shares. A collection in between runs code of others, and if that
    parses anything, as the printing of a traceback does, the outer call ends with SystemError.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source, feature_version=feature_version)
    finally:
        if collects:
            gc.enable()
