"""The world behind ports."""
