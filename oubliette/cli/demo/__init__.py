"""`oubliette demo`."""
