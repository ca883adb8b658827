"""Trees of sessions, and the limits that the sessions of a tree share."""
