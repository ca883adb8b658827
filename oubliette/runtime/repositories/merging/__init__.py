"""Merges of what sessions have changed, in the repository of a project."""
