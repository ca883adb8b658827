"""Containers: one actor for each, and the code that starts, adopts and stops them."""
