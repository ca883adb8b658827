"""The log and the state."""
