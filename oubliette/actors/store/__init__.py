"""The actor in front of the store."""
