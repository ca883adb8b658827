"""Programs that carry streams across a boundary."""
