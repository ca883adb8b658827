"""Permission policies of programs: patterns, the subjects of requests, and rules over both."""

from oubliette.api.permissions.rules import (
    Answer,
    PermissionRules,
    Ruling,
    UnreachableRule,
    policy_of,
    rules,
)
from oubliette.api.permissions.subjects import Subject, subject_of

__all__ = (
    "Answer",
    "PermissionRules",
    "Ruling",
    "Subject",
    "UnreachableRule",
    "policy_of",
    "rules",
    "subject_of",
)
