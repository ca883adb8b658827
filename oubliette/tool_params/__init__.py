"""Declarations of what tools take: classes of parameters, their types, schemas and validation."""
