"""Explorations: trees of sessions and the limits that they share."""
