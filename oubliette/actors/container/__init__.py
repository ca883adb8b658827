"""Containers: one actor for each container, and what starts, adopts and stops it."""
