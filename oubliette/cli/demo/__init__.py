"""Command `oubliette demo`."""
