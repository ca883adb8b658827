"""Descriptions of struct fields, read from the docstrings below them in the source."""

from __future__ import annotations

import ast
import inspect
import sys

import msgspec


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field of `kind`, by its name; empty without source."""
    docs: dict[str, str] = {}
    for base in kind.__bases__:
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            docs |= field_docs(base)
    try:
        tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    except (OSError, SyntaxError):
        return docs
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != kind.__name__:
            continue
        for field, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[field.target.id] = " ".join(after.value.value.split())
    return docs
