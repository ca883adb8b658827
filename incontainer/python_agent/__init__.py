"""Agent written in Python: runs one function of a user's module, turn by turn."""
