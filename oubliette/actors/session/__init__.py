"""Sessions: one actor for each session, and the parts of its state."""
