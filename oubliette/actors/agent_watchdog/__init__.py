"""Watch over a session's agent: its start, its silence, its turns, interrupts of these."""
